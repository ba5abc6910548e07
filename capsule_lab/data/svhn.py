"""SVHN: 73,257 + 26,032 digits of house numbers, 32x32 pixels in colour (Netzer, Wang, Coates and others 2011)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from capsule_lab.data.base import AbstractDataModule
from capsule_lab.data.download import download_file, reading
from capsule_lab.data.formats import matlab
from capsule_lab.data.loader import Images
from capsule_lab.data.mnist import check_shift
from capsule_lab.data.sources import PublishedFiles
from capsule_lab.data.standins.coloured_digits import ColouredDigits
from capsule_lab.data.transforms import random_shift, to_unit_interval
from capsule_lab.types import DataSpec

NAME = "SVHN"
SIZE = 32  # Netzer 2011: pixels a side
SERVER = "http://ufldl.stanford.edu/housenumbers/"  # torchvision 0.29


class SVHNFiles(PublishedFiles):
    """SVHN's two files of cropped digits in ``<directory>/SVHN``."""

    name = NAME
    path = NAME
    checksums = {  # noqa: RUF012 - declared a ClassVar in the base
        "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
        "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
    }

    def download(self, scratch: Path) -> None:
        for file, md5 in self.checksums.items():
            download_file(file, f"md5:{md5}", (SERVER,), scratch)

    def load(self, *, train: bool) -> Images:
        path = self.folder / f"{'train' if train else 'test'}_32x32.mat"
        with reading(path, self.name):
            content = matlab.map_path(path)
            images = matlab.read_matrix(content, "X").values()
            pixels = torch.from_numpy(images).permute(3, 2, 0, 1).contiguous()
            classes = matlab.read_matrix(content, "y").values()
            labels = torch.from_numpy(classes).long()[:, 0]
            return Images(pixels, labels % 10)  # the digit 0 is labelled 10


class SVHNDataModule(AbstractDataModule):
    """SVHN as in Sabour 2017, section 7: the small training set, pixels in [0, 1], without augmentation.

    The stand-in is ``coloured_digits``.

    Digits of one house number are neighbours in the files, and each shows parts of the others at its edges. The default
    validates on the first images, which show other houses; ``"stratified"`` puts parts of one photograph on both sides.

    Args:
        shift: largest shift of training images in each direction, in pixels.
        validation_share, options: see ``AbstractDataModule``.
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
        check_shift(shift, SIZE)
        self.shift = shift
        self.real_source = SVHNFiles(self.directory)
        self.standin_source = ColouredDigits(NAME)

    def transform(self, images: Tensor, key: Tensor, *, augment: bool) -> Tensor:
        pixels = to_unit_interval(images)
        return random_shift(pixels, key, self.shift) if augment else pixels
