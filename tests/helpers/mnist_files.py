"""Small files in MNIST's format that count as the real ones."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from capsule_lab.data.mnist import MNISTFiles

TRAIN, TEST = 60, 20
RANDOM = np.random.default_rng(0)
ARRAYS = {
    "train-images-idx3-ubyte": RANDOM.integers(0, 256, (TRAIN, 28, 28), dtype=np.uint8),
    "train-labels-idx1-ubyte": RANDOM.permutation(np.arange(TRAIN, dtype=np.uint8) % 10),
    "t10k-images-idx3-ubyte": RANDOM.integers(0, 256, (TEST, 28, 28), dtype=np.uint8),
    "t10k-labels-idx1-ubyte": RANDOM.permutation(np.arange(TEST, dtype=np.uint8) % 10),
}


def idx(array: np.ndarray) -> bytes:
    """LeCun's format: two zeros, 8 for unsigned bytes, the number of dimensions, their big-endian sizes, the bytes."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def write_mnist(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the files to where they belong in a data directory, and make their checksums the published ones."""
    folder = directory / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name, array in ARRAYS.items():
        (folder / name).write_bytes(idx(array))
    monkeypatch.setattr(MNISTFiles, "checksums", {name: md5(idx(array)) for name, array in ARRAYS.items()})
    return directory
