"""Files of data sets: where they lie, whether they are the right ones, how they arrive whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
import io
import logging
import os
import shutil
import socket
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from http.client import HTTPException
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from capsule_lab.errors import DataError

log = logging.getLogger(__name__)


def data_directory(directory: str | None) -> Path:
    """``directory``, else ``$CAPSULE_LAB_DATA``, else ``data`` in the working directory."""
    return Path(directory or os.environ.get("CAPSULE_LAB_DATA") or "data")


def md5(path: Path) -> str:
    """MD5 of a file as data sets publish it: of what is in it, if its name ends in ``.gz``."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def sha256(path: Path) -> str:
    """SHA-256 of a file as it lies there."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """A path beside ``path`` to write to; it takes the place of ``path`` once the block ends without an error."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def verify(folder: Path, checksums: dict[str, str], name: str, *, algorithm: Literal["md5", "sha256"] = "md5") -> bool:
    """Whether ``folder`` holds all the files, whole.

    Args:
        folder: where they should lie.
        checksums: of each file, by name.
        name: of the data set, for messages.
        algorithm: what the checksums are, see ``md5`` and ``sha256``.

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
        with reading(path, name):
            found = md5(path) if algorithm == "md5" else sha256(path)
        if found != expected:
            raise DataError(
                f"{path} ({path.stat().st_size} bytes, {algorithm} {found}) is not the file of {name} ({algorithm} "
                f"{expected}): it is truncated or another file; remove it and its folder to have them downloaded again"
            )
    return True


@contextmanager
def reading(path: Path, name: str) -> Iterator[None]:
    """Whatever goes wrong in this block is said of the file at ``path``, of the data set ``name``.

    Raises:
        DataError: if anything does.
    """
    try:
        yield
    except Exception as error:  # a format's reader raises whatever broken bytes make it raise
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{path} cannot be read ({reason}); expected a file of {name}: remove it and its folder to have them "
            "downloaded again"
        ) from error


def check_labels(path: Path, labels: npt.NDArray[np.int64], known: range) -> None:
    """Whether the labels in the file at ``path`` are of ``known`` classes.

    Raises:
        DataError: if one is not.
    """
    strange = np.setdiff1d(labels, known)
    if len(strange):
        raise DataError(
            f"{path} has label {strange[0]}; expected {known[0]} to {known[-1]}: remove it and its folder to have them "
            "downloaded again"
        )


@contextmanager
def silently() -> Iterator[None]:
    """torchvision's downloads without their chatter."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


def download_file(url: str, file: Path, checksum: str) -> str | None:
    """Bring what is at ``url`` into ``file``; for what is given to ``fetch``.

    Args:
        url: http or https.
        file: to write to, in a scratch folder: a failure may leave a part of it there.
        checksum: SHA-256 that it must have.

    Returns:
        ``None`` when it worked, else why not.
    """
    try:
        with urllib.request.urlopen(url) as answer, file.open("wb") as written:  # noqa: S310 - our own addresses
            log.info("downloading %s", url)
            shutil.copyfileobj(answer, written)
    except (OSError, HTTPException) as error:
        return f"{url}: {error}"
    found = sha256(file)
    return None if found == checksum else f"{url} sent {file.stat().st_size} bytes with another SHA-256, {found}"


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
