"""MNIST: 60,000 + 10,000 handwritten digits of 28x28 pixels (LeCun, Bottou, Bengio and Haffner 1998)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor
from torchvision import datasets

from capsule_lab.data.base import AbstractDataModule, find_or_fetch, tensor_hash
from capsule_lab.data.download import silently, verify
from capsule_lab.data.loader import Images
from capsule_lab.data.standins.digits import STANDIN_NAME, STANDIN_VERSION, standin_digits
from capsule_lab.data.transforms import random_shift, to_unit_interval
from capsule_lab.types import DataSpec

CHECKSUMS = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
"""MD5 of the unpacked files."""


class MNISTDataModule(AbstractDataModule):
    """MNIST as in Sabour 2017: pixels in [0, 1], training images moved by up to 2 pixels, nothing else.

    Files lie in ``<directory>/MNIST/raw``, torchvision's layout. The stand-in is ``standin_digits``.

    Args:
        shift: largest move in each direction, in pixels, of training images (Sabour 2017, section 5).
        **options: see ``AbstractDataModule``.

    Raises:
        ValueError: for a negative ``shift``.
    """

    spec = DataSpec(image_shape=(1, 28, 28), num_classes=10)

    def __init__(self, *, shift: int = 2, **options: Any) -> None:
        super().__init__(**options)
        if shift < 0:
            raise ValueError(f"data.shift is {shift}; expected 0 (no shift) or more pixels")
        self.shift = shift

    @property
    def folder(self) -> Path:
        """Where the four files lie."""
        return self.directory / "MNIST" / "raw"

    def find_real(self) -> str | None:
        return find_or_fetch(
            "MNIST", self.folder, lambda: verify(self.folder, CHECKSUMS, "MNIST"), _download,
            files=", ".join(CHECKSUMS), holds="MNIST/raw",
        )  # fmt: skip

    def load(self, *, train: bool, real: bool) -> Images:
        if not real:
            return standin_digits(train=train)
        part = "train" if train else "t10k"
        images = datasets.mnist.read_image_file(str(self.folder / f"{part}-images-idx3-ubyte"))
        labels = datasets.mnist.read_label_file(str(self.folder / f"{part}-labels-idx1-ubyte"))
        return Images(images.unsqueeze(1), labels)

    def describe(self, *, real: bool) -> dict[str, Any]:
        if real:
            return {"name": "real MNIST", "md5": CHECKSUMS}
        return {
            "name": STANDIN_NAME,
            "generator": "capsule_lab.data.standins.digits",
            "version": STANDIN_VERSION,
            "sha256": tensor_hash(standin_digits(train=True)),
        }

    def transform(self, images: Tensor, key: Tensor, *, augment: bool) -> Tensor:
        pixels = to_unit_interval(images)
        return random_shift(pixels, key, self.shift) if augment else pixels


def _download(scratch: Path) -> Path:
    """torchvision's download, which checks the MD5 of each archive, without its chatter."""
    with silently():
        datasets.MNIST(scratch, download=True)
    return scratch / "MNIST" / "raw"
