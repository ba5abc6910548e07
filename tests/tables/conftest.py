"""Fixtures of tables."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.tables import write_run, write_table


@pytest.fixture
def table_file(tmp_path: Path) -> Callable[..., Path]:
    return functools.partial(write_table, tmp_path)


@pytest.fixture
def finish() -> Callable[..., Path]:
    return write_run
