"""MNIST: 60,000 + 10,000 handwritten digits of 28x28 pixels (LeCun, Bottou, Bengio and Haffner 1998)."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from capsule_lab.data.base import AbstractDataModule
from capsule_lab.data.download import download_file, reading, verify
from capsule_lab.data.formats.idx import read_idx
from capsule_lab.data.loader import Images
from capsule_lab.data.sources import PublishedFiles
from capsule_lab.data.standins.digits import StandinDigits
from capsule_lab.data.transforms import random_shift, to_unit_interval
from capsule_lab.errors import check_number
from capsule_lab.types import DataSpec

SIZE = 28  # LeCun 1998: pixels a side
SERVERS = (  # torchvision 0.29
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
DIGIT = {
    "kind": "digit",
    "polarity": "light_on_dark",
    "size": [SIZE, SIZE],
    "channels": 1,
    "background": "black",
}
"""``input_form`` of MNIST; its box and centre are those of ``formats.pictures.as_digit``."""
ARCHIVES = {
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
"""MD5 of the ``.gz`` archive of each file; torchvision 0.29."""
_IMAGES, _LABELS = "{}-images-idx3-ubyte", "{}-labels-idx1-ubyte"


class AbstractIDXFiles(PublishedFiles):
    """Images and labels for training and test in four IDX files, each of which may be packed, as published."""

    parts: tuple[str, str] = ("train", "t10k")
    """How the names of the files for training and for the test begin."""
    largest: ClassVar[int] = 16 + 60_000 * SIZE * SIZE
    """Bytes of the largest unpacked file: header and pixels of the training images."""

    @property
    def names(self) -> list[str]:
        """Names of the unpacked files."""
        return [name.format(part) for part in self.parts for name in (_IMAGES, _LABELS)]

    def path_of(self, name: str) -> Path:
        """Return the path of a file, or of ``<name>.gz`` if only that exists."""
        path = self.folder / name
        packed = self.folder / f"{name}.gz"
        return packed if packed.is_file() and not path.is_file() else path

    def is_here(self) -> bool:
        return all(self.path_of(name).is_file() for name in self.names)

    def load(self, *, train: bool) -> Images:
        part = self.parts[0 if train else 1]
        images = self.read(_IMAGES.format(part))
        labels = self.read(_LABELS.format(part))
        return Images(images.unsqueeze(1), labels.long())

    def read(self, name: str) -> Tensor:
        """Return the numbers in a file as uint8; a ``DataError`` if it cannot be read."""
        path = self.path_of(name)
        dimensions = 3 if "-images-" in name else 1
        with reading(path, self.name):
            return read_idx(path, dimensions, self.largest)


class MNISTFiles(AbstractIDXFiles):
    """MNIST's four files in ``<directory>/MNIST/raw``, torchvision's layout.

    The checksums are those of the unpacked content in both cases. If both forms exist, the unpacked one is used.
    """

    name = "MNIST"
    path = "MNIST/raw"
    checksums = {  # noqa: RUF012 - declared a ClassVar in the base
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    }

    def download(self, scratch: Path) -> None:
        for name, md5 in ARCHIVES.items():
            archive = download_file(f"{name}.gz", f"md5:{md5}", SERVERS, scratch.parent)
            with gzip.open(archive) as packed, (scratch / name).open("wb") as file:
                shutil.copyfileobj(packed, file)

    def is_complete(self) -> bool:
        checksums = {self.path_of(name).name: md5 for name, md5 in self.checksums.items()}
        return verify(self.folder, checksums, self.name, largest=self.largest)


class AbstractMNISTLike(AbstractDataModule):
    """Base class of data sets in MNIST's format, light on black: pixels in [0, 1], and shifts in training.

    Args:
        shift: largest shift of training images in each direction, in pixels.
        validation, options: see ``AbstractDataModule``.
    """

    def __init__(
        self,
        *,
        shift: int = 2,  # ours: as for MNIST
        validation: str = "stratified",  # ours
        **options: Any,
    ) -> None:
        super().__init__(validation=validation, **options)
        check_shift(shift)
        self.shift = shift

    @property
    def input_form(self) -> dict[str, Any]:
        return super().input_form | {"background": "black"}

    def transform(self, images: Tensor, key: Tensor, *, augment: bool) -> Tensor:
        pixels = to_unit_interval(images)
        return random_shift(pixels, key, self.shift) if augment else pixels


class MNISTDataModule(AbstractMNISTLike):
    """MNIST as in Sabour 2017: pixels in [0, 1]; the only augmentation is a shift by up to 2 pixels.

    Args:
        shift: largest shift of training images in each direction, in pixels (Sabour 2017, section 5).
        validation, options: see ``AbstractDataModule``.
    """

    def __init__(self, *, shift: int = 2, validation: str = "first", **options: Any) -> None:
        super().__init__(shift=shift, validation=validation, **options)
        self.real_source = MNISTFiles(self.directory)
        self.standin_source = StandinDigits()

    @property
    def spec(self) -> DataSpec:
        return DataSpec(image_shape=(1, SIZE, SIZE), num_classes=10)

    @property
    def input_form(self) -> dict[str, Any]:
        return DIGIT


def check_shift(shift: int, size: int = SIZE) -> None:
    """Check the option ``shift`` of a data set with images of ``size`` pixels along their shorter side."""
    check_number("data.shift", shift, 0)
    if shift >= size:
        raise ValueError(
            f"data.shift is {shift}; expected fewer than the {size} pixels of the images"
        )
