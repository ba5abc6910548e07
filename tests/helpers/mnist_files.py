"""Small files in MNIST's format that count as the real ones."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from capsule_lab.data.loader import Images
from capsule_lab.data.mnist import MNISTFiles

TRAIN, TEST_IMAGES = 60, 20
RANDOM = np.random.default_rng(0)
ARRAYS = {
    "train-images-idx3-ubyte": RANDOM.integers(0, 256, (TRAIN, 28, 28), dtype=np.uint8),
    "train-labels-idx1-ubyte": RANDOM.permutation(np.arange(TRAIN, dtype=np.uint8) % 10),
    "t10k-images-idx3-ubyte": RANDOM.integers(0, 256, (TEST_IMAGES, 28, 28), dtype=np.uint8),
    "t10k-labels-idx1-ubyte": RANDOM.permutation(np.arange(TEST_IMAGES, dtype=np.uint8) % 10),
}


def idx(array: np.ndarray) -> bytes:
    """LeCun's format: two zeros, 8 for unsigned bytes, the number of dimensions, their big-endian sizes, the bytes."""
    kind = bytes([0, 0, 8, array.ndim])
    sizes = np.array(array.shape, ">u4")
    return kind + sizes.tobytes() + array.tobytes()


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def stored(part: str) -> Images:
    """The images of the data module for the files of a part."""
    images = torch.from_numpy(ARRAYS[f"{part}-images-idx3-ubyte"])
    labels = torch.from_numpy(ARRAYS[f"{part}-labels-idx1-ubyte"])
    return Images(images[:, None], labels.long())


CONTENTS = {name: idx(array) for name, array in ARRAYS.items()}
TRAINING = stored("train")
TEST = stored("t10k")
BROKEN = {
    "truncated": (
        CONTENTS["t10k-labels-idx1-ubyte"][:-1],
        r"cannot be read \(.+\); expected a file of MNIST: remove it",
    ),
    "another file": (b"<html>a login page</html>", r"cannot be read \(.+\)"),
    "label 10": (
        idx(ARRAYS["t10k-labels-idx1-ubyte"] + np.uint8(1)),
        "has label 10; expected 0 to 9",
    ),
    "too few labels": (idx(ARRAYS["t10k-labels-idx1-ubyte"][:19]), "has labels of torch.int64"),
}


def downloads(contents: dict[str, bytes]) -> dict[str, bytes]:
    """The files of the server."""
    return {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in contents.items()}


def write_mnist(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the files into a data directory, and make them count as the published ones."""
    folder = directory / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(content)
    checksums = {name: md5(content) for name, content in CONTENTS.items()}
    monkeypatch.setattr(MNISTFiles, "checksums", checksums)
    return directory
