"""Reader of affNIST's MATLAB file: 32 affine versions of each of MNIST's 10,000 test digits (Tieleman 2013).

The file contains one struct, ``affNISTdata``, with a column per image: ``image`` with 1600 pixels, the rows of the
40x40 pixels in sequence; ``label_int``; and ``human_readable_transform``, the parameters of the transformation. It is
read as ``test.mat``, or from the published zip.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capsule_lab.data.download import download_file, reading, sha256, verify
from capsule_lab.data.formats import matlab
from capsule_lab.data.loader import Images
from capsule_lab.errors import DataError

NAME = "affNIST"
SIZE = 40  # pixels a side; affNIST's page
VERSIONS = 32  # of each digit; affNIST's page
TEST_DIGITS = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)
"""Number of digits of each class in MNIST's test set; LeCun 1998."""
SERVER = "https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/"
FILE = "test.mat"
ARCHIVE = "test.mat.zip"
# tensorflow_datasets, checksums.tsv; none is published for the unpacked file
SHA256 = "2cde38ec83ee2ebfd7b901f8be5a09efb17a1bda04771f9b4905751eb945c01a"

_VARIABLE = "affNISTdata"
_FIELDS = ("image", "label_int", "human_readable_transform")


def check(folder: Path) -> dict[str, str]:
    """Return the name and SHA-256 of the file that ``load`` would read; empty if there is none.

    The archive must be the published one. The unpacked file has no published checksum; it is read instead, which takes
    seconds, so that damage is found before training. Raise a ``DataError`` if it is incomplete, or not affNIST's.
    """
    if verify(folder, {ARCHIVE: SHA256}, NAME, algorithm="sha256"):
        return {ARCHIVE: SHA256}
    if not (folder / FILE).is_file():
        return {}
    load(folder)
    return {FILE: sha256(folder / FILE)}


def load(folder: Path) -> Images:
    """Load the test set: ``(320000, 1, 40, 40)`` uint8, labels, and ``human_readable_transform`` as float factors.

    It is read from ``test.mat.zip`` in ``folder``, else from ``test.mat``. Raise a ``DataError`` if that is missing or
    unreadable, or does not contain 32 versions of each MNIST test digit.
    """
    archive = folder / ARCHIVE
    path = folder / FILE
    if archive.is_file():
        with reading(archive, NAME), zipfile.ZipFile(archive) as packed:
            (member,) = (name for name in packed.namelist() if Path(name).name == FILE)
            with packed.open(member) as file:
                images = load_mat(archive / FILE, file)
    else:
        images = load_mat(path)
    _check_counts(images, path)
    return images


def _check_counts(images: Images, path: Path) -> None:
    """Check that there are ``VERSIONS`` of each of MNIST's test digits."""
    unique, number = images.labels.unique(return_counts=True)
    digits, counts = unique.tolist(), number.tolist()
    expected = [VERSIONS * count for count in TEST_DIGITS]
    if digits != list(range(10)) or counts != expected:
        raise DataError(
            f"{path} holds {len(images.labels)} images, {counts} of the labels {digits}; expected {sum(expected)}, "
            f"{expected} of 0 to 9: use the test set of 32x/transformed, {VERSIONS} versions of each MNIST test digit"
        )


def load_mat(path: Path, opened: Any = None) -> Images:
    """Read one ``.mat`` file: ``(n, 1, 40, 40)`` uint8, labels, and ``(n, k)`` parameters of the transforms.

    ``opened`` is the file, open in binary mode, if it is in a zip. Raise a ``DataError`` if it is truncated, is not a
    MATLAB file, or lacks a field with the right shape and type.
    """
    with reading(path, NAME):
        content = opened.read() if opened else matlab.map_path(path)
        struct = matlab.read_matrix(content, _VARIABLE).fields()
        fields = [struct[name].values() for name in _FIELDS]
        images, labels, transforms = fields
        count = labels.size
        shapes = [images.shape, labels.shape, transforms.shape[1:]]
        if images.dtype != np.uint8 or shapes != [(SIZE * SIZE, count), (1, count), (count,)]:
            found = [f"{field.dtype} of shape {field.shape}" for field in fields]
            raise ValueError(f"its {', '.join(_FIELDS)} are {', '.join(found)}")
        factors = np.ascontiguousarray(transforms.T, dtype=np.float32)
        classes = labels[0].astype(np.int64)
        if not np.isfinite(factors).all() or (labels[0] != classes).any():
            raise ValueError(
                "it has transforms that are not finite, or labels that are not integers"
            )
    # MATLAB stores columns contiguously: every image is contiguous, and this does not copy
    pixels = np.ascontiguousarray(images.T).reshape(count, 1, SIZE, SIZE)
    return Images(torch.from_numpy(pixels), torch.from_numpy(classes), torch.from_numpy(factors))


def download(scratch: Path) -> None:
    """Download ``test.mat.zip`` into ``scratch``; for ``fetch``."""
    download_file(ARCHIVE, f"sha256:{SHA256}", (SERVER,), scratch)
