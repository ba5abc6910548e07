"""Locks of the kernel on files, which it releases also if the process that holds one is killed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from capsule_lab.errors import RunError
from capsule_lab.system.signals import postponed

_TIMEOUT = 1.0  # ours: seconds; `is_held` in another process holds the lock for a moment
_ATTEMPTS = 100  # ours: so often may other processes remove the empty folder in the meantime


@contextmanager
def hold(path: Path, refusal: Callable[[], str]) -> Iterator[None]:
    """Hold the lock on a file, which is there only meanwhile, as are folders that did not exist and stay empty.

    Args:
        path: of the file.
        refusal: the message if another process holds it.

    Raises:
        RunError: if another process holds it, or the file cannot be written.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        lock = _acquired(path, refusal)
        try:
            yield
        finally:
            with postponed():
                with suppress(OSError):  # of a folder that has become read-only
                    path.unlink(missing_ok=True)  # before the release: filelock notices a removed file
                lock.release()
    finally:
        for folder in missing:
            with suppress(OSError):  # not empty
                folder.rmdir()


def is_held(path: Path) -> bool:
    """Whether a process holds the lock on a file; ``False`` if there is none, or it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: several processes may look at once
    except BlockingIOError:
        return True
    except OSError:  # of a file system without locks
        return False
    finally:
        os.close(descriptor)
    return False


def _acquired(path: Path, refusal: Callable[[], str]) -> FileLock:
    lock = FileLock(path)
    for attempt in range(_ATTEMPTS):
        try:
            lock.acquire(timeout=_TIMEOUT)
        except Timeout as error:
            raise RunError(refusal()) from error
        except FileNotFoundError as error:  # another process has just removed the empty folder
            if attempt == _ATTEMPTS - 1:
                raise _not_writable(path, error) from error
        except OSError as error:
            raise _not_writable(path, error) from error
        else:
            break
    return lock


def _not_writable(path: Path, error: OSError) -> RunError:
    return RunError(
        f"cannot write to {path.parent} ({error.strerror}); name a directory you may write to: CAPSULE_LAB_RUNS=… for "
        "all runs, or train.directory=…"
    )
