"""Measurements without processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from capsule_lab import bench
from tests.helpers.bench import small_bench, start_no_process


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Workers start no process; what they were asked for, as (worker, function)."""
    return start_no_process(monkeypatch)


@pytest.fixture(scope="package")
def report() -> Iterator[dict[str, Any]]:
    """Of all small cases."""
    with pytest.MonkeyPatch.context() as patch:
        start_no_process(patch)
        yield bench.measure(small_bench())
