import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from capsule_lab.launchers.local import LocalLauncher
from tests.helpers.tables import launch_here, shared_compositions, write_table


@pytest.fixture(scope="package", autouse=True)
def _shared_compositions() -> Iterator[None]:
    with shared_compositions():
        yield


@pytest.fixture
def table_file(tmp_path: Path) -> Callable[..., Path]:
    return functools.partial(write_table, tmp_path)


@pytest.fixture
def runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs of a sweep run in this process. ``test_sweep.py`` covers jobs in processes of their own."""
    monkeypatch.setattr(LocalLauncher, "launch", lambda _, *given: launch_here(*given))
