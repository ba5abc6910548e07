"""One of two processes of a run is killed: the other ends, too, and the run continues exactly."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.commands import NO_PICTURES, TINY_CNN, TINY_DATA, Ended, python, two_processes
from tests.helpers.interruptions import differences
from tests.helpers.training import checkpoint

LIMIT = 20.0
"""Seconds; docs/guides/gpus_and_slurm.md states them."""
SAVED_AT, KILLED_AT = 10, 13  # several processes save at multiples of ten steps

RUN = [
    *TINY_CNN,
    *TINY_DATA,
    *NO_PICTURES,
    "data.batch_size=8",
    "trainer.max_epochs=1",
    "trainer.precision=32-true",
    "callbacks.last.every_minutes=0",
    "trainer.devices=2",
    "trainer.strategy=ddp",
]


def train(folder: Path, rank: int, *overrides: str, run: Callable[..., Ended] = python) -> Ended:
    """Train; with ``run=two_processes`` without the time in which Lightning starts the second process."""
    options = [
        "_target_: tests.helpers.crash_callbacks.KillOneProcess",
        f"marker: {folder}/killed",
        f"rank: {rank}",
        f"step: {KILLED_AT}",
    ]
    kill = f"+callbacks.kill={{{', '.join(options)}}}"
    command = ["-m", "capsule_lab", "train", *RUN, kill, f"train.directory={folder}/run"]
    return run(*command, *overrides, cwd=folder)


def is_alive(pid: str) -> bool:
    """Whether a process runs; one that has ended may wait for its parent to notice."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "State:\tZ" not in status


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that is not disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "killed").touch()
    ended = train(folder, 0, run=two_processes)
    assert ended.status == 0, ended.err
    return folder


@pytest.mark.whole
@pytest.mark.integration
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_other_process_ends_and_the_run_continues_exactly(
    rank: int, whole: Path, tmp_path: Path
) -> None:
    ended = train(tmp_path, rank)
    assert ended.status == -signal.SIGKILL if rank == 0 else ended.status != 0
    end = (tmp_path / "killed").stat().st_mtime + LIMIT
    pids = [(tmp_path / f"killed.{number}").read_text() for number in (0, 1)]
    while any(is_alive(pid) for pid in pids):
        assert time.time() < end, f"one of the processes {pids} still runs"
        time.sleep(0.1)
    assert not (tmp_path / "run" / "metrics.json").exists()
    assert checkpoint(tmp_path / "run")["global_step"] == SAVED_AT

    ended = train(tmp_path, rank, "train.resume=true", run=two_processes)
    assert ended.status == 0, ended.err
    assert f"continuing {tmp_path}/run/checkpoints/last.ckpt" in ended.out
    result = json.loads((tmp_path / "run" / "metrics.json").read_text())
    expected = json.loads((whole / "run" / "metrics.json").read_text())
    assert differences(result, tmp_path / "run", expected, whole / "run") == []
