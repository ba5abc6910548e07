"""Expansion of paths, safe reading of files that others wrote, and files written completely or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

# without O_NONBLOCK, opening a FIFO waits for a writer
_READING = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LARGEST = 2**28  # ours: bytes; metrics of a million steps have less


def expanded(path: str | Path) -> Path:
    """Replace ``~`` and variables such as ``$HOME`` in ``path``; a shell does not replace ``~`` in ``key=~/…``."""
    return Path(os.path.expandvars(path)).expanduser()


def open_regular(path: Path, *, inside: Path | None = None) -> BufferedReader:
    """Open a regular file for reading; files of run directories and of data are opened here only.

    Args:
        path: the file, or a link to it.
        inside: a folder that the file must be in after all links are followed; the folder itself may be a link.

    Raises:
        OSError: if the file is missing, a FIFO, a device, a socket or a folder, or not inside of the folder. Opening
            does not wait, and what is opened is what was checked, even if a link changes meanwhile.
    """
    descriptor = os.open(path, _READING) if inside is None else _open_inside(path, inside)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def _open_inside(path: Path, folder: Path) -> int:
    """Return a descriptor of ``path`` with its links followed, opened from ``folder`` without following any."""
    top = os.path.realpath(folder, strict=True)
    target = os.path.relpath(os.path.realpath(path, strict=True), top)
    *parents, name = Path(target).parts or (".",)
    if ".." in (*parents, name):
        raise OSError(errno.EPERM, f"a link to a file outside of {folder}", str(path))
    opened = os.open(top, _FOLDER)
    try:
        for parent in parents:
            below = os.open(parent, _FOLDER, dir_fd=opened)
            os.close(opened)
            opened = below
        return os.open(name, _READING | os.O_NOFOLLOW, dir_fd=opened)
    finally:
        os.close(opened)


def read_regular(path: Path, *, inside: Path | None = None, most: int = _LARGEST) -> bytes:
    """Return the content of a file, see ``open_regular``; raise an ``OSError`` also for more than ``most`` bytes."""
    with open_regular(path, inside=inside) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"{size} bytes, more than {most}", str(path))
        return file.read(size)


def leads_out(path: Path, folder: Path) -> bool:
    """Return whether ``path``, which may not exist, is outside of ``folder`` after all links are followed."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; the file written there replaces ``path`` when the block ends.

    If the block raises, the temporary file is removed and ``path`` stays as it was. The temporary name is hidden and
    has the suffix of ``path``, from which ``savefig`` and others derive the format.
    """
    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
