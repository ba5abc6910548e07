"""One process at a time trains a configuration, and a record says how that failed."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import re
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from omegaconf import DictConfig

from capsule_lab import runs
from capsule_lab.config.compose import compose
from capsule_lab.errors import InterruptError, RunError
from capsule_lab.runs import file_lock, lock
from capsule_lab.system import slurm
from tests.helpers.commands import Ended, Trained
from tests.helpers.tables import RESULT, TINY


@pytest.fixture(scope="module")
def composed() -> DictConfig:
    return compose("train", TINY)


@pytest.fixture
def config(composed: DictConfig) -> DictConfig:
    return composed.copy()


def files() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))


@pytest.mark.parametrize("existing", [False, True], ids=["new folder", "runs is there"])
def test_lock_of_a_finished_run_leaves_nothing(config: DictConfig, existing: bool) -> None:
    if existing:
        Path("runs").mkdir()
    with lock.train_lock(config):
        assert lock.read_record(runs.directories.config_hash(config)).process.startswith(f"{os.getpid()} on ")
        assert lock.is_locked(runs.directories.config_hash(config))
    assert files() == (["runs"] if existing else [])
    assert lock.read_record(runs.directories.config_hash(config)) is None
    assert not lock.is_locked(runs.directories.config_hash(config))


@pytest.mark.parametrize("log", [None, "somewhere.log"])
@pytest.mark.parametrize("created", [False, True], ids=["no directory", "directory"])
def test_failure_is_recorded_if_there_is_a_log_or_a_directory(
    config: DictConfig, monkeypatch: pytest.MonkeyPatch, log: str | None, created: bool
) -> None:
    if log:
        monkeypatch.setenv(lock.LOG_VARIABLE, log)
    with pytest.raises(RunError, match="no disk"), lock.train_lock(config):
        _fail(config, created)
    record = lock.read_record(runs.directories.config_hash(config))
    assert (record and (record.error, record.log)) == (("no disk", log) if log or created else None)
    assert bool(files()) is bool(log or created)
    assert not lock.is_locked(runs.directories.config_hash(config))


def _fail(config: DictConfig, created: bool) -> None:
    if created:
        runs.directories.create_directory(runs.directories.choose_directory(config, "capsnet-mnist"), config)
    raise RunError("no disk")


@pytest.mark.parametrize("name", ["SLURM_PROCID", "LOCAL_RANK", "RANK", "NODE_RANK"])
def test_only_the_first_process_of_a_run_locks(config: DictConfig, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with lock.train_lock(config):
        monkeypatch.setenv(name, "1")
        with lock.train_lock(config):
            pass
        monkeypatch.setenv(name, "0")
        assert lock.is_locked(runs.directories.config_hash(config))
        monkeypatch.setattr(file_lock, "_TIMEOUT", 0)
        with pytest.raises(RunError), lock.train_lock(config):
            pass


def test_only_the_first_process_writes_the_configuration(config: DictConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "1")
    runs.directories.create_directory(Path("run"), config)
    assert files() == ["run"]
    monkeypatch.setenv("SLURM_PROCID", "0")
    runs.directories.create_directory(Path("run"), config)
    assert files() == ["run", "run/config.yaml"]


def test_run_that_goes_on_removes_what_killed_processes_left(config: DictConfig) -> None:
    leftover = Path(f"run/checkpoints/.last-{'0' * 8}-1-0123abcd.ckpt")
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    os.utime(leftover, (0, 0))
    runs.directories.create_directory(Path("run"), config)
    assert files() == ["run", "run/checkpoints", "run/config.yaml"]


@pytest.mark.parametrize(
    ("directory", "separate"),
    [("elsewhere", True), ("runs/mine", True), ("runs/table-row-HASH", False), ("runs/table-row-HASH-2", False)],
)
def test_run_in_a_directory_of_its_own_locks_that(
    config: DictConfig, monkeypatch: pytest.MonkeyPatch, directory: str, separate: bool
) -> None:
    monkeypatch.setattr(file_lock, "_TIMEOUT", 0)
    copy = config.copy()
    copy.train.directory = directory.replace("HASH", runs.directories.config_hash(config))
    with lock.train_lock(config):
        if separate:
            with lock.train_lock(copy):
                message = f"another process trains in {Path(directory).absolute()} already; wait"
                with pytest.raises(RunError, match=re.escape(message)), lock.train_lock(copy):
                    pass
            assert not Path(directory).exists()
        else:
            with pytest.raises(RunError, match="trains this configuration already"), lock.train_lock(copy):
                pass


def test_folder_that_cannot_be_written_to_is_refused(config: DictConfig) -> None:
    Path("runs").write_text("in the way")
    message = r"cannot write to \S+/runs/cells \(.*\); name a directory .*CAPSULE_LAB_RUNS=…"
    with pytest.raises(RunError, match=message), lock.train_lock(config):
        pass
    assert files() == ["runs"]


def test_second_process_is_refused_and_changes_nothing(
    cli: Callable[..., Ended], config: DictConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_lock, "_TIMEOUT", 0)
    monkeypatch.setenv(lock.LOG_VARIABLE, "first.log")
    with lock.train_lock(config):
        before = files()
        ended = cli("train", *TINY)
        assert ended.status == 2
        assert ended.err.startswith(f"capsule_lab: process {os.getpid()} on ")
        assert ended.err.endswith(
            "trains this configuration already (log: first.log); wait for it or stop it, or train beside it in a "
            "directory of its own: train.directory=…\n"
        )
        lock.record_failure(runs.directories.config_hash(config), "refused")
        assert lock.read_record(runs.directories.config_hash(config)).error is None, "the first still trains"
        assert files() == before


@pytest.mark.parametrize(
    ("signum", "requeued"), [(signal.SIGTERM, True), (signal.SIGUSR1, True), (signal.SIGINT, False)]
)
def test_requeued_run_is_locked_while_slurm_has_its_job(
    config: DictConfig, monkeypatch: pytest.MonkeyPatch, signum: int, requeued: bool
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NAME", "capsule_lab")
    monkeypatch.setenv(lock.LOG_VARIABLE, "first.log")
    with pytest.raises(InterruptError), lock.train_lock(config):
        raise InterruptError("stopped", signum)
    queue = ["7"]
    monkeypatch.setattr(slurm, "in_queue", lambda job: job in queue)
    assert lock.is_locked(runs.directories.config_hash(config)) is requeued
    queue.clear()
    assert not lock.is_locked(runs.directories.config_hash(config))
    assert lock.read_record(runs.directories.config_hash(config)).error == "stopped"
    with lock.train_lock(config):
        assert lock.read_record(runs.directories.config_hash(config)).error is None, "it goes on"


def test_killed_batch_job_is_locked_while_slurm_may_requeue_it(
    config: DictConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the failure of its machine."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NAME", "capsule_lab")
    with lock.train_lock(config):
        record = lock.read_record(runs.directories.config_hash(config))
    lock._write_record(runs.directories.config_hash(config), record)  # what kill -9 leaves
    queue = ["7"]
    monkeypatch.setattr(slurm, "in_queue", lambda job: job in queue)
    assert lock.is_locked(runs.directories.config_hash(config))
    queue.clear()
    assert not lock.is_locked(runs.directories.config_hash(config))


def test_looks_at_a_lock_neither_change_nor_meet_each_other(config: DictConfig) -> None:
    path = lock._lock_file(runs.directories.config_hash(config))
    assert not file_lock.is_held(path), "no folder"
    with file_lock.hold(path, str):
        assert file_lock.is_held(path)
        assert file_lock.is_held(path)
    assert files() == []
    path.parent.mkdir(parents=True)
    path.touch()
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # as another look does
        assert not file_lock.is_held(path)


def test_folder_that_cannot_exist_is_refused(config: DictConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt fails as if another process had just removed the folder."""
    monkeypatch.setenv("CAPSULE_LAB_RUNS", "/proc/nope")
    message = r"cannot write to /proc/nope/cells \(.*\); name a directory"
    with pytest.raises(RunError, match=message), lock.train_lock(config):
        pass


def test_failure_of_a_run_that_another_process_finished_is_not_recorded(config: DictConfig) -> None:
    fingerprint = runs.directories.config_hash(config)
    directory = runs.directories.choose_directory(config, "capsnet-mnist")
    directory.mkdir(parents=True)
    (directory / "metrics.json").write_text(json.dumps({**RESULT, "config_hash": fingerprint}))
    lock.record_failure(fingerprint, "another process trains this configuration already")
    assert lock.read_record(fingerprint) is None


def test_run_that_continues_another_configuration_takes_no_lock(config: DictConfig, trained: Trained) -> None:
    config.ckpt = str(trained.directory)
    with lock.train_lock(config):
        assert not lock.is_locked(runs.directories.config_hash(config))


def test_queued_job_locks_its_configuration(config: DictConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = ["7_1"]
    monkeypatch.setattr(slurm, "in_queue", lambda job: job in queue)
    lock.record_queued(runs.directories.config_hash(config), "7_1", "first.log")
    assert lock.is_locked(runs.directories.config_hash(config))
    lock.record_queued(runs.directories.config_hash(config), "8_1", "second.log")
    record = lock.read_record(runs.directories.config_hash(config))
    assert (record.process, record.log) == ("job 7_1 of SLURM", "first.log")
    queue.clear()
    assert not lock.is_locked(runs.directories.config_hash(config))


def _hold(config: DictConfig, connection: Connection, die: bool) -> None:
    with lock.train_lock(config):
        connection.send("locked")
        connection.recv()
        if die:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("die", [False, True], ids=["ends", "is killed"])
def test_configuration_is_locked_until_the_process(config: DictConfig, die: bool) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_hold, args=(config, theirs, die), daemon=True)
    process.start()
    assert ours.poll(20)
    assert ours.recv() == "locked"
    assert lock.is_locked(runs.directories.config_hash(config))
    ours.send("go on")
    process.join()
    assert not lock.is_locked(runs.directories.config_hash(config))
    assert (lock.read_record(runs.directories.config_hash(config)) is not None) is die
    with lock.train_lock(config):
        pass
    assert {*files()} <= {"runs"}, "nothing is left"
