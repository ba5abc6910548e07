"""The SLURM launcher: requeued jobs, submitted options, and jobs without a result."""

import json
import os
import shutil
import signal
import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import submitit
from submitit.core.utils import JobPaths

from capsule_lab.commands import compose
from capsule_lab.commands.tables import read_table as read
from capsule_lab.launchers import slurm as launcher
from capsule_lab.runs import lock
from capsule_lab.runs.directories import config_hash
from capsule_lab.runs.results import write_pause
from capsule_lab.system import protocol, slurm
from capsule_lab.tables.expand import expand
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, Cli
from tests.helpers.messages import one_sentence
from tests.helpers.tables import RESULT, write_run, write_table

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "capsule_lab"}
ARRAY = {**JOB, "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}


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
)
def test_only_stopped_batch_jobs_are_requeued(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], signum: int, job: str | None
) -> None:
    asked: list[list[str]] = []
    answer = SimpleNamespace(returncode=0, stderr="")
    monkeypatch.setattr(subprocess, "run", lambda command, **_: asked.append(command) or answer)
    for name in (*ARRAY, "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    slurm.requeue(signum)
    assert asked == ([["scontrol", "requeue", job]] if job else [])


def test_job_counts_as_queued_if_the_controller_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name)
    for status, out, err, there in (
        (0, "RUNNING\n", "", True),
        (0, "", "", False),
        (1, "", "slurm_load_jobs error: Invalid job id specified", False),
        (1, "", "slurm_load_jobs error: Socket timed out", True),
    ):
        answer = SimpleNamespace(returncode=status, stdout=out, stderr=err)
        monkeypatch.setattr(subprocess, "run", lambda *_, answer=answer, **__: answer)
        assert slurm.in_queue("7") is there

    def fail(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("squeue", 30)

    monkeypatch.setattr(subprocess, "run", fail)
    assert slurm.in_queue("7")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert not slurm.in_queue("7"), "without SLURM"


def test_launcher_without_slurm_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    ended = cli("sweep", "table=smoke", "rows=[uniform]", "seeds=[0]", "launcher=slurm")
    assert one_sentence(ended).startswith("SLURM rejected the runs (Could not detect")


class Executor:
    """A stand-in for submitit's executor whose jobs leave the queue without a result."""

    def __init__(self, cluster: str, folder: str) -> None:
        self.folder, self.submitted = Path(folder), []
        assert cluster == "slurm"

    def update_parameters(self, **options: Any) -> None:
        self.options = options

    def batch(self) -> Any:
        return nullcontext()

    def submit(self, function: Any, *arguments: Any) -> Any:
        assert function is launcher.become
        self.submitted.append(arguments)
        paths = JobPaths(self.folder, f"7_{len(self.submitted)}")
        return SimpleNamespace(
            job_id=paths.job_id, paths=paths, task=lambda _: SimpleNamespace(paths=paths)
        )


def test_queued_job_is_recorded_and_needs_a_result(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation is recorded under its own fingerprint."""
    file = write_table(
        tmp_path, rows=[{"name": "a", "overrides": []}, {"name": "b", "of": "a", "evaluate": []}]
    )
    for cell in expand(read(file))[:2]:
        write_run(cell)
    *_, first, second = expand(read(file))
    executors: list[Executor] = []
    queued: list[str | None] = []

    def in_queue(_: str) -> bool:
        record = lock.read_record(first.fingerprint)
        queued.append(record and record.queued)
        return False

    monkeypatch.setattr(
        submitit,
        "AutoExecutor",
        lambda **given: executors.append(Executor(**given)) or executors[0],
    )
    monkeypatch.setattr(slurm, "in_queue", in_queue)
    ended = cli(
        "sweep",
        f"table={file}",
        "launcher=slurm",
        "hydra.launcher.partition=gpu",
        "hydra.launcher.mem_gb=8",
    )
    assert ended.status == 2
    assert "2 of 4 runs of mine failed" in ended.err
    assert queued[0] == "7_1"
    for number, cell in enumerate((first, second), 1):
        paths = JobPaths(executors[0].folder, f"7_{number}")
        assert cell.error == f"job 7_{number} ended without a result; its log is {paths.stderr}"
        assert cell.log == str(paths.stdout)
        assert executors[0].submitted[number - 1] == (cell.job.command, cell.job.environment)
    asked = {
        "mem_gb": 8,
        "slurm_partition": "gpu",
        "name": "capsule_lab",
        "slurm_srun_args": ["--wait=120"],
    }
    assert asked.items() <= executors[0].options.items()


class Ending(Executor):
    """Of its jobs, that of seed 0 finishes, that of seed 1 is paused, and others leave no record."""

    def submit(self, function: Any, command: list[str], environment: Any) -> Any:
        config = compose("train", command[4:])
        directory = Path(config.train.directory)
        if config.seed == 0:
            directory.mkdir(parents=True)
            result = {**RESULT, "config_hash": config_hash(config)}
            (directory / "metrics.json").write_text(json.dumps(result))
        if config.seed == 1:
            write_pause(directory, 3, 8)
        return super().submit(function, command, environment)


def test_finished_and_paused_jobs_of_a_multirun_have_not_failed(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitit, "AutoExecutor", Ending)
    monkeypatch.setattr(slurm, "in_queue", lambda _: False)
    write_pause(Path("out/2"), 1, 8)  # by an earlier command
    overrides = ["debug=smoke", "train.directory=out/${seed}", "launcher=slurm"]
    refused = one_sentence(cli("train", "-m", "seed=0,1,2", *overrides))
    assert refused.startswith("1 of 3 runs failed: seed=2 ")
    assert "job 7_3 ended without a result" in refused


def test_paused_jobs_of_a_table_have_not_failed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_table(tmp_path)
    first, second = expand(read(file))
    directory = tmp_path / "runs" / f"capsnet-mnist-{first.fingerprint}"

    def in_queue(job: str) -> bool:
        """The first job is paused, and the second leaves no record."""
        if job == "7_1":
            with lock.cell_lock(first.fingerprint):
                write_pause(directory, 3, 8)
        return False

    monkeypatch.setattr(submitit, "AutoExecutor", Executor)
    monkeypatch.setattr(slurm, "in_queue", in_queue)
    refused = one_sentence(cli("sweep", f"table={file}", "launcher=slurm"))
    assert refused.startswith("1 of 2 runs of mine failed")
    assert second.name in refused
    assert first.name not in refused


def test_process_of_a_job_becomes_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[Any] = []
    paths = JobPaths(tmp_path, "7_1")
    monkeypatch.setattr(submitit, "JobEnvironment", lambda: SimpleNamespace(paths=paths))
    monkeypatch.setattr(os, "execve", lambda *given: became.append(given))
    monkeypatch.setenv("SLURM_LOCALID", "1")
    launcher.become(["python", "-m", "x"], {"EXTRA": "y"})
    ((program, command, environment),) = became
    assert (program, command) == ("python", ["python", "-m", "x"])
    assert {
        "EXTRA": "y",
        "LOCAL_RANK": "1",
        protocol.LOG: str(paths.stdout),
    }.items() <= environment.items()


@pytest.mark.whole
def test_requeued_job_continues_without_train_resume(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    overrides = ["debug=smoke", *TINY_CAPSNET, "trainer.accelerator=cpu", *NO_PICTURES]
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    assert cli("train", *overrides).status == 0
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert "has finished, there is nothing to resume" in cli("train", *overrides).out
    assert len(list((tmp_path / "runs").iterdir())) == 1
