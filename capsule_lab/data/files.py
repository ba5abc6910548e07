"""Files of data sets: where they lie, whether they are the right ones, how they arrive whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
import os
import socket
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path


class DataError(ValueError):
    """The data asked for is not there, or is not what it should be."""


def data_directory(directory: str | None) -> Path:
    """``directory``, else ``$CAPSULE_LAB_DATA``, else ``data`` in the working directory."""
    return Path(directory or os.environ.get("CAPSULE_LAB_DATA") or "data")


def md5(path: Path) -> str:
    """MD5 of a file as data sets publish it: of what is in it, if its name ends in ``.gz``."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """A path beside ``path`` to write to; it takes the place of ``path`` once the block ends without an error."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def verify(folder: Path, checksums: dict[str, str], name: str) -> bool:
    """Whether ``folder`` holds all the files, whole.

    Args:
        folder: where they should lie.
        checksums: MD5 of each file, by name.
        name: of the data set, for messages.

    Returns:
        ``False`` if none of the files is there.

    Raises:
        DataError: if only some are there, or one is truncated or another file.
    """
    missing = [file for file in checksums if not (folder / file).is_file()]
    if len(missing) == len(checksums):
        return False
    if missing:
        raise DataError(
            f"{folder} holds {len(checksums) - len(missing)} of the {len(checksums)} files of {name}; missing "
            f"{', '.join(missing)}: add them, or remove the folder to have it downloaded again"
        )
    for file, expected in checksums.items():
        path = folder / file
        try:
            found = md5(path)
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or error
            raise DataError(
                f"{path} cannot be read ({reason}); expected a file of {name}: remove it and its folder to have them "
                "downloaded again"
            ) from error
        if found != expected:
            raise DataError(
                f"{path} ({path.stat().st_size} bytes, md5 {found}) is not the file of {name} (md5 {expected}): it is "
                "truncated or another file; remove it and its folder to have them downloaded again"
            )
    return True


def fetch(folder: Path, download: Callable[[Path], Path], *, timeout: float = 10.0) -> str | None:
    """Run ``download`` into a scratch folder beside ``folder``, then put its result in place by renaming.

    Args:
        folder: where the files shall lie; what else is there already stays.
        download: given a scratch folder, fetches and checks the files and returns the folder that holds them.
        timeout: seconds without an answer after which a server counts as unreachable.

    Returns:
        ``None`` when it worked, else the reason why not, in one line.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(timeout)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=folder.parent) as scratch:
            fetched = download(Path(scratch))
            if folder.exists():
                for file in sorted(fetched.iterdir()):
                    os.replace(file, folder / file.name)
            else:
                os.replace(fetched, folder)
    except (OSError, RuntimeError, EOFError, HTTPException) as error:
        return " ".join(str(error).split()) or type(error).__name__
    finally:
        socket.setdefaulttimeout(before)
    return None
