"""Files that one process at a time holds, with those that it forks; the kernel lets go however they end."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # Lustre mounted without flock, NFS without its lock daemon


def hold(path: Path, *, wait: bool = False) -> int | None:
    """Hold ``path``, which is made if need be, with its folder.

    A file system without locks keeps nobody apart; a warning says so.

    Args:
        path: what all who want to hold it agree on.
        wait: until nobody else holds it.

    Returns:
        What ``let_go`` needs; ``None`` if somebody else holds it.

    Raises:
        OSError: if it cannot be written there.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:
            continue  # another process has just removed the folder, which was empty
        if not _locked(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), warning=path):
            os.close(descriptor)
            return None
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # the one that held it has removed the file, which nobody else will find


def let_go(descriptor: int, path: Path | None = None) -> None:
    """End of a ``hold``; with ``path``, its file is removed, too."""
    if path is not None:
        path.unlink(missing_ok=True)  # while it is held, so that whoever waits for it notices
    _locked(descriptor, fcntl.LOCK_UN)  # also for processes forked meanwhile, which have the descriptor, too
    os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether a process holds ``path`` now."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _locked(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, how: int, warning: Path | None = None) -> bool:
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        if warning:
            log.warning("%s is on a file system without locks: start no second run of what runs already", warning)
    return True
