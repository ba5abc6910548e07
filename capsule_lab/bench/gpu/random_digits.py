"""MNIST's sizes without its files."""

from __future__ import annotations

from typing import Any

import torch

from capsule_lab.data import AbstractSource, Images, MNISTDataModule
from capsule_lab.data.mnist import SIZE


class RandomSource(AbstractSource):
    """Random pixels and labels of ten classes, in MNIST's form.

    Args:
        images: how many, to train as to test on.
    """

    def __init__(self, images: int) -> None:
        self.images = images

    def load(self, *, train: bool) -> Images:
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randint(256, (self.images, 1, SIZE, SIZE), dtype=torch.uint8, generator=generator)
        return Images(pixels, torch.arange(self.images) % 10)

    def provenance(self) -> dict[str, Any]:
        return {"name": "random pixels"}


class RandomDigits(MNISTDataModule):
    """Random images, transformed as MNIST's are; none is for validation.

    Args:
        images: how many.
        **options: see ``MNISTDataModule``.
    """

    def __init__(self, *, images: int, **options: Any) -> None:
        super().__init__(source="real", validation="none", **options)
        self.real_source = RandomSource(images)
