"""How a sweep on this machine starts and stops; whole sweeps are in tests/tables/test_sweep.py."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext

from capsule_lab.errors import InterruptError, RunError
from capsule_lab.launchers import gpu_pool
from capsule_lab.launchers.hydra_internals import was_left_out
from capsule_lab.launchers.job_process import Finished, JobProcess


class Job:
    """Notes the signals that it gets; while it is waited for, further ones come to the sweep."""

    def __init__(self, further: list[int]) -> None:
        self.got: list[int] = []
        self.further = iter(further)
        self.process = SimpleNamespace(join=self.join)

    def send_signal(self, signum: int) -> None:
        self.got.append(signum)

    def join(self) -> None:
        for signum in itertools.islice(self.further, 1):
            signal.raise_signal(signum)


INT, TERM, HUP, USR1, KILL = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGKILL


@pytest.mark.parametrize(
    ("signum", "further", "passed_on"),
    [
        (INT, [], [TERM]),
        (HUP, [], [TERM]),
        (USR1, [], [USR1]),
        (USR1, [TERM], [USR1, TERM]),
        (INT, [INT, INT], [TERM, TERM, KILL]),
    ],
    ids=str,
)
def test_signal_is_passed_on_to_the_runs(signum: int, further: list[int], passed_on: list[int]) -> None:
    job = Job(further)
    running: dict[int, Any] = {3: job}
    with pytest.raises(InterruptError) as caught, gpu_pool._stopping(running):
        signal.raise_signal(signum)
    assert (caught.value.signum, job.got) == (signum, passed_on)
    saved = "which go on from their last checkpoints" if further else "which saved what they had trained"
    name = signal.Signals(signum).name
    assert str(caught.value) == f"stopped by {name}, and 1 runs with it, {saved}; the same command continues"


def test_jobs_that_have_not_started_when_the_time_is_over_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    class Ending(gpu_pool.JobProcess):
        """The time is over when it ends."""

        def __init__(self, context: Any, task: Any, overrides: Sequence[str], *_: Any) -> None:
            started.extend(overrides)

        def join(self) -> Finished:
            pool.until = 0.0
            return Finished(JobReturn(status=JobStatus.COMPLETED), seconds=1.0)

    pool = gpu_pool.GPUPool(jobs=1, logs=str(tmp_path))
    pool.task = pool.context = pool.idle_since = 0  # type: ignore[assignment]
    monkeypatch.setattr(gpu_pool, "JobProcess", Ending)
    monkeypatch.setattr(gpu_pool, "_ended", list)
    monkeypatch.setattr(gpu_pool, "restore_process", lambda: None)
    jobs = [["a=1"], ["a=2"], ["a=3"]]
    assert [was_left_out(each) for each in pool.launch(jobs, 0)] == [False, True, True]
    assert started == ["a=1"]
    assert [was_left_out(each) for each in pool.launch(jobs, 3)] == [True] * 3


def test_path_that_is_too_long_for_the_socket_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr(gpu_pool.forkserver, "ensure_running", fail)
    context: Any = HydraContext(config_loader=None, callbacks=None)  # type: ignore[arg-type]
    with pytest.raises(RunError, match=r"cannot start in .* \(AF_UNIX path too long\); name a .*TMPDIR=…"):
        gpu_pool.GPUPool().setup(hydra_context=context, task_function=print, config=None)  # type: ignore[arg-type]


def test_server_ends_with_its_sweep_while_it_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter([7, 7, 1])  # of an orphan it is another process
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(os, "_exit", sys.exit)
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit):
            runpy.run_module("capsule_lab.launchers.preload")
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert next(parents, None) is None


def test_server_that_has_ended_is_told(tmp_path: Path) -> None:
    def start() -> None:
        raise EOFError("unexpected EOF")  # of multiprocessing.forkserver

    context = SimpleNamespace(Pipe=multiprocessing.Pipe, Process=lambda **_: SimpleNamespace(start=start))
    with pytest.raises(RunError, match=r"server of launcher=gpus has ended \(unexpected EOF\), .*goes on$"):
        JobProcess(context, (), [], 0, tmp_path / "log", [], 1)
