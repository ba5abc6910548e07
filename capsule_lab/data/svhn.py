"""SVHN: 73,257 + 26,032 digits of house numbers, 32x32 pixels in colour (Netzer, Wang, Coates and others 2011)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.io
import torch
from torch import Tensor
from torchvision import datasets
from torchvision.datasets.utils import download_url

from capsule_lab.data.base import AbstractDataModule, find_or_fetch
from capsule_lab.data.download import check_labels, reading, silently, verify
from capsule_lab.data.loader import Images
from capsule_lab.data.standins.coloured_digits import coloured_digits, standin_provenance
from capsule_lab.data.transforms import random_shift, to_unit_interval
from capsule_lab.errors import DataError
from capsule_lab.types import DataSpec

NAME = "SVHN"
SIZE = 32  # Netzer 2011: pixels a side
CHECKSUMS = {
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}
"""MD5 of the files."""

_TEN = 10  # Netzer 2011: how the files label the digit 0


class SVHNDataModule(AbstractDataModule):
    """SVHN as in Sabour 2017, section 7: the small training set, pixels in [0, 1], nothing else.

    Files lie in ``<directory>/SVHN``. The stand-in is ``coloured_digits``.

    Digits of one house number follow each other in the files and are seen at each other's edges. So validation is on
    the first images, which is on other houses; ``"stratified"`` puts parts of one photograph on both sides.

    Args:
        shift: largest move in each direction, in pixels, of training images.
        validation_share, **options: see ``AbstractDataModule``.

    Raises:
        ValueError: for a negative ``shift``.
    """

    spec = DataSpec(image_shape=(3, SIZE, SIZE), num_classes=10)

    def __init__(
        self,
        *,
        shift: int = 0,  # Sabour 2017, section 7: none is mentioned
        validation_share: float | str = "1/10",  # ours: 7,326 of 73,257
        **options: Any,
    ) -> None:
        super().__init__(validation_share=validation_share, **options)
        if shift < 0:
            raise ValueError(f"data.shift is {shift}; expected 0 (no shift) or more pixels")
        self.shift = shift

    @property
    def folder(self) -> Path:
        """Where the two files lie."""
        return self.directory / NAME

    def find_real(self) -> str | None:
        return find_or_fetch(
            NAME, self.folder, lambda: verify(self.folder, CHECKSUMS, NAME), _download,
            files=", ".join(CHECKSUMS), holds=NAME,
        )  # fmt: skip

    def load(self, *, train: bool, real: bool) -> Images:
        if not real:
            return coloured_digits(train=train)
        pixels, labels = read_digits(self.folder / f"{'train' if train else 'test'}_32x32.mat")
        return Images(torch.from_numpy(pixels), torch.from_numpy(labels))

    def describe(self, *, real: bool) -> dict[str, Any]:
        return {"name": f"real {NAME}", "md5": CHECKSUMS} if real else standin_provenance(NAME)

    def transform(self, images: Tensor, key: Tensor, *, augment: bool) -> Tensor:
        pixels = to_unit_interval(images)
        return random_shift(pixels, key, self.shift) if augment else pixels


def read_digits(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Pixels ``(n, 3, 32, 32)`` and digits ``(n,)`` of one of the files, whose X is ``(32, 32, 3, n)``, y ``(n, 1)``.

    Raises:
        DataError: if it is no such file, or a label is none.
    """
    with reading(path, NAME):
        content = scipy.io.loadmat(path, variable_names=("X", "y"))
        if not content.keys() >= {"X", "y"}:
            raise ValueError("it has no X or no y")
        pixels, labels = content["X"], content["y"].astype(np.int64)
    expected = (SIZE, SIZE, 3, len(labels)), (len(labels), 1)  # 3: colours
    if pixels.dtype != np.uint8 or (pixels.shape, labels.shape) != expected:
        raise DataError(
            f"{path} holds {pixels.dtype} of shape {pixels.shape} and labels of shape {labels.shape}; expected uint8 "
            f"of {expected[0]} and labels of {expected[1]}: remove it and its folder to have them downloaded again"
        )
    check_labels(path, labels, range(1, _TEN + 1))
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), labels[:, 0] % _TEN  # 3: the last axis comes first


def _download(scratch: Path) -> Path:
    """Both files, each checked by its MD5."""
    folder = scratch / NAME
    with silently():
        for part in ("train", "test"):
            url, file, md5 = datasets.SVHN.split_list[part]
            download_url(url, folder, file, md5)
    return folder
