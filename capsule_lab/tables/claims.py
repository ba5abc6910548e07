"""Who trains which cell of a table: a lock for as long as the process lives, and a record of how it ended.

Both lie in ``cells/`` beside the run directories and are named after the configuration's hash. A record that is still
there when nobody holds the lock is that of a run that failed or was killed.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from omegaconf import DictConfig

from capsule_lab import runs
from capsule_lab.command import in_one_sentence

LOG = "CAPSULE_LAB_LOG"
"""Environment variable in which a launcher says where the output of this process goes."""

_PATIENCE = 10  # ours: seconds, as somebody who only looks holds the lock for a moment


@dataclass(frozen=True)
class Record:
    """What is known of a run that began and has not finished."""

    process: str
    log: str | None
    error: str | None = None


@contextmanager
def claim(config: DictConfig) -> Iterator[None]:
    """While this process trains ``config``, no other does; if it fails, the record says why.

    Raises:
        RunError: if another process does already.
    """
    if os.environ.get("SLURM_PROCID", "0") != "0":
        yield  # the first process of the run claims it for all
        return
    fingerprint = runs.config_hash(config)
    lock = _lock(fingerprint)
    lock_file = Path(lock.lock_file)
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire(timeout=_PATIENCE)
    except Timeout as error:
        here = record_of(fingerprint)
        raise runs.RunError(
            f"another process trains this configuration already ({here.process if here else lock_file}); wait for it"
        ) from error
    record = Record(f"{os.getpid()} on {socket.gethostname()}", os.environ.get(LOG))
    try:
        _write(fingerprint, record)
        yield
        _file(fingerprint).unlink(missing_ok=True)
    except BaseException as error:
        reason = in_one_sentence(error) or f"{type(error).__name__}: {' '.join(str(error).split())}"
        _write(fingerprint, Record(record.process, record.log, reason))
        raise
    finally:
        lock.release()


def note_failure(fingerprint: str, error: str) -> None:
    """Record why a job failed that could not do so itself, having been killed or never come to training."""
    record = record_of(fingerprint)
    if record is None or record.error is None:
        known = record or Record("unknown", None)
        _write(fingerprint, Record(known.process, known.log, error))


def is_claimed(fingerprint: str) -> bool:
    """Whether a process trains that configuration now."""
    lock = _lock(fingerprint)
    if not Path(lock.lock_file).exists():
        return False
    try:
        with lock.acquire(timeout=0):
            return False
    except Timeout:
        return True


def record_of(fingerprint: str) -> Record | None:
    """The record of a run that has not finished, or ``None``."""
    file = _file(fingerprint)
    return Record(**json.loads(file.read_text())) if file.is_file() else None


def _file(fingerprint: str) -> Path:
    return runs.root() / "cells" / f"{fingerprint}.json"


def _lock(fingerprint: str) -> FileLock:
    return FileLock(_file(fingerprint).with_suffix(".lock"))


def _write(fingerprint: str, record: Record) -> None:
    runs.write_json(_file(fingerprint), asdict(record))
