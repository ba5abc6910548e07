"""Who trains a configuration: a lock for as long as the process lives, and a record of how it ended.

Both lie in ``cells/`` beside the run directories and are named after the configuration's hash. A run that ends well
leaves neither. A record that is there while nobody holds the lock is that of a run that failed or was killed.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from omegaconf import DictConfig

from capsule_lab import slurm
from capsule_lab.config import user_message
from capsule_lab.errors import InterruptError, RunError
from capsule_lab.runs.directories import attempts, config_hash, continues_another, is_attempt, is_first_process, root
from capsule_lab.runs.files import write_json
from capsule_lab.runs.results import result_of

LOG = "CAPSULE_LAB_LOG"
"""Environment variable in which a launcher says where the output of this process goes."""

_PATIENCE = 1.0  # ours: seconds, as somebody who only looks holds the lock for a moment
_LOOK = 0.1  # ours: seconds, as somebody else may be looking


@dataclass(frozen=True)
class Claim:
    """What is known of a run that began and has not finished.

    Attributes:
        process: its number, and on which machine.
        log: where its output goes, if a launcher said so.
        error: why it ended.
        queued: the job of SLURM that it is, which may wait to begin, or be sent back into the queue to go on.
    """

    process: str
    log: str | None
    error: str | None = None
    queued: str | None = None


@contextmanager
def claim(config: DictConfig) -> Iterator[None]:
    """While this process trains ``config`` where tables look for it, no other does; a record says how it failed.

    A run that has a directory of its own, or goes on from another configuration's, is nobody else's business.

    Raises:
        RunError: if another process trains it already.
    """
    fingerprint = config_hash(config)
    if not _is_looked_for(config, fingerprint) or not is_first_process():  # the first of a run claims it for all
        yield
        return
    ours = [_file(fingerprint).parent, *([] if root().exists() else [root()])]
    lock = _acquired(fingerprint)
    job = slurm.this_job() if slurm.is_batch_job() else None  # SLURM itself requeues what dies with its machine
    mine = Claim(f"{os.getpid()} on {socket.gethostname()}", os.environ.get(LOG), queued=job)
    try:
        _write(fingerprint, mine)
        yield
        _file(fingerprint).unlink(missing_ok=True)
    except BaseException as error:
        if mine.log or attempts(fingerprint):
            reason = user_message(error) or f"{type(error).__name__}: {' '.join(str(error).split())}"
            back = isinstance(error, InterruptError) and slurm.goes_back(error.signum)
            _write(fingerprint, Claim(mine.process, mine.log, reason, job if back else None))
        else:  # nothing was written before everything stood, and whoever started it reads what was wrong
            _file(fingerprint).unlink(missing_ok=True)
        raise
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)  # while it is held: whoever opened it before notices
        lock.release()
        for folder in ours:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def note_failure(fingerprint: str, error: str) -> None:
    """Record why a job failed that could not do so itself, having been killed or never come to training."""
    record = record_of(fingerprint)
    finished = any(result_of(directory, fingerprint) for directory in attempts(fingerprint))  # by another process
    if (record is None or record.error is None) and not finished and not is_claimed(fingerprint):
        known = record or Claim("unknown", None)
        _write(fingerprint, Claim(known.process, known.log, error))


def note_queued(config: DictConfig, job: str, log: str) -> None:
    """Record that a job of SLURM will train ``config``, unless it has begun."""
    fingerprint = config_hash(config)
    if _is_looked_for(config, fingerprint) and not is_claimed(fingerprint):
        _write(fingerprint, Claim(f"job {job} of SLURM", log, queued=job))


def is_claimed(fingerprint: str) -> bool:
    """Whether a process trains that configuration now, or a job in the queue of SLURM is going to."""
    lock = _lock(fingerprint)
    if Path(lock.lock_file).exists():
        try:
            with lock.acquire(timeout=_LOOK):
                pass
        except Timeout:
            return True
    record = record_of(fingerprint)
    return bool(record and record.queued and slurm.in_queue(record.queued))


def record_of(fingerprint: str) -> Claim | None:
    """The record of a run that has not finished, or ``None``."""
    try:
        return Claim(**json.loads(_file(fingerprint).read_text()))
    except FileNotFoundError:
        return None


def _is_looked_for(config: DictConfig, fingerprint: str) -> bool:
    """Whether the run will be where tables look for it, rather than in a directory of its own."""
    if config.train.directory:
        return is_attempt(Path(str(config.train.directory)).absolute(), fingerprint)
    return not continues_another(config)


def _acquired(fingerprint: str) -> FileLock:
    lock = _lock(fingerprint)
    while True:
        try:
            lock.acquire(timeout=_PATIENCE)
        except Timeout as error:
            other = record_of(fingerprint)
            who = f"process {other.process}" if other else "another process"
            log = f" (log: {other.log})" if other and other.log else ""
            raise RunError(
                f"{who} trains this configuration already{log}; wait for it or stop it, or train beside it in a "
                "place of its own: train.directory=…"
            ) from error
        except FileNotFoundError:
            continue  # another process has just removed the folder, which was empty
        except OSError as error:
            raise RunError(
                f"cannot write to {root()} ({error.strerror}); name a directory you may write to: CAPSULE_LAB_RUNS=… "
                "for all runs, or train.directory=…"
            ) from error
        return lock


def _file(fingerprint: str) -> Path:
    return root() / "cells" / f"{fingerprint}.json"


def _lock(fingerprint: str) -> FileLock:
    return FileLock(_file(fingerprint).with_suffix(".lock"))


def _write(fingerprint: str, record: Claim) -> None:
    write_json(_file(fingerprint), asdict(record))
