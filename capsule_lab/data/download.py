"""Files of data sets: their location, verification and download."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import logging
import os
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedIOBase
from pathlib import Path
from typing import Literal

from capsule_lab.errors import DataError, one_line
from capsule_lab.system import protocol
from capsule_lab.system.files import expanded, open_regular

_FILLING = ".filling-"
_SECONDS_TO_LOCK = 60  # ours: between the creation of a scratch folder and its lock
_BLOCK = 2**20  # ours: bytes that are hashed at once
# ours: bytes; the largest published file, of smallNORB, has less than half of them
_LARGEST = 2**30
# raised by a download or by an archive that is truncated or lacks members
_INCOMPLETE = (OSError, EOFError, KeyError, tarfile.TarError, zlib.error)
_TIMEOUT = 10.0  # ours: seconds without an answer after which a server counts as unreachable

log = logging.getLogger(__name__)


def data_directory(directory: str | None) -> Path:
    """Return ``directory``, else ``$CAPSULE_LAB_DATA``, else ``data`` in the working directory."""
    return expanded(directory or os.environ.get(protocol.DATA) or "data")


@contextmanager
def open_content(path: Path) -> Iterator[BufferedIOBase]:
    """Open a regular file for reading, see ``open_regular``; one whose name ends in ``.gz`` is unpacked."""
    with open_regular(path) as file:
        if path.suffix != ".gz":
            yield file
            return
        with gzip.open(file) as unpacked:
            yield unpacked


def md5(path: Path, largest: int = _LARGEST) -> str:
    """Compute the MD5 of a file; that of its unpacked content if its name ends in ``.gz``, as data sets publish it.

    Raise a ``ValueError`` if it has more than ``largest`` bytes: a small archive can unpack to any number.
    """
    digest = hashlib.md5(usedforsecurity=False)
    with open_content(path) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            if file.tell() > largest:
                raise ValueError(f"it has more than {largest} bytes")
    return digest.hexdigest()


def sha256(path: Path) -> str:
    """Compute the SHA-256 of a file."""
    return _digest(path, "sha256")


def md5_of_archive(path: Path) -> str:
    """Compute the MD5 of a file as it is, also of a ``.gz`` file."""
    return _digest(path, "md5_of_archive")


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm.removesuffix("_of_archive")).hexdigest()


def verify(
    folder: Path,
    checksums: Mapping[str, str | None],
    name: str,
    *,
    algorithm: Literal["md5", "md5_of_archive", "sha256"] = "md5",
    largest: int = _LARGEST,
) -> bool:
    """Return whether ``folder`` contains all files with these checksums, by name; ``False`` if it has none of them.

    ``None`` instead of a checksum means that none was published. ``"md5_of_archive"`` is that of a ``.gz`` file itself.

    Raise a ``DataError`` about the data set ``name`` if only some files exist, or one is truncated or is another file,
    or has more than ``largest`` bytes, see ``md5``.
    """
    missing = [file for file in checksums if not (folder / file).is_file()]
    if len(missing) == len(checksums):
        return False
    if missing:
        raise DataError(
            f"{folder} holds {len(checksums) - len(missing)} of the {len(checksums)} files of {name}; missing "
            f"{', '.join(missing)}: add them, or remove the folder to download it again"
        )
    for file, expected in checksums.items():
        if expected is None:
            continue
        path = folder / file
        with reading(path, name):
            digest = md5(path, largest) if algorithm == "md5" else _digest(path, algorithm)
        if digest != expected:
            raise DataError(
                f"{path} ({path.stat().st_size} bytes, {algorithm} {digest}) is not the file of {name} ({algorithm} "
                f"{expected}): it is truncated or another file; remove it and its folder to download them again"
            )
    return True


@contextmanager
def reading(path: Path, name: str) -> Iterator[None]:
    """Turn any error in this block into a ``DataError`` that names the file ``path`` and the data set ``name``.

    What exists and is neither a regular file nor a folder is an error, too: opening a FIFO would wait.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ValueError("not a regular file")  # noqa: TRY301
        yield
    except DataError:
        raise
    except Exception as error:  # readers of formats raise many types of errors for damaged files
        reason = getattr(error, "strerror", None) or one_line(error) or type(error).__name__
        raise DataError(
            f"{path} cannot be read ({reason}); expected a file of {name}: remove it and its folder to download them "
            "again"
        ) from error


def download_file(name: str, checksum: str, servers: Sequence[str], folder: Path) -> Path:
    """Download a file into ``folder``, once it is complete, and return its path; for the ``download`` of ``fetch``.

    The checksum is ``"md5:…"`` or ``"sha256:…"``. The addresses in ``servers`` end in a slash and are tried in this
    order; raise an ``OSError`` with the reason of the first one if all fail.
    """
    import pooch  # imported here, because training on existing files does not need HTTP
    from requests import exceptions

    pooch.get_logger().setLevel(logging.WARNING)
    log.info("downloading %s%s", servers[0], name)
    downloader = pooch.HTTPDownloader(timeout=_TIMEOUT)
    reasons = []
    for server in servers:
        url = f"{server}{name}"
        try:
            return Path(pooch.retrieve(url, checksum, name, folder, downloader=downloader))
        except (exceptions.ConnectionError, exceptions.Timeout) as error:
            # their messages quote all layers of HTTP
            reasons.append(f"{url}: {type(error).__name__}")
        except (OSError, ValueError) as error:
            reasons.append(f"{url}: {one_line(error)}")
    raise OSError(reasons[0])


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """Yield a scratch folder, and move its files into ``folder``, by renaming, if the block ends without an error.

    Other files in ``folder`` stay.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder.parent)
    with (
        tempfile.TemporaryDirectory(prefix=_FILLING, dir=folder.parent) as scratch,
        ExitStack() as stack,
    ):
        with suppress(OSError):  # not every file system locks folders; leftovers then stay
            stack.enter_context(_locked(Path(scratch)))
        filled = Path(scratch) / folder.name
        filled.mkdir()
        yield filled
        if folder.exists():
            for file in sorted(filled.iterdir()):
                os.replace(file, folder / file.name)
        else:
            os.replace(filled, folder)


def _remove_leftovers(folder: Path) -> None:
    """Remove scratch folders of processes that were killed: nothing holds their locks."""
    for scratch in folder.glob(f"{_FILLING}*"):
        with suppress(OSError):  # it is locked, or another process removes it
            if time.time() - scratch.stat().st_mtime > _SECONDS_TO_LOCK:
                with _locked(scratch):
                    shutil.rmtree(scratch)


@contextmanager
def _locked(scratch: Path) -> Iterator[None]:
    """Hold a lock on a folder, which the kernel releases if this process is killed; an ``OSError`` if another does."""
    descriptor = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def fetch(folder: Path, download: Callable[[Path], None]) -> str | None:
    """Fill ``folder`` with the files that ``download`` writes, see ``filling``; if it fails, return the reason."""
    try:
        with filling(folder) as scratch:
            download(scratch)
    except _INCOMPLETE as error:
        return one_line(error) or type(error).__name__
    return None
