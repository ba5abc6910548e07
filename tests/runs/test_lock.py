"""One process at a time trains a configuration where tables look for it, and says how that ended."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from omegaconf import DictConfig

from capsule_lab import runs, slurm
from capsule_lab.config import compose
from capsule_lab.errors import InterruptError, RunError
from capsule_lab.runs import lock
from tests.helpers.commands import Ended, Trained
from tests.helpers.tables import TINY


@pytest.fixture(scope="module")
def composed() -> DictConfig:
    return compose("train", TINY)


@pytest.fixture
def config(composed: DictConfig) -> DictConfig:
    return composed.copy()


def files() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))


@pytest.mark.parametrize("own", [False, True], ids=["new folder", "runs is there"])
def test_claim_that_ended_well_leaves_nothing(config: DictConfig, own: bool) -> None:
    if own:
        Path("runs").mkdir()
    with lock.claim(config):
        assert lock.record_of(runs.config_hash(config)).process.startswith(f"{os.getpid()} on ")
        assert lock.is_claimed(runs.config_hash(config))
    assert files() == (["runs"] if own else [])
    assert lock.record_of(runs.config_hash(config)) is None
    assert not lock.is_claimed(runs.config_hash(config))


@pytest.mark.parametrize("log", [None, "somewhere.log"])
@pytest.mark.parametrize("begun", [False, True], ids=["no directory", "directory"])
def test_claim_that_failed_says_why_if_there_is_anything_to_show(
    config: DictConfig, monkeypatch: pytest.MonkeyPatch, log: str | None, begun: bool
) -> None:
    if log:
        monkeypatch.setenv(lock.LOG, log)
    with pytest.raises(RunError, match="no disk"), lock.claim(config):
        _fail(config, begun)
    record = lock.record_of(runs.config_hash(config))
    assert (record and (record.error, record.log)) == (("no disk", log) if log or begun else None)
    assert bool(files()) is bool(log or begun)
    assert not lock.is_claimed(runs.config_hash(config))


def _fail(config: DictConfig, begun: bool) -> None:
    if begun:
        runs.open_directory(runs.choose_directory(config, "capsnet-mnist"), config)
    raise RunError("no disk")


@pytest.mark.parametrize("name", ["SLURM_PROCID", "LOCAL_RANK", "RANK", "NODE_RANK"])
def test_only_the_first_process_of_a_run_claims_it(
    config: DictConfig, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with lock.claim(config):
        monkeypatch.setenv(name, "1")
        with lock.claim(config):
            pass
        monkeypatch.setenv(name, "0")
        assert lock.is_claimed(runs.config_hash(config))
        monkeypatch.setattr(lock, "_PATIENCE", 0)
        with pytest.raises(RunError), lock.claim(config):
            pass


def test_process_that_comes_before_the_first_one_leaves_the_directory_to_it(
    config: DictConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "1")
    runs.open_directory(Path("run"), config)
    assert files() == ["run"]
    monkeypatch.setenv("SLURM_PROCID", "0")
    runs.open_directory(Path("run"), config)
    assert files() == ["run", "run/config.yaml"]


@pytest.mark.parametrize(
    ("directory", "beside"),
    [("elsewhere", True), ("runs/mine", True), ("runs/table-row-HASH", False), ("runs/table-row-HASH-2", False)],
)
def test_run_in_a_place_of_its_own_is_nobody_elses_business(
    config: DictConfig, monkeypatch: pytest.MonkeyPatch, directory: str, beside: bool
) -> None:
    monkeypatch.setattr(lock, "_PATIENCE", 0)
    copy = config.copy()
    copy.train.directory = directory.replace("HASH", runs.config_hash(config))
    with lock.claim(config):
        if beside:
            with lock.claim(copy):
                pass
        else:
            with pytest.raises(RunError, match="trains this configuration already"), lock.claim(copy):
                pass


def test_folder_that_cannot_be_written_to_is_refused(config: DictConfig) -> None:
    Path("runs").write_text("in the way")
    sentence = r"cannot write to \S+/runs \(.*\); name a directory .*CAPSULE_LAB_RUNS=…"
    with pytest.raises(RunError, match=sentence), lock.claim(config):
        pass
    assert files() == ["runs"]


def test_second_process_is_refused_and_changes_nothing(
    cli: Callable[..., Ended], config: DictConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_PATIENCE", 0)
    monkeypatch.setenv(lock.LOG, "first.log")
    with lock.claim(config):
        before = files()
        ended = cli("train", *TINY)
        assert ended.status == 2
        assert ended.err.startswith(f"capsule_lab: process {os.getpid()} on ")
        assert ended.err.endswith(
            "trains this configuration already (log: first.log); wait for it or stop it, or train beside it in a place "
            "of its own: train.directory=…\n"
        )
        lock.note_failure(runs.config_hash(config), "refused")
        assert lock.record_of(runs.config_hash(config)).error is None, "the first still trains"
        assert files() == before


@pytest.mark.parametrize(("signum", "waits"), [(signal.SIGTERM, True), (signal.SIGUSR1, True), (signal.SIGINT, False)])
def test_run_that_went_back_into_the_queue_of_slurm_is_claimed_as_long_as_it_waits_there(
    config: DictConfig, monkeypatch: pytest.MonkeyPatch, signum: int, waits: bool
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NAME", "capsule_lab")
    monkeypatch.setenv(lock.LOG, "first.log")
    with pytest.raises(InterruptError), lock.claim(config):
        raise InterruptError("stopped", signum)
    queue = ["7"]
    monkeypatch.setattr(slurm, "in_queue", lambda job: job in queue)
    assert lock.is_claimed(runs.config_hash(config)) is waits
    queue.clear()
    assert not lock.is_claimed(runs.config_hash(config))
    assert lock.record_of(runs.config_hash(config)).error == "stopped"
    with lock.claim(config):
        assert lock.record_of(runs.config_hash(config)).error is None, "it goes on"


def test_batch_job_that_dies_without_a_word_is_claimed_as_long_as_slurm_may_send_it_back(
    config: DictConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the failure of its machine."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NAME", "capsule_lab")
    with lock.claim(config):
        record = lock.record_of(runs.config_hash(config))
    lock._write(runs.config_hash(config), record)  # what kill -9 leaves
    queue = ["7"]
    monkeypatch.setattr(slurm, "in_queue", lambda job: job in queue)
    assert lock.is_claimed(runs.config_hash(config))
    queue.clear()
    assert not lock.is_claimed(runs.config_hash(config))


def test_onlooker_is_not_taken_for_a_run(config: DictConfig) -> None:
    fingerprint = runs.config_hash(config)
    lock._write(fingerprint, lock.Claim("dead", None))
    looking = FileLock(lock._lock(fingerprint).lock_file, thread_local=False)
    looking.acquire()
    threading.Timer(lock._LOOK / 4, looking.release).start()
    assert not lock.is_claimed(fingerprint)


def test_failure_of_a_run_that_another_process_finished_is_not_noted(config: DictConfig) -> None:
    fingerprint = runs.config_hash(config)
    directory = runs.choose_directory(config, "capsnet-mnist")
    runs.write_json(directory / "metrics.json", {"status": "finished", "config_hash": fingerprint})
    lock.note_failure(fingerprint, "another process trains this configuration already")
    assert lock.record_of(fingerprint) is None


def test_run_that_goes_on_from_another_configuration_is_no_claim(config: DictConfig, trained: Trained) -> None:
    config.ckpt = str(trained.directory)
    with lock.claim(config):
        assert not lock.is_claimed(runs.config_hash(config))


@pytest.mark.parametrize(("directory", "noted"), [(None, True), ("elsewhere", False)])
def test_job_that_waits_to_begin_has_claimed_its_configuration(
    config: DictConfig, monkeypatch: pytest.MonkeyPatch, directory: str | None, noted: bool
) -> None:
    config.train.directory = directory
    queue = ["7_1"]
    monkeypatch.setattr(slurm, "in_queue", lambda job: job in queue)
    lock.note_queued(config, "7_1", "first.log")
    assert lock.is_claimed(runs.config_hash(config)) is noted
    lock.note_queued(config, "8_1", "second.log")
    record = lock.record_of(runs.config_hash(config))
    assert (record and (record.process, record.log)) == (("job 7_1 of SLURM", "first.log") if noted else None)
    queue.clear()
    assert not lock.is_claimed(runs.config_hash(config))


def _hold(config: DictConfig, told, die: bool) -> None:
    with lock.claim(config):
        told.send("claimed")
        told.recv()
        if die:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("die", [False, True], ids=["ends", "is killed"])
def test_configuration_is_claimed_until_the_process(config: DictConfig, die: bool) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_hold, args=(config, theirs, die), daemon=True)
    process.start()
    assert ours.poll(20)
    assert ours.recv() == "claimed"
    assert lock.is_claimed(runs.config_hash(config))
    ours.send("go on")
    process.join()
    assert not lock.is_claimed(runs.config_hash(config))
    assert (lock.record_of(runs.config_hash(config)) is not None) is die
    with lock.claim(config):
        pass
    assert {*files()} <= {"runs"}, "nothing is left of it"
