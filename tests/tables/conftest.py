"""Fixtures of tables."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from capsule_lab.launchers.local import LocalLauncher
from tests.helpers.tables import launch_here, write_run, write_table


@pytest.fixture
def table_file(tmp_path: Path) -> Callable[..., Path]:
    return functools.partial(write_table, tmp_path)


@pytest.fixture
def finish() -> Callable[..., Path]:
    return write_run


@pytest.fixture
def runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of a sweep run in this process; that they are processes of their own is shown in ``test_sweep.py``."""
    monkeypatch.setattr(LocalLauncher, "launch", lambda _, *given: launch_here(*given))
