"""One process at a time trains a configuration: a lock while it runs, and a record of how it failed.

Both are files in ``cells/`` beside the run directories, with the configuration's hash as name. A run that finishes
removes both. A record without a lock belongs to a run that failed or was killed.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout
from omegaconf import DictConfig
from pydantic import TypeAdapter

from capsule_lab.errors import InterruptError, RunError
from capsule_lab.runs.directories import (
    attempts,
    config_hash,
    continues_another,
    hash_in,
    is_attempt,
    own_directory,
    root,
)
from capsule_lab.runs.files import read_record as read_file
from capsule_lab.runs.files import write_record as write_file
from capsule_lab.runs.results import Heartbeat, describe_error, read_result
from capsule_lab.system import protocol, slurm
from capsule_lab.system.environment import is_first_process
from capsule_lab.system.files import open_regular

_HEARTBEAT_SECONDS = 60  # ours: six times the interval of ``callbacks/progress.py``
_TIMEOUT = 1.0  # ours: seconds; `is_locked` in another process holds the lock briefly


@dataclass(frozen=True)
class LockRecord:
    """The record of a run that has not finished."""

    process: str  # its number and machine
    log: str | None  # the file with its output, if a launcher set one
    error: str | None = None  # why it failed; None while it runs, or if it was killed
    queued: str | None = None  # its SLURM job, if it may start or be requeued


_SCHEMA = TypeAdapter(LockRecord)


@contextmanager
def train_lock(config: DictConfig) -> Iterator[None]:
    """Hold the lock of a configuration while this process trains it; if training fails, record the reason.

    Only the first process of a run locks. Runs that tables do not use have no record: with ``train.directory`` that
    directory is locked; a run that continues another configuration's checkpoint takes a ``directory_lock``.
    """
    with _lock_of(config) if is_first_process() else nullcontext():
        yield


def _lock_of(config: DictConfig) -> AbstractContextManager[None]:
    fingerprint = config_hash(config)
    directory = own_directory(config)
    if directory is None:
        return nullcontext() if continues_another(config) else cell_lock(fingerprint)
    if is_attempt(directory, fingerprint):
        return cell_lock(fingerprint)
    return _hold_directory(directory)


@contextmanager
def directory_lock(config: DictConfig, directory: Path) -> Iterator[None]:
    """Hold the lock of the directory that was chosen for a run, if ``train_lock`` holds none."""
    is_unlocked = own_directory(config) is None and continues_another(config)
    with _hold_directory(directory) if is_unlocked and is_first_process() else nullcontext():
        yield


def _hold_directory(directory: Path) -> AbstractContextManager[None]:
    refusal = f"another process already trains in {directory}; wait for it or stop it"
    return _hold(directory / ".lock", lambda: refusal)


@contextmanager
def cell_lock(fingerprint: str) -> Iterator[None]:
    """Hold the lock for the training run or evaluation with this hash; if it fails, record the reason."""
    with _hold(_lock_file(fingerprint), lambda: _trained_by(fingerprint)), _recorded(fingerprint):
        yield


@contextmanager
def _hold(path: Path, refusal: Callable[[], str]) -> Iterator[None]:
    """Hold a lock on a file, which the kernel releases even if this process is killed; remove empty folders."""
    missing = [folder for folder in path.parents if not folder.exists()]
    lock = FileLock(path)
    try:
        try:
            lock.acquire(timeout=_TIMEOUT)  # creates the folder
        except FileNotFoundError:  # another process has just removed the empty folder
            lock.acquire(timeout=_TIMEOUT)
    except Timeout as error:
        raise RunError(refusal()) from error
    except OSError as error:
        raise RunError(
            f"cannot write to {path.parent} ({error.strerror}); choose a writable directory with CAPSULE_LAB_RUNS=… "
            "for all runs, or with train.directory=…"
        ) from error
    try:
        yield
    finally:
        # before the release: filelock notices a removed file and tries again
        path.unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):  # not empty
            for folder in dict.fromkeys((path.parent, *missing)):
                folder.rmdir()


def _is_held(path: Path) -> bool:
    """Return whether a process holds the lock on a file, without creating it; several processes may check at once."""
    try:
        with open_regular(path, inside=path.parent) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:  # other errors mean that the file does not exist
        return isinstance(error, BlockingIOError)
    return False


@contextmanager
def _recorded(fingerprint: str) -> Iterator[None]:
    """Record that this process trains, and if it fails, the reason."""
    job = slurm.this_job() if slurm.is_batch_job() else None
    record = LockRecord(
        process=f"{os.getpid()} on {socket.gethostname()}",
        log=os.environ.get(protocol.LOG),
        queued=job,  # SLURM requeues a job whose machine fails
    )
    try:
        _write_record(fingerprint, record)
        yield
        _record_file(fingerprint).unlink(missing_ok=True)
    except BaseException as error:
        with suppress(RunError, OSError):  # the disk may be full, which is then the error
            if record.log or attempts(fingerprint):
                is_requeued = isinstance(error, InterruptError) and slurm.goes_back(error.signum)
                queued = job if is_requeued else None
                failed = replace(record, error=describe_error(error), queued=queued)
                _write_record(fingerprint, failed)
            else:  # rejected before anything was written; the terminal shows the reason
                _record_file(fingerprint).unlink(missing_ok=True)
        raise


def record_failure(fingerprint: str, error: str) -> None:
    """Record why a job failed if it could not record this itself: it was killed, or failed before training."""
    record = read_record(fingerprint) or LockRecord("unknown", None)
    if record.error is not None or is_locked(fingerprint):
        return
    if any(read_result(directory, fingerprint) for directory in attempts(fingerprint)):
        return  # another process has finished it
    _write_record(fingerprint, replace(record, error=error, queued=None))


def record_queued(fingerprint: str, job: str, log: str) -> None:
    """Record that a SLURM job will train or evaluate the cell with this hash, unless it is already locked."""
    if not is_locked(fingerprint):
        _write_record(fingerprint, LockRecord(f"SLURM job {job}", log, queued=job))


def is_alive(directory: Path, beat: Heartbeat | None) -> bool:
    """Return whether a process trains in a run directory: it holds a lock or, elsewhere, has a recent heartbeat.

    The lock of a configuration is that of its latest run, or of one with a recent heartbeat. Locks are not visible from
    other machines on every file system.
    """
    if _is_held(directory / ".lock"):
        return True
    fingerprint = hash_in(directory)
    if fingerprint is not None and is_locked(fingerprint):
        tried = attempts(fingerprint)
        is_latest = directory in tried[:1]
        # an earlier one trains if it is named by ckpt or train.directory
        if is_latest or (directory in tried and beat is not None and is_recent(beat)):
            return True
    return beat is not None and beat.host != socket.gethostname() and is_recent(beat)


def is_recent(beat: Heartbeat) -> bool:
    """Return whether a heartbeat is so recent that its run trains; an older one may be of an earlier process.

    One from the future is of a process before the clock was set back.
    """
    return abs(time.time() - beat.time) < _HEARTBEAT_SECONDS


def is_locked(fingerprint: str) -> bool:
    """Return whether a process trains this configuration, or a job in SLURM's queue will."""
    if _is_held(_lock_file(fingerprint)):
        return True
    record = read_record(fingerprint)
    return bool(record and record.queued and slurm.in_queue(record.queued))


def read_record(fingerprint: str) -> LockRecord | None:
    """Return the record of an unfinished run; ``None`` if it does not exist or is damaged."""
    content = read_file(_record_file(fingerprint), _SCHEMA, root())
    return _SCHEMA.validate_python(content) if content else None


def _trained_by(fingerprint: str) -> str:
    other = read_record(fingerprint) or LockRecord("of another command", None)
    log = f" (log: {other.log})" if other.log else ""
    return (
        f"process {other.process} already trains this configuration{log}; wait for it or stop it, or train in another "
        "directory with train.directory=…"
    )


def _record_file(fingerprint: str) -> Path:
    return root() / "cells" / f"{fingerprint}.json"


def _lock_file(fingerprint: str) -> Path:
    return _record_file(fingerprint).with_suffix(".lock")


def _write_record(fingerprint: str, record: LockRecord) -> None:
    write_file(_record_file(fingerprint), asdict(record))
