"""Small files in affNIST's format that count as the real ones."""

import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsule_lab.data.formats import affnist
from tests.helpers.matlab import matlab

CASES = 320  # 32 versions of each of ten digits
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (CASES, 40, 40), dtype=np.uint8)
LABELS = RANDOM.permutation(np.arange(CASES) % 10).astype(np.uint8)
TRANSFORMS = RANDOM.uniform(-1, 1, (CASES, 6))


def fields(cases: slice = slice(None)) -> dict[str, Any]:
    """The fields of a file in its order and in MATLAB's layout: a case is a column, a pixel a row."""
    images, labels = IMAGES[cases], LABELS[cases]
    number = np.arange(len(images), dtype=np.float64)[None] + 1
    return {
        "affine_transform": np.zeros((3, 3)),
        "inverse_affine_transform": np.zeros((3, 3)),
        "image": images.reshape(len(images), -1).T,
        "id": number,
        "label_one_of_n": np.eye(10)[labels].T,
        "label_int": labels[None],
        "human_readable_transform": TRANSFORMS[cases].T,
        "original_id": number,
    }


def zipped(contents: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, content in contents.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return written.getvalue()


def write_affnist(folder: Path) -> Path:
    """Write the test set in both of its forms, as a file and as an archive."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "test.mat").write_bytes(matlab(affNISTdata=fields()))
    (folder / "test.mat.zip").write_bytes(zipped({"test.mat": (folder / "test.mat").read_bytes()}))
    return folder


def count_as_real(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the files of ``write_affnist`` count as the published ones."""
    monkeypatch.setattr(affnist, "TEST_DIGITS", (1,) * 10)
    checksum = hashlib.sha256((folder / "test.mat.zip").read_bytes()).hexdigest()
    monkeypatch.setattr(affnist, "SHA256", checksum)
