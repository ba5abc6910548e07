"""affNIST's own files: 32 affine versions of each of MNIST's 10,000 test digits (Tieleman 2013), as MATLAB stores them.

A file holds one struct, ``affNISTdata``, with a column for each image: ``image`` of 1600 pixels, the rows of the 40x40
one after another; ``label_int``; and ``human_readable_transform``, how the image was made. ``test.mat`` has all images,
``test_batches/1.mat`` to ``32.mat`` have a 32nd part each; both are read as they are or from their zip.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import torch

from capsule_lab.data.download import check_labels, download_file, reading, sha256, verify
from capsule_lab.data.loader import Images
from capsule_lab.errors import DataError

NAME = "affNIST"
SIZE = 40  # pixels a side; affNIST's page
VERSIONS = 32  # of each digit; affNIST's page
BATCHES = 32  # files in test_batches; affNIST's page
TEST_DIGITS = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)  # of each class in MNIST's test set, LeCun 1998
SERVER = "https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/"
SHA256 = {  # tensorflow_datasets, checksums.tsv; none is published for the unpacked files
    "test.mat.zip": "2cde38ec83ee2ebfd7b901f8be5a09efb17a1bda04771f9b4905751eb945c01a",
    "test_batches.zip": "83f829c01c021fa731e062e7671b0075a3e8de0a511fb6b5d403458528d0e0d1",
}
CHOICES = (*SHA256, "test.mat", "test_batches")  # in this order, as zips have a published checksum
FILE_NAMES = "test.mat.zip, test_batches.zip, test.mat or the folder test_batches"

_VARIABLE = "affNISTdata"
_FIELDS = ("image", "label_int", "human_readable_transform")


def find(folder: Path) -> Path | None:
    """The first of ``CHOICES`` that is in ``folder``; ``None`` if none is."""
    return next((folder / choice for choice in CHOICES if (folder / choice).exists()), None)


def check(folder: Path) -> dict[str, str] | None:
    """SHA-256 of the files that ``load`` would read, by name; ``None`` if there are none.

    A zip must be the published one. For unpacked files no checksum is known, so they are read, which takes seconds, and
    damage is found before training.

    Raises:
        DataError: if they are not whole, or not affNIST's.
    """
    path = find(folder)
    if path is None:
        return None
    if path.name in SHA256:
        verify(folder, {path.name: SHA256[path.name]}, NAME, algorithm="sha256")
        return {path.name: SHA256[path.name]}
    load(folder)
    return {str(file.relative_to(folder)): sha256(file) for file in _unpacked(path)}


def load(folder: Path) -> Images:
    """The test set: ``(320000, 1, 40, 40)`` uint8, labels, and ``human_readable_transform`` as float factors.

    Args:
        folder: holds at least one of ``CHOICES``.

    Raises:
        DataError: if there is none, it cannot be read, or is not 32 versions of each of MNIST's test digits.
    """
    path = find(folder)
    if path is None:
        raise DataError(f"{folder} holds no test set of {NAME}; expected {FILE_NAMES}: put one of them there")
    parts = _from_zip(path) if path.suffix == ".zip" else [load_mat(file) for file in _unpacked(path)]
    if len({None if part.factors is None else part.factors.shape[1] for part in parts}) > 1:
        raise DataError(f"{path} has files with different numbers of transform parameters: take all of one download")
    images = parts[0] if len(parts) == 1 else Images(*(torch.cat(arrays) for arrays in zip(*parts, strict=True)))
    found, expected = images.labels.bincount(minlength=10).tolist(), [VERSIONS * digits for digits in TEST_DIGITS]
    if found != expected:
        raise DataError(
            f"{path} holds {len(images.labels)} images, {found} of the digits 0 to 9; expected {sum(expected)}, "
            f"{expected}, {VERSIONS} of each of MNIST's test digits: take the test set of 32x/transformed, not another"
        )
    return images


def load_mat(path: Path, opened: Any = None) -> Images:
    """One ``.mat`` file: ``(n, 1, 40, 40)`` uint8, labels 0 to 9, and ``(n, k)`` parameters of the transforms.

    Args:
        path: of the file.
        opened: the file, open in binary mode, if it is in a zip.

    Raises:
        DataError: if it is truncated or no MATLAB file, lacks a field, or has one of another shape or type.
    """
    with reading(path, NAME):
        struct = scipy.io.loadmat(opened or path, variable_names=[_VARIABLE])[_VARIABLE][0, 0]
        images, labels, transforms = (struct[name] for name in _FIELDS)
        shapes, count = [images.shape, labels.shape, transforms.shape[1:]], labels.size
        if images.dtype != np.uint8 or shapes != [(SIZE * SIZE, count), (1, count), (count,)]:
            found = ", ".join(f"{struct[name].dtype} of shape {struct[name].shape}" for name in _FIELDS)
            raise ValueError(f"its {', '.join(_FIELDS)} are {found}")
        factors = np.ascontiguousarray(transforms.T, dtype=np.float32)
        if not np.isfinite(factors).all() or (labels != labels.astype(np.int64)).any():
            raise ValueError("it has transforms that are not finite, or labels that are not whole")
    whole = labels[0].astype(np.int64)
    check_labels(path, whole, range(10))
    # MATLAB stores column after column, so that an image is contiguous and nothing is copied here
    pixels = np.ascontiguousarray(images.T).reshape(count, 1, SIZE, SIZE)
    return Images(*(torch.from_numpy(array) for array in (pixels, whole, factors)))


def download(scratch: Path) -> None:
    """``test.mat.zip`` into ``scratch``; for ``fetch``.

    Raises:
        OSError: if the server does not send it.
    """
    name = next(iter(SHA256))
    download_file(name, f"sha256:{SHA256[name]}", (SERVER,), scratch)


def _unpacked(path: Path) -> list[Path]:
    """``path`` itself, or in a folder its batches, in their order."""
    if not path.is_dir():
        return [path]
    files = [path / f"{number}.mat" for number in range(1, BATCHES + 1)]
    _check_complete(path, [file.name for file in files if not file.is_file()])
    return files


def _from_zip(path: Path) -> list[Images]:
    wanted = ["test.mat"] if path.name == "test.mat.zip" else [f"{number}.mat" for number in range(1, BATCHES + 1)]
    with reading(path, NAME):
        archive = zipfile.ZipFile(path)
    with archive:
        members = {Path(member).name: member for member in archive.namelist()}
        _check_complete(path, [name for name in wanted if name not in members])
        parts = []
        for name in wanted:
            with reading(path, NAME):
                file = archive.open(members[name])
            with file:
                parts.append(load_mat(path / name, file))
        return parts


def _check_complete(path: Path, missing: list[str]) -> None:
    if missing:
        raise DataError(
            f"{path} lacks {', '.join(missing)}; expected all files of {NAME}: remove it and unpack it anew"
        )
