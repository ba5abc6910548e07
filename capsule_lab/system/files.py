"""Paths as users write them, files that are there whole or not at all, and what becomes of damaged ones."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOG = logging.getLogger(__name__)
_HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]  # torch writes the file's name into a checkpoint
_TEMPORARY = re.compile(r"\..+-(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-\w{8}(\.[^-]*)?")
_OLDEST = 24 * 3600.0  # ours: seconds; no file takes a day to write


def expanded(path: str | Path) -> Path:
    """``path`` with ``~`` and variables such as ``$HOME`` replaced, which a shell leaves alone within ``key=~/…``."""
    return Path(os.path.expandvars(path)).expanduser()


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """A temporary path in the folder of ``path``; the file written there replaces ``path`` when the block ends.

    If the block raises, the temporary file is removed and ``path`` stays as it was. A new file gets the permissions of
    any other (the umask), a replaced one keeps its own. The temporary name is hidden and has the suffix of ``path``,
    from which ``savefig`` and others take the format. Temporary files of processes that were killed are removed.

    Args:
        path: to write; its folder must exist.

    Raises:
        OSError: if the temporary file cannot be written or put in place, or the block has not written it; it names
            ``path``.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomically(Path(folder) / "result.txt") as temporary:
        ...         _ = temporary.write_text("3.62")
        ...     (Path(folder) / "result.txt").read_text()
        '3.62'
    """
    remove_leftovers(path.parent)
    temporary = path.with_name(f"{temporary_prefix(path.stem)}{secrets.token_hex(4)}{path.suffix}")
    try:
        yield temporary
        if path.exists():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except OSError as error:
        if error.errno is not None:
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):  # of a folder that has become read-only, where the first error says more
            temporary.unlink(missing_ok=True)


def temporary_prefix(stem: str) -> str:
    """The beginning of a temporary name that ``remove_leftovers`` knows; 8 characters of ``[a-z0-9_]`` follow."""
    return f".{stem}-{_HOST}-{os.getpid()}-"


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and folders in ``folder`` of processes that were killed.

    These are processes of this machine that have ended. Whether one of another machine lives cannot be seen on a
    shared file system: what it left is removed when it is a day old.
    """
    with suppress(OSError):  # no such folder, or not ours
        for name in os.listdir(folder):
            match = _TEMPORARY.fullmatch(name) if name.startswith(".") else None
            path = folder / name
            if match and (_is_old(path) or (match["host"] == _HOST and not _is_alive(int(match["pid"])))):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def set_aside(path: Path, reason: str) -> None:
    """Rename a damaged file to ``<name>.damaged``, so that it counts as missing, and log a warning that says so."""
    aside = path.with_name(f"{path.name}.damaged")
    try:
        os.replace(path, aside)
        _LOG.warning("%s is damaged (%s) and counts as missing; it was renamed to %s", path, reason, aside.name)
    except OSError as error:
        _LOG.warning("%s is damaged (%s) and counts as missing; remove it (%s)", path, reason, error.strerror)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        return True
    return True


def _is_old(path: Path) -> bool:
    return time.time() - path.lstat().st_mtime > _OLDEST
