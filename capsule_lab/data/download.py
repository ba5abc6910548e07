"""Files of data sets: where they are, whether they are the published ones, and how they are downloaded."""

from __future__ import annotations

import gzip
import hashlib
import logging
import os
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from capsule_lab.errors import DataError, one_line
from capsule_lab.system.files import expanded, remove_leftovers, temporary_prefix

_TIMEOUT = 10.0  # ours: seconds without an answer after which a server counts as unreachable
_PATIENCE = 30.0  # ours: seconds over which the rate of a download is measured
_SLOWEST = 10_000  # ours: bytes a second; MNIST takes 20 minutes at that rate
_CHUNK = 2**18
_RETRIES = 1  # ours: of each server, since a large file may break off

log = logging.getLogger(__name__)


def data_directory(directory: str | None) -> Path:
    """``directory``, else ``$CAPSULE_LAB_DATA``, else ``data`` in the working directory."""
    return expanded(directory or os.environ.get("CAPSULE_LAB_DATA") or "data")


def md5(path: Path) -> str:
    """MD5 of a file as data sets publish it: of the unpacked content if its name ends in ``.gz``."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def sha256(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(folder: Path, checksums: dict[str, str], name: str, *, algorithm: Literal["md5", "sha256"] = "md5") -> bool:
    """Whether ``folder`` holds all files with the right checksums.

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
    """Turn any error of this block into one that names the file at ``path``, of the data set ``name``.

    Raises:
        DataError: for any ``Exception``.
    """
    try:
        yield
    except Exception as error:  # readers of formats raise errors of many types for damaged files
        reason = getattr(error, "strerror", None) or one_line(error) or type(error).__name__
        raise DataError(
            f"{path} cannot be read ({reason}); expected a file of {name}: remove it and its folder to have them "
            "downloaded again"
        ) from error


def check_labels(path: Path, labels: npt.NDArray[np.int64], known: range) -> None:
    """Check that the labels in the file at ``path`` are of ``known`` classes.

    Raises:
        DataError: if one is not.
    """
    unknown = np.setdiff1d(labels, known)
    if len(unknown):
        raise DataError(
            f"{path} has label {unknown[0]}; expected {known[0]} to {known[-1]}: remove it and its folder to have them "
            "downloaded again"
        )


def download_file(name: str, checksum: str, servers: Sequence[str], folder: Path) -> Path:
    """Download a file into ``folder``; for the ``download`` that is given to ``fetch``.

    Args:
        name: of the file, on the servers and in the folder.
        checksum: that it must have, such as ``"md5:…"`` or ``"sha256:…"``.
        servers: addresses, each ending in a slash, tried in this order.
        folder: gets the file once it is complete.

    Returns:
        The path of the file.

    Raises:
        OSError: if no server has it, with the reason of the first one.
    """
    import pooch  # here, as training on files that are there needs no HTTP

    pooch.get_logger().setLevel(logging.WARNING)
    log.info("downloading %s%s", servers[0], name)
    reasons = []
    for server in servers:
        files = pooch.create(folder, server, registry={name: checksum}, retry_if_failed=_RETRIES)
        try:
            path = Path(files.fetch(name, downloader=download_url))
        except (OSError, ValueError) as error:
            reasons.append(f"{server}{name}: {_reason(error)}")
            continue
        umask = os.umask(0)
        os.umask(umask)
        path.chmod(0o666 & ~umask)  # pooch 1.9 leaves the permissions of a temporary file, 0600
        return path
    raise OSError(reasons[0])


def download_url(url: str, file: str | Path, _: Any = None) -> None:
    """Write what is at ``url`` into ``file``; for ``pooch``, whose own function waits for ever for a server that drips.

    Raises:
        OSError: if the server does not answer, or sends less than ``_SLOWEST``.
    """
    import requests  # as pooch
    import urllib3

    with requests.get(url, stream=True, timeout=_TIMEOUT) as response, Path(file).open("wb") as written:
        response.raise_for_status()
        started, received = time.monotonic(), 0
        try:
            while chunk := response.raw.read1(_CHUNK, decode_content=True):  # what is there, however little it is
                written.write(chunk)
                received += len(chunk)
                seconds = time.monotonic() - started
                if seconds > _PATIENCE:
                    if received < _SLOWEST * seconds:
                        raise TimeoutError(f"it sends {received / seconds:.0f} bytes a second; given up")
                    started, received = time.monotonic(), 0
        except urllib3.exceptions.HTTPError as error:
            raise requests.exceptions.ConnectionError(one_line(error)) from error


def _reason(error: Exception) -> str:
    """Why a download failed. Errors of the connection quote all layers of HTTP; their type says the same."""
    from requests import exceptions

    connection = isinstance(error, (exceptions.ConnectionError, exceptions.Timeout))
    return type(error).__name__ if connection else one_line(error)


def fetch(folder: Path, download: Callable[[Path], Path]) -> str | None:
    """Run ``download`` into a scratch folder beside ``folder``, then put its result in place by renaming.

    Args:
        folder: where the files shall lie; other files in it stay.
        download: given a scratch folder, downloads and checks the files and returns the folder that holds them.

    Returns:
        ``None`` when it worked, else the reason why not, in one line.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder.parent)
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("download"), dir=folder.parent) as scratch:
            fetched = download(Path(scratch))
            if folder.exists():
                for file in sorted(fetched.iterdir()):
                    os.replace(file, folder / file.name)
            else:
                os.replace(fetched, folder)
    except (
        OSError,
        EOFError,
        KeyError,
        tarfile.TarError,
        zlib.error,
    ) as error:  # an archive ends early, or lacks files
        return one_line(error) or type(error).__name__
    return None
