"""CIFAR10: 50,000 + 10,000 photographs of 32x32 pixels in ten classes (Krizhevsky 2009)."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsule_lab.data import transforms
from capsule_lab.data.base import AbstractDataModule
from capsule_lab.data.download import download_file
from capsule_lab.data.formats.cifar10 import CLASSES, NAME, SIZE, read_batch
from capsule_lab.data.loader import Images
from capsule_lab.data.sources import PublishedFiles
from capsule_lab.data.standins.coloured_digits import ColouredDigits
from capsule_lab.errors import check_number
from capsule_lab.types import DataSpec

SERVER = "https://www.cs.toronto.edu/~kriz/"
ARCHIVE = "cifar-10-python.tar.gz"
ARCHIVE_MD5 = "c58f30108f718f92721af3b95e74349a"  # torchvision 0.29

_TOP, _LEFT, _MIRROR, _BRIGHTNESS, _CONTRAST = range(5)  # streams of the random draws


class CIFAR10Files(PublishedFiles):
    """CIFAR10's six batches in ``<directory>/cifar-10-batches-py``, torchvision's layout."""

    name = NAME
    path = "cifar-10-batches-py"
    has_pickles = True
    checksums = {  # noqa: RUF012 - declared a ClassVar in the base
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    }

    def download(self, scratch: Path) -> None:
        archive = download_file(ARCHIVE, f"md5:{ARCHIVE_MD5}", (SERVER,), scratch.parent)
        with tarfile.open(archive) as packed:
            members = [packed.getmember(f"{self.path}/{file}") for file in self.checksums]
            packed.extractall(scratch.parent, members, filter="data")

    def load(self, *, train: bool) -> Images:
        pixels = []
        labels = []
        for file in self.checksums:
            if file.startswith("data") is train:
                batch = read_batch(self.folder / file)
                pixels.append(batch.pixels)
                labels.append(batch.labels)
        return Images(
            torch.from_numpy(np.concatenate(pixels)), torch.from_numpy(np.concatenate(labels))
        )


class CIFAR10DataModule(AbstractDataModule):
    """CIFAR10 as in the official code of Sabour 2017: patches of 24x24 pixels with mean 0 and standard deviation 1.

    Training patches are cropped at random; half of them are mirrored; then the brightness changes, and the contrast
    about each channel's mean. Other patches are cropped from the centre. Standardisation comes last; it cancels the
    change of brightness completely and most of the change of contrast.

    The stand-in is ``coloured_digits``. Its classes are the ten digits instead of ``CLASSES``, and ``flip`` mirrors
    its digits, too.

    Args:
        crop: side of the crop, in pixels of 32; random in training, central otherwise.
        flip: mirror half of the training images.
        brightness: largest number added to all pixels, in grey levels of 255.
        contrast: largest deviation of the contrast factor from 1: 0.8 gives 0.2 to 1.8.
        eval_batch_size, validation_share, options: see ``AbstractDataModule``.
    """

    def __init__(
        self,
        *,
        crop: int = 24,  # official code of Sabour 2017
        flip: bool = True,
        brightness: float = 63.0,  # official code of Sabour 2017
        contrast: float = 0.8,  # official code of Sabour 2017
        eval_batch_size: int = 100,  # official code of Sabour 2017
        validation_share: float | str = "1/10",  # He 2016, section 4.2: 5,000 of 50,000
        **options: Any,
    ) -> None:
        super().__init__(
            eval_batch_size=eval_batch_size, validation_share=validation_share, **options
        )
        check_number("data.crop", crop, 1, SIZE)
        check_number("data.brightness", brightness, 0)
        check_number("data.contrast", contrast, 0, 1)
        self.crop = crop
        self.flip = flip
        self.brightness = brightness
        self.contrast = contrast
        self.real_source = CIFAR10Files(self.directory)
        self.standin_source = ColouredDigits(NAME)

    @property
    def spec(self) -> DataSpec:
        classes = () if self.uses_standin else CLASSES
        return DataSpec(
            image_shape=(3, self.crop, self.crop), num_classes=len(CLASSES), classes=classes
        )

    @property
    def input_form(self) -> dict[str, Any]:
        return super().input_form | {"size": [SIZE, SIZE]}  # transform() crops

    def transform(self, images: Tensor, key: Tensor, *, augment: bool) -> Tensor:
        if not augment:
            corner = transforms.centre_corner(SIZE, self.crop)
            cropped = transforms.crop_at(images, corner, self.crop)
            return transforms.standardise(transforms.as_float(cropped))
        margin = SIZE - self.crop
        top = transforms.random_integers(key, _TOP, 0, margin)
        left = transforms.random_integers(key, _LEFT, 0, margin)
        pixels = transforms.crop(images, top, left, self.crop).float()
        if self.flip:
            pixels = transforms.random_mirror(pixels, key, _MIRROR)
        added = transforms.random_uniform(key, _BRIGHTNESS, -self.brightness, self.brightness)
        factor = transforms.random_uniform(key, _CONTRAST, 1 - self.contrast, 1 + self.contrast)
        pixels = transforms.contrast(pixels + added[:, None, None, None], factor)
        return transforms.standardise(pixels)
