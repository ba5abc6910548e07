"""Only one process at a time trains a configuration; a record keeps the error of a failed run."""

import json
import multiprocessing
import os
import re
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from omegaconf import DictConfig

from capsule_lab import runs
from capsule_lab.commands import compose
from capsule_lab.errors import InterruptError, RunError
from capsule_lab.runs import lock
from capsule_lab.system import protocol, slurm
from tests.helpers.commands import Cli, Trained
from tests.helpers.tables import RESULT, TINY


@pytest.fixture(scope="module")
def composed() -> DictConfig:
    return compose("train", TINY)


@pytest.fixture
def config(composed: DictConfig, monkeypatch: pytest.MonkeyPatch) -> DictConfig:
    monkeypatch.setattr(lock, "_TIMEOUT", 0)
    return composed.copy()


@pytest.fixture(scope="module")
def fingerprint(composed: DictConfig) -> str:
    return runs.directories.config_hash(composed)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """This process belongs to SLURM's job 7. The list holds the jobs in SLURM's queue."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NAME", "capsule_lab")
    jobs: list[str] = []
    monkeypatch.setattr(slurm, "in_queue", lambda job: job in jobs)
    return jobs


def is_refused(config: DictConfig, message: str = "already trains this configuration") -> bool:
    with pytest.raises(RunError, match=message), lock.train_lock(config):
        pass
    return True


@pytest.mark.parametrize(
    ("log", "created"), [(None, False), (None, True), ("somewhere.log", False)]
)
def test_failure_is_recorded_if_there_is_a_log_or_a_directory(
    config: DictConfig,
    fingerprint: str,
    monkeypatch: pytest.MonkeyPatch,
    log: str | None,
    created: bool,
) -> None:
    if log:
        monkeypatch.setenv(protocol.LOG, log)
    if created:
        directory = runs.directories.choose_directory(config, "capsnet-mnist")
        runs.directories.create_directory(directory, config)
    with pytest.raises(RunError, match="no disk"), lock.train_lock(config):
        raise RunError("no disk")
    record = lock.read_record(fingerprint)
    if log or created:
        assert record is not None
        assert record.error == "no disk"
        assert record.log == log
    else:
        assert record is None
    assert not lock.is_locked(fingerprint)


def test_only_the_first_process_of_a_run_locks(
    config: DictConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lock.train_lock(config):
        for name in ("SLURM_PROCID", "LOCAL_RANK", "RANK", "NODE_RANK"):
            monkeypatch.setenv(name, "1")
            with lock.train_lock(config):
                pass
            monkeypatch.setenv(name, "0")
        assert is_refused(config)


@pytest.mark.parametrize(
    ("directory", "separate"), [("elsewhere", True), ("runs/table-row-HASH-2", False)]
)
def test_run_in_its_own_directory_locks_that_directory(
    config: DictConfig, fingerprint: str, directory: str, separate: bool
) -> None:
    copy = config.copy()
    copy.train.directory = directory.replace("HASH", fingerprint)
    with lock.train_lock(config):
        if separate:
            message = f"another process already trains in {Path(directory).absolute()};"
            with lock.train_lock(copy):
                assert is_refused(copy, re.escape(message))
        else:
            assert is_refused(copy)


def test_folder_that_cannot_be_written_to_is_refused(
    config: DictConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("file").write_text("in the way")
    monkeypatch.setenv("CAPSULE_LAB_RUNS", "file")
    message = (
        r"cannot write to \S+/cells \(.*\); choose a writable directory with CAPSULE_LAB_RUNS=…"
    )
    assert is_refused(config, message)


def test_second_process_is_refused_and_changes_nothing(
    cli: Cli, config: DictConfig, fingerprint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(protocol.LOG, "first.log")
    with lock.train_lock(config):
        before = sorted(Path().rglob("*"))
        ended = cli("train", *TINY)
        assert ended.status == 2
        assert ended.err.startswith(f"capsule_lab: process {os.getpid()} on ")
        assert (
            "already trains this configuration (log: first.log); wait for it or stop it, or train "
            in ended.err
        )
        lock.record_failure(fingerprint, "refused")
        assert lock.read_record(fingerprint).error is None, "the first still trains"
        assert sorted(Path().rglob("*")) == before
    assert [*Path().iterdir()] == [], "nothing is left"


@pytest.mark.parametrize(("signum", "requeued"), [(signal.SIGUSR1, True), (signal.SIGINT, False)])
def test_requeued_run_is_locked_while_slurm_has_its_job(
    config: DictConfig,
    fingerprint: str,
    monkeypatch: pytest.MonkeyPatch,
    queue: list[str],
    signum: int,
    requeued: bool,
) -> None:
    monkeypatch.setenv(protocol.LOG, "first.log")
    with pytest.raises(InterruptError), lock.train_lock(config):
        raise InterruptError("stopped", signum)
    queue.append("7")
    assert lock.is_locked(fingerprint) is requeued
    queue.clear()
    assert not lock.is_locked(fingerprint)
    assert lock.read_record(fingerprint).error == "stopped"
    with lock.train_lock(config):
        record = lock.read_record(fingerprint)
        assert record.error is None, "it continues"
    lock._write_record(fingerprint, record)  # what kill -9 leaves, or the failure of a machine
    queue.append("7")
    assert lock.is_locked(fingerprint), "SLURM may requeue it"


def test_finished_and_continued_runs_leave_no_record(
    config: DictConfig, fingerprint: str, trained: Trained
) -> None:
    directory = runs.directories.choose_directory(config, "capsnet-mnist")
    directory.mkdir(parents=True)
    (directory / "metrics.json").write_text(json.dumps({**RESULT, "config_hash": fingerprint}))
    lock.record_failure(fingerprint, "another process already trains this configuration")
    assert lock.read_record(fingerprint) is None, "another process has finished it"
    config.ckpt = str(trained.directory)
    with lock.train_lock(config):
        assert not lock.is_locked(fingerprint), "it continues another configuration"


def _hold(config: DictConfig, connection: Connection, die: bool) -> None:
    with lock.train_lock(config):
        connection.send("locked")
        connection.recv()
        if die:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("die", [False, True], ids=["ends", "is killed"])
def test_lock_ends_with_its_process(config: DictConfig, fingerprint: str, die: bool) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_hold, args=(config, theirs, die), daemon=True
    )
    process.start()
    assert ours.poll(20)
    assert ours.recv() == "locked"
    assert lock.is_locked(fingerprint)
    assert lock.is_locked(fingerprint), "several processes can look"
    ours.send("go on")
    process.join()
    assert not lock.is_locked(fingerprint)
    assert (lock.read_record(fingerprint) is not None) is die
    with lock.train_lock(config):
        pass
    assert not lock.read_record(fingerprint)
