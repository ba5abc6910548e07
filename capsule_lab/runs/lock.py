"""One process at a time trains a configuration: a lock while it runs, and a record of how it failed.

Both are files in ``cells/`` beside the run directories, named after the configuration's hash. A run that finishes
removes both. A record without a lock is that of a run that failed or was killed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from omegaconf import DictConfig
from pydantic import ConfigDict, TypeAdapter

from capsule_lab.errors import InterruptError, RunError
from capsule_lab.runs import file_lock
from capsule_lab.runs.directories import (
    attempts,
    config_hash,
    continues_another,
    is_attempt,
    is_first_process,
    own_directory,
    root,
)
from capsule_lab.runs.files import read_record as read_file
from capsule_lab.runs.files import write_record as write_file
from capsule_lab.runs.results import describe_error, read_result
from capsule_lab.system import slurm
from capsule_lab.system.signals import postponed

LOG_VARIABLE = "CAPSULE_LAB_LOG"
"""Environment variable in which a launcher names the file that has the output of this process."""


@dataclass(frozen=True)
class LockRecord:
    """The record of a run that has not finished.

    Attributes:
        process: its number and its machine.
        log: the file with its output, if a launcher named one.
        error: why it failed; ``None`` while it runs, and if it was killed.
        queued: its SLURM job, if that may start or be requeued.
    """

    process: str
    log: str | None
    error: str | None = None
    queued: str | None = None

    __pydantic_config__ = ConfigDict(extra="forbid")


_SCHEMA = TypeAdapter(LockRecord)


@contextmanager
def train_lock(config: DictConfig) -> Iterator[None]:
    """Hold the lock of a configuration while this process trains it; if that fails, record why.

    Only the first process of a run locks. What tables would not find has no record: of a run with a directory of its
    own that directory is locked; one that continues another configuration's checkpoint takes no lock.

    Raises:
        RunError: if another process holds the lock.
    """
    fingerprint = config_hash(config)
    own = own_directory(config)
    if not is_first_process():
        yield
    elif _is_attempt(config, fingerprint):
        with cell_lock(fingerprint):
            yield
    elif own:
        with file_lock.hold(own / ".lock", lambda: f"another process trains in {own} already; wait for it or stop it"):
            yield
    else:
        yield


@contextmanager
def cell_lock(fingerprint: str) -> Iterator[None]:
    """Hold the lock of a training run or an evaluation that tables find by this hash; if it fails, record why.

    Raises:
        RunError: if another process holds the lock.
    """
    try:
        with file_lock.hold(_lock_file(fingerprint), lambda: _trained_by(fingerprint)), _recorded(fingerprint):
            yield
    finally:
        with suppress(OSError):  # not empty
            _record_file(fingerprint).parent.rmdir()


@contextmanager
def _recorded(fingerprint: str) -> Iterator[None]:
    """Record that this process trains, and if that fails, why."""
    job = slurm.this_job() if slurm.is_batch_job() else None  # SLURM requeues a job whose machine fails
    record = LockRecord(f"{os.getpid()} on {socket.gethostname()}", os.environ.get(LOG_VARIABLE), queued=job)
    try:
        _write_record(fingerprint, record)
        yield
        _remove_record(fingerprint)
    except BaseException as error:
        with postponed():
            if record.log or attempts(fingerprint):
                requeued = isinstance(error, InterruptError) and slurm.goes_back(error.signum)
                failed = replace(record, error=describe_error(error), queued=job if requeued else None)
                with suppress(RunError):  # a full disk, which is then the error
                    _write_record(fingerprint, failed)
            else:  # refused before anything was written; the terminal shows why
                _remove_record(fingerprint)
        raise


def record_failure(fingerprint: str, error: str) -> None:
    """Record why a job failed that could not do so itself: it was killed, or failed before training."""
    record = read_record(fingerprint)
    finished = any(read_result(directory, fingerprint) for directory in attempts(fingerprint))  # by another process
    if (record is None or record.error is None) and not finished and not is_locked(fingerprint):
        known = record or LockRecord("unknown", None)
        _write_record(fingerprint, replace(known, error=error, queued=None))


def record_queued(fingerprint: str, job: str, log: str) -> None:
    """Record that a SLURM job will train or evaluate what has that hash, unless it is locked already."""
    if not is_locked(fingerprint):
        _write_record(fingerprint, LockRecord(f"job {job} of SLURM", log, queued=job))


def is_locked(fingerprint: str) -> bool:
    """Whether a process trains that configuration, or a job in the queue of SLURM will."""
    if file_lock.is_held(_lock_file(fingerprint)):
        return True
    record = read_record(fingerprint)
    return bool(record and record.queued and slurm.in_queue(record.queued))


def read_record(fingerprint: str) -> LockRecord | None:
    """The record of a run that has not finished; ``None`` if there is none, or it is damaged."""
    content = read_file(_record_file(fingerprint), _SCHEMA)
    return LockRecord(**content) if content else None


def _is_attempt(config: DictConfig, fingerprint: str) -> bool:
    """Whether ``directories.attempts`` will find the run."""
    own = own_directory(config)
    return is_attempt(own, fingerprint) if own else not continues_another(config)


def _trained_by(fingerprint: str) -> str:
    other = read_record(fingerprint)
    process = f"process {other.process}" if other else "another process"
    log = f" (log: {other.log})" if other and other.log else ""
    return (
        f"{process} trains this configuration already{log}; wait for it or stop it, or train beside it in a "
        "directory of its own: train.directory=…"
    )


def _record_file(fingerprint: str) -> Path:
    return root() / "cells" / f"{fingerprint}.json"


def _lock_file(fingerprint: str) -> Path:
    return _record_file(fingerprint).with_suffix(".lock")


def _write_record(fingerprint: str, record: LockRecord) -> None:
    write_file(_record_file(fingerprint), asdict(record))


def _remove_record(fingerprint: str) -> None:
    with suppress(OSError):  # of a directory that has become read-only
        _record_file(fingerprint).unlink(missing_ok=True)
