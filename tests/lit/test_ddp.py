"""The processes of a distributed run end together."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from capsule_lab.errors import ConfigError, RunError
from capsule_lab.lit import ddp
from tests.helpers.commands import NO_PICTURES, TINY, start

LOST = [
    "[gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:10152. This is typically caused by …",
    "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 40000ms for recv operation to complete",
    "Timed out after 9 seconds waiting for clients. 1/2 clients joined.",
    "NCCL communicator was aborted on rank 0.",
]
THEN = "the same command goes on"


def trainer(*processes: Any, world_size: int = 2) -> Any:
    """As much of a Trainer as is read."""
    strategy = SimpleNamespace(launcher=SimpleNamespace(procs=[*processes]))
    return SimpleNamespace(world_size=world_size, strategy=strategy)


def test_error_of_communication_becomes_a_sentence() -> None:
    for text in LOST:
        sentence = r"another process of this run has ended or does not answer \((?!\[)"
        with pytest.raises(RunError, match=sentence), ddp.processes_of(trainer(), THEN):
            raise RuntimeError(text)
    for error, world_size in ((RuntimeError("shape mismatch"), 2), (RuntimeError(LOST[0]), 1)):
        with pytest.raises(RuntimeError) as caught, ddp.processes_of(trainer(world_size=world_size), THEN):
            raise error
        assert caught.value is error


def test_process_that_does_not_answer_is_killed_and_one_that_ended_is_named() -> None:
    sleeping, failing = subprocess.Popen(["sleep", "60"]), subprocess.Popen(["false"])
    failing.wait()
    started = trainer(sleeping, failing)
    sentence = rf"has ended \(process {failing.pid} with status 1, its own message is above\); {THEN}$"
    with pytest.raises(RunError, match=sentence), ddp.processes_of(started, THEN):
        _fail_when_taken(started)
    assert sleeping.returncode == -signal.SIGKILL


def _fail_when_taken(trainer: Any) -> None:
    wait_for(lambda: not trainer.strategy.launcher.procs, 10)  # by the thread that watches them
    raise RuntimeError(LOST[0])


@pytest.mark.parametrize("text", ["soon", "-3", "inf", "nan", "0", "1e300"])
@pytest.mark.parametrize("processes", [1, 2])
def test_timeout_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch, text: str, processes: int) -> None:
    monkeypatch.setenv(ddp.TIMEOUT_VARIABLE, text)
    sentence = f"CAPSULE_LAB_DDP_TIMEOUT is {text}; expected seconds"
    with pytest.raises(ConfigError, match=sentence), ddp.processes_of(trainer(world_size=processes), THEN):
        pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "signum"),
    [(1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP)],
    ids=lambda value: str(int(value)),
)
def test_process_that_is_killed_or_stands_still_ends_the_others(tmp_path: Path, rank: int, signum: int) -> None:
    two = ["trainer.devices=2", "trainer.strategy=ddp", "train.directory=run", "trainer.max_epochs=100000"]
    options = [*TINY, *NO_PICTURES, *two]
    process = start("-m", "capsule_lab.train", *options, cwd=tmp_path, CAPSULE_LAB_DDP_TIMEOUT="60")
    try:
        wait_for(lambda: (tmp_path / "run" / "metrics.csv").is_file(), 120)
        (other,) = children(process.pid)
        os.kill(other if rank else process.pid, signum)
        wait_for(lambda: not (alive(process.pid) or alive(other)), 100)
        _, err = process.communicate(timeout=10)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == (2 if rank else -signal.SIGKILL)
    assert [line for line in err.splitlines() if line.startswith("capsule_lab: another process of this run ")]
    assert "Traceback" not in err


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits for its parent to ask for its status does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)
