"""Reader of smallNORB's six files: verified by MD5, and reduced to 48x48 pixels.

The same functions read the stand-in, which has the same format: sizes come from the headers, not from the file names.
"""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from capsule_lab.data.download import download_file, verify
from capsule_lab.data.formats.binary_matrix import read_matrix
from capsule_lab.data.loader import Images
from capsule_lab.errors import DataError

Resize = Literal["subsample", "area"]
Part = Literal["training", "testing"]

NAME = "smallNORB"
SIZE = 48  # Hinton 2018, section 4: pixels a side, from 96
FACTORS = ("instance", "elevation", "azimuth", "lighting")  # the columns of the info files
CLASSES = ("animal", "human", "airplane", "truck", "car")


class Published(NamedTuple):
    """MD5 of a file's content, and SHA-256 of its published archive."""

    md5: str
    sha256_of_archive: str


_TRAINING = "smallnorb-5x46789x9x18x6x2x96x96-training"
_TESTING = "smallnorb-5x01235x9x18x6x2x96x96-testing"
PUBLISHED = {  # MD5: the oodd package; SHA-256: tensorflow_datasets, checksums.tsv
    f"{_TRAINING}-dat.mat": Published(
        "8138a0902307b32dfa0025a36dfa45ec",
        "5ffd6272a07d32695ee1082a26a41a93a37aab8c28da047f8c34ed348d214873",
    ),
    f"{_TRAINING}-cat.mat": Published(
        "fd5120d3f770ad57ebe620eb61a0b633",
        "2784e542c1922060691090952b6cd6278879a216c90f81476f0f00256d42cdaa",
    ),
    f"{_TRAINING}-info.mat": Published(
        "19faee774120001fc7e17980d6960451",
        "de7eb932ebe7a4ee16217fead60660d0eb3d23632c2f4d1c51f88c501c17bf32",
    ),
    f"{_TESTING}-dat.mat": Published(
        "e9920b7f7b2869a8f1a12e945b2c166c",
        "cf7104eed3e51174d2f65b66d1e5878b9da233b886f161b0d88f4510ba2c7474",
    ),
    f"{_TESTING}-cat.mat": Published(
        "fd5120d3f770ad57ebe620eb61a0b633",
        "ecaf6d5bb8c3bc5eab9cf0258f6d2198dd474e016e374836fc097f2e5ff509ff",
    ),
    f"{_TESTING}-info.mat": Published(
        "7c5b871cc69dcadec1bf6a18141f5edc",
        "16adf314226327ee006d1a44db8cfef52773c06c829951d5653a9f6f310248a2",
    ),
}
SERVERS = (  # the official address, then other addresses of the same server
    "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/",
    "https://cs.nyu.edu/~yann/data/norb-v1.0-small/",
    "http://www.cs.nyu.edu/~ylclab/data/norb-v1.0-small/",
)

_VALUES = {  # of the category files and of the columns of the info files, as published
    "category": range(len(CLASSES)),
    "instance": range(10),
    "elevation": range(9),
    "azimuth": range(0, 36, 2),
    "lighting": range(6),
}
_AT_ONCE = 1000  # ours: images averaged at once, 37 MB as 16-bit numbers


def verified(folder: Path) -> bool:
    """Apply ``verify`` to ``folder``; each file may be a ``.mat`` or a ``.mat.gz``."""
    checksums = {}
    for name, published in PUBLISHED.items():
        file = name if (folder / name).is_file() else f"{name}.gz"
        checksums[file] = published.md5
    return verify(folder, checksums, NAME)


def download(scratch: Path) -> None:
    """Download the six files into ``scratch`` and unpack them; for ``fetch``."""
    for name, published in PUBLISHED.items():
        archive = download_file(
            f"{name}.gz", f"sha256:{published.sha256_of_archive}", SERVERS, scratch.parent
        )
        with gzip.open(archive) as packed, (scratch / name).open("wb") as file:
            shutil.copyfileobj(packed, file)


def load_part(folder: Path, part: Part, resize: Resize) -> Images:
    """Load the training or test images in ``folder``, ``(n, 2, 48, 48)``, with their factors.

    The files are ``.mat`` or ``.mat.gz``. ``resize="subsample"`` takes every second pixel, like TensorFlow 1's bilinear
    resize to half the size, which the official code uses; ``"area"`` takes the mean of 2x2 pixels, rounded to whole
    grey levels. Raise a ``DataError`` if a file is missing or incomplete, or does not fit the others.
    """
    labels = read_matrix(_find(folder, part, "cat"))
    factors = read_matrix(_find(folder, part, "info"))
    file = _find(folder, part, "dat")
    if labels.ndim != 1 or factors.shape != (len(labels), len(FACTORS)):
        raise DataError(
            f"{folder} has categories of shape {labels.shape} and info of shape {factors.shape} for {part}; expected "
            f"(n,) and (n, {len(FACTORS)}): replace the files with those of one set"
        )
    for name, values in zip(_VALUES, (labels, *factors.T), strict=True):
        known = _VALUES[name]
        unknown = np.setdiff1d(values, known)
        if len(unknown):
            raise DataError(
                f"{folder} has {name} {unknown[0]} among its {part} labels; expected one of "
                f"{', '.join(map(str, known))}: replace the files with those of one set"
            )
    images = read_matrix(file)
    side = SIZE if images.shape[-1] == SIZE else 2 * SIZE
    if images.dtype != np.uint8 or images.shape != (len(labels), 2, side, side):
        raise DataError(
            f"{file} holds {images.dtype} of shape {images.shape}; expected uint8 of "
            f"{(len(labels), 2, 2 * SIZE, 2 * SIZE)} or {(len(labels), 2, SIZE, SIZE)}, one pair per category "
            "label: replace the files with those of one set"
        )
    small = np.array(images) if side == SIZE else halve(images, resize)
    return Images(
        torch.from_numpy(small),
        torch.from_numpy(labels.astype(np.int64)),
        torch.from_numpy(factors.astype(np.int64)),
    )


def halve(images: np.ndarray, resize: Resize) -> np.ndarray:
    """Reduce uint8 images to half the size, see ``load_part``."""
    if resize == "subsample":
        return np.ascontiguousarray(images[..., ::2, ::2])
    small = np.empty((*images.shape[:-2], images.shape[-2] // 2, images.shape[-1] // 2), np.uint8)
    for start in range(0, len(images), _AT_ONCE):
        block = slice(start, start + _AT_ONCE)
        wide = images[block].astype(np.uint16)
        rows = wide[..., ::2, :] + wide[..., 1::2, :]
        four = rows[..., ::2] + rows[..., 1::2]
        small[block] = (four + 2) // 4
    return small


def _find(folder: Path, part: Part, content: str) -> Path:
    """Find the only file of this kind; prefer the unpacked one if both exist."""
    pattern = f"smallnorb-*-{part}-{content}.mat"
    files = [*folder.glob(pattern), *folder.glob(f"{pattern}.gz")]
    names = sorted({file.name.removesuffix(".gz") for file in files})
    if len(names) != 1:
        raise DataError(
            f"{folder} holds {', '.join(names) or 'no file'} for {pattern}; expected one such file: keep the six "
            "files of one set in a folder"
        )
    unpacked = folder / names[0]
    return unpacked if unpacked.is_file() else unpacked.with_name(f"{names[0]}.gz")
