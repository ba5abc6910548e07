"""Which jobs of SLURM are requeued, and what is asked of it."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from submitit.core.utils import JobPaths

from capsule_lab.errors import ConfigError
from capsule_lab.launchers import slurm_array, submitit_internals
from capsule_lab.runs import lock
from capsule_lab.system import slurm
from capsule_lab.tables.expand import expand
from capsule_lab.tables.reader import read
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, Ended
from tests.helpers.tables import write_run, write_table

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "capsule_lab"}
ARRAY = {**JOB, "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


@pytest.mark.parametrize(
    ("environment", "signum", "job"),
    [
        (JOB, signal.SIGTERM, "7"),
        (ARRAY, signal.SIGUSR1, "5_2"),
        ({**ARRAY, "SLURM_PROCID": "1"}, signal.SIGTERM, None),
        ({**JOB, "SLURM_JOB_NAME": "interactive"}, signal.SIGTERM, None),
        (JOB, signal.SIGINT, None),
        ({}, signal.SIGTERM, None),
    ],
    ids=str,
)
def test_requeue(monkeypatch: pytest.MonkeyPatch, asked, environment, signum: int, job: str | None) -> None:
    for name in ARRAY:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert slurm.requeue(signum) is (job is not None)
    assert asked == ([["scontrol", "requeue", job]] if job else [])


@pytest.mark.parametrize(("environment", "job"), [(JOB, "7"), (ARRAY, "5_2")], ids=str)
def test_cancel(monkeypatch: pytest.MonkeyPatch, asked, environment, job: str) -> None:
    for name in ARRAY:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    slurm.cancel()
    assert asked == [["scancel", job]]


def test_without_slurm_nothing_is_in_its_queue(monkeypatch: pytest.MonkeyPatch, asked) -> None:
    monkeypatch.setenv("PATH", "")
    assert not slurm.in_queue("7")
    assert asked == []


@pytest.mark.parametrize(
    ("answer", "there"),
    [
        (SimpleNamespace(returncode=0, stdout="RUNNING\n", stderr=""), True),
        (SimpleNamespace(returncode=0, stdout="", stderr=""), False),
        (SimpleNamespace(returncode=1, stdout="", stderr="slurm_load_jobs error: Invalid job id specified"), False),
        (SimpleNamespace(returncode=1, stdout="", stderr="slurm_load_jobs error: Socket timed out"), True),
        (subprocess.TimeoutExpired("squeue", 30), True),
    ],
    ids=str,
)
def test_job_counts_as_queued_if_the_controller_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, answer: Any, there: bool
) -> None:
    def run(*_: object, **__: object) -> SimpleNamespace:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", run)
    assert slurm.in_queue("7") is there


def test_launcher_without_slurm_says_so(cli: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    ended = cli("sweep", "table=smoke", "rows=[uniform]", "seeds=[0]", "launcher=slurm")
    assert ended.status == 2
    assert ended.err.startswith("capsule_lab: SLURM did not take the runs (Could not detect")
    assert ended.err.count("\n") == 1


class Job:
    """A job of submitit that leaves the queue without a result."""

    job_id = "7_0"

    def __init__(self, folder: Path) -> None:
        self.paths = JobPaths(folder, self.job_id)

    def task(self, _: int) -> Job:
        return self


def test_queued_job_is_recorded_and_has_failed_if_it_leaves_no_result(
    cli: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation is recorded under its own fingerprint."""
    file = write_table(tmp_path, rows=[{"name": "a", "overrides": []}, {"name": "b", "of": "a", "evaluate": []}])
    for cell in expand(read(file))[:2]:
        write_run(cell)
    *_, first, second = expand(read(file))
    job = Job(tmp_path)
    queued: list[str | None] = []

    def in_queue(_: str) -> bool:
        record = lock.read_record(first.fingerprint)
        queued.append(record and record.queued)
        return False

    monkeypatch.setattr(submitit_internals, "submit", lambda *_: [job, job])
    monkeypatch.setattr(slurm_array, "_POLL_SECONDS", 0)
    monkeypatch.setattr(slurm, "in_queue", in_queue)
    ended = cli("sweep", f"table={file}", "launcher=slurm")
    assert ended.status == 2
    assert "2 of 4 runs of mine failed" in ended.err
    assert queued[0] == job.job_id
    for cell in (first, second):
        assert cell.error == f"job {job.job_id} ended without a result; its log is {job.paths.stderr}"
        assert cell.log == str(job.paths.stdout)


@pytest.mark.parametrize(("count", "requeued"), [(None, False), ("0", False), ("2", True)])
def test_restarted_job_was_requeued(monkeypatch: pytest.MonkeyPatch, count: str | None, requeued: bool) -> None:
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    if count is not None:
        monkeypatch.setenv("SLURM_RESTART_COUNT", count)
    assert slurm.was_requeued() is requeued


def test_count_of_restarts_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "abc")
    with pytest.raises(ConfigError, match="SLURM_RESTART_COUNT is abc; expected how often"):
        slurm.was_requeued()


def test_requeued_job_continues_without_train_resume(
    cli: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    overrides = ["debug=smoke", *TINY_CAPSNET, "trainer.accelerator=cpu", *NO_PICTURES]
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    assert cli("train", *overrides).status == 0
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert "is finished already" in cli("train", *overrides).out
    assert len(list((tmp_path / "runs").iterdir())) == 1
