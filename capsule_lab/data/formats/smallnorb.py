"""The six files of smallNORB: known by their MD5, read once and kept at 48x48.

The same functions read the stand-in, which has the same format: sizes are those of the headers, not of the names.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from capsule_lab.data.download import download_file, verify
from capsule_lab.data.formats.binary_matrix import read_matrix
from capsule_lab.data.loader import Images
from capsule_lab.errors import DataError
from capsule_lab.system.files import atomically

Resize = Literal["subsample", "area"]
Part = Literal["training", "testing"]

NAME = "smallNORB"
SIZE = 48  # Hinton 2018, section 4: pixels a side, from 96
FACTORS = ("instance", "elevation", "azimuth", "lighting")  # the columns of the info files
CLASSES = ("animal", "human", "airplane", "truck", "car")


class Published(NamedTuple):
    """MD5 of a file's content, SHA-256 of the archive that it is downloaded as."""

    md5: str
    sha256_of_archive: str


_TRAINING, _TESTING = "smallnorb-5x46789x9x18x6x2x96x96-training", "smallnorb-5x01235x9x18x6x2x96x96-testing"
PUBLISHED = {  # MD5: the oodd package; SHA-256: tensorflow_datasets, checksums.tsv
    f"{_TRAINING}-dat.mat": Published(
        "8138a0902307b32dfa0025a36dfa45ec", "5ffd6272a07d32695ee1082a26a41a93a37aab8c28da047f8c34ed348d214873"
    ),
    f"{_TRAINING}-cat.mat": Published(
        "fd5120d3f770ad57ebe620eb61a0b633", "2784e542c1922060691090952b6cd6278879a216c90f81476f0f00256d42cdaa"
    ),
    f"{_TRAINING}-info.mat": Published(
        "19faee774120001fc7e17980d6960451", "de7eb932ebe7a4ee16217fead60660d0eb3d23632c2f4d1c51f88c501c17bf32"
    ),
    f"{_TESTING}-dat.mat": Published(
        "e9920b7f7b2869a8f1a12e945b2c166c", "cf7104eed3e51174d2f65b66d1e5878b9da233b886f161b0d88f4510ba2c7474"
    ),
    f"{_TESTING}-cat.mat": Published(
        "fd5120d3f770ad57ebe620eb61a0b633", "ecaf6d5bb8c3bc5eab9cf0258f6d2198dd474e016e374836fc097f2e5ff509ff"
    ),
    f"{_TESTING}-info.mat": Published(
        "7c5b871cc69dcadec1bf6a18141f5edc", "16adf314226327ee006d1a44db8cfef52773c06c829951d5653a9f6f310248a2"
    ),
}
SERVERS = (  # the official address, then other addresses of the same server
    "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/",
    "https://cs.nyu.edu/~yann/data/norb-v1.0-small/",
    "http://www.cs.nyu.edu/~ylclab/data/norb-v1.0-small/",
)

_VALUES = {  # of the info files, as published
    "instance": range(10),
    "elevation": range(9),
    "azimuth": range(0, 36, 2),
    "lighting": range(6),
}
_AT_ONCE = 1000  # ours: images averaged at once, 37 MB as 16-bit numbers

log = logging.getLogger(__name__)


def verified(folder: Path) -> bool:
    """``verify`` for ``folder``, each file as ``.mat`` or ``.mat.gz``; verified files are not hashed again.

    Hashing 900 MB at every start would take seconds. So sizes and times of verified files are kept in
    ``cache/verified.json``, and only a file with another time is hashed. Damage that leaves size and time as they are
    is not noticed: remove the record to have all files hashed again.

    Raises:
        DataError: as ``verify``.
    """
    present = {name: name if (folder / name).is_file() else f"{name}.gz" for name in PUBLISHED}
    checksums = {file: PUBLISHED[name].md5 for name, file in present.items()}
    record = folder / "cache" / "verified.json"
    state = _state(folder, checksums)
    if state and record.is_file() and record.read_text(encoding="utf-8") == state:
        return True
    if not verify(folder, checksums, NAME):
        return False
    _keep(record, lambda path: path.write_text(state, encoding="utf-8"))
    return True


def download(scratch: Path) -> Path:
    """The six archives in a folder of ``scratch``; for ``fetch``.

    Raises:
        OSError: if no server has one of them.
    """
    for name, published in PUBLISHED.items():
        download_file(f"{name}.gz", f"sha256:{published.sha256_of_archive}", SERVERS, scratch / NAME)
    return scratch / NAME


def load_part(folder: Path, part: Part, resize: Resize) -> Images:
    """The training or test images of the one set of files in ``folder``, ``(n, 2, 48, 48)``, with their factors.

    Images of 96x96 pixels are made smaller once and kept in ``folder / "cache"``.

    Args:
        folder: where the files lie, as ``.mat`` or ``.mat.gz``.
        part: ``"training"`` or ``"testing"``.
        resize: ``"subsample"`` takes every second pixel, which is what TensorFlow 1's bilinear resize, and so the
            official code, does to half the size; ``"area"`` takes the mean of 2x2 pixels, rounded to whole greys.

    Raises:
        DataError: if a file is missing, not whole, or does not fit the others.
    """
    labels = read_matrix(_find(folder, part, "cat"))
    factors = read_matrix(_find(folder, part, "info"))
    file = _find(folder, part, "dat")
    if labels.ndim != 1 or factors.shape != (len(labels), len(FACTORS)):
        raise DataError(
            f"{folder} has categories of shape {labels.shape} and info of shape {factors.shape} for {part}; expected "
            f"(n,) and (n, {len(FACTORS)}): replace the files by those of one set"
        )
    columns = {"category": (labels, range(len(CLASSES)))}
    columns |= {name: (factors[:, column], _VALUES[name]) for column, name in enumerate(FACTORS)}
    for name, (values, known) in columns.items():
        unknown = np.setdiff1d(values, known)
        if len(unknown):
            raise DataError(
                f"{folder} has {name} {unknown[0]} among its {part} labels; expected one of "
                f"{', '.join(map(str, known))}: replace the files by those of one set"
            )
    images = _small_images(file, len(labels), resize)
    return Images(*(torch.from_numpy(array) for array in (images, labels.astype(np.int64), factors.astype(np.int64))))


def _small_images(file: Path, count: int, resize: Resize) -> np.ndarray:
    stamp = hashlib.sha256(_state(file.parent, {file.name: NAME}).encode()).hexdigest()[:8]
    cached = f"{file.name.partition('.')[0]}-{resize}-{stamp}"
    for kept in (file.parent / "cache").glob(f"{cached}-*.npy"):
        small = _cached_images(kept, count)
        if small is not None:
            return small
    images = read_matrix(file)
    side = images.shape[-1]
    if images.dtype != np.uint8 or images.shape != (count, 2, side, side) or side not in (SIZE, 2 * SIZE):
        raise DataError(
            f"{file} holds {images.dtype} of shape {images.shape}; expected uint8 of {(count, 2, 2 * SIZE, 2 * SIZE)} "
            f"or {(count, 2, SIZE, SIZE)}, as many as there are categories: replace the files by those of one set"
        )
    if side == SIZE:
        return np.array(images)
    small = halve(images, resize)
    _keep(file.parent / "cache" / f"{cached}-{_digest(small)}.npy", lambda path: np.save(path, small))
    return small


def _cached_images(kept: Path, count: int) -> np.ndarray | None:
    """The images in a file that ``_keep`` wrote, whose name ends in their digest; ``None`` if they are not these."""
    try:
        small = np.load(kept, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError):  # not whole, or another kind of file
        return None
    whole = isinstance(small, np.ndarray) and (small.shape, small.dtype) == ((count, 2, SIZE, SIZE), np.uint8)
    return small if whole and kept.stem.endswith(f"-{_digest(small)}") else None


def _digest(images: np.ndarray) -> str:
    """SHA-256, shortened; 0.1 s for all of smallNORB."""
    return hashlib.sha256(np.ascontiguousarray(images).data).hexdigest()[:16]


def halve(images: np.ndarray, resize: Resize) -> np.ndarray:
    """uint8 images of half the size, see ``load_part``."""
    if resize == "subsample":
        return np.ascontiguousarray(images[..., ::2, ::2])
    small = np.empty((*images.shape[:-2], images.shape[-2] // 2, images.shape[-1] // 2), np.uint8)
    for start in range(0, len(images), _AT_ONCE):
        wide = images[start : start + _AT_ONCE].astype(np.uint16)
        four = wide[..., ::2, ::2] + wide[..., 1::2, ::2] + wide[..., ::2, 1::2] + wide[..., 1::2, 1::2]
        small[start : start + _AT_ONCE] = (four + 2) // 4
    return small


def _find(folder: Path, part: Part, content: str) -> Path:
    """The one file of that kind; unpacked, if it is there both ways."""
    found = {path.name: path for path in sorted(folder.glob(f"smallnorb-*-{part}-{content}.mat*"))}
    files = [path for name, path in found.items() if name.removesuffix(".gz") not in found or not name.endswith(".gz")]
    files = [path for path in files if path.name.endswith((".mat", ".mat.gz"))]
    if len(files) != 1:
        names = ", ".join(path.name for path in files) or "none"
        raise DataError(
            f"{folder} holds {names} for smallnorb-*-{part}-{content}.mat; expected one such file: keep the six files "
            "of one set in a folder"
        )
    return files[0]


def _state(folder: Path, files: dict[str, str]) -> str:
    """Sizes and times of the files, with the value of each; empty if one is missing."""
    try:
        stats = {file: (folder / file).stat() for file in files}
    except OSError:
        return ""
    return json.dumps({file: [value, stats[file].st_size, stats[file].st_mtime_ns] for file, value in files.items()})


def _keep(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file that saves time at the next start; log it if that is not possible."""
    try:
        path.parent.mkdir(exist_ok=True)
        with atomically(path) as temporary:
            write(temporary)
    except OSError as error:
        log.info("%s cannot be written (%s), so that it takes seconds at every start", path, error.strerror)
