"""Expanded MNIST: digits placed at random on a black canvas of 40x40 pixels (Sabour 2017, section 5.2)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from capsule_lab.data.loader import InMemory
from capsule_lab.data.mnist import MNISTDataModule
from capsule_lab.data.transforms import random_shift, to_unit_interval
from capsule_lab.types import Batch, DataSpec

PAD = 6  # official code of Sabour 2017, README: "shift 6, pad 6"


class FixedPlaces(InMemory):
    """Every image with the same key in every epoch, and so in the same place: a function of the seed and its index."""

    def __getitem__(self, batch: tuple[Tensor, int]) -> Batch:
        index, _ = batch
        return super().__getitem__((index, 0))


class ExpandedMNISTDataModule(MNISTDataModule):
    """MNIST on a larger canvas, each digit somewhere on it, its 28x28 pixels always whole.

    Every place that ``shift`` allows is as likely, 13x13 of them by default. A training image has another place in
    every epoch; validation and test images have one each for ever, which the seed and their index decide. The official
    code writes out every image in all 169 places instead, and goes through these in a random order.

    Args:
        pad: zeros around the 28x28 pixels: 6 gives 40x40.
        shift: largest move from the middle in each direction, in pixels; at most ``pad``.
        augment: other places in every epoch of training; without, the same.
        **options: see ``MNISTDataModule``.

    Raises:
        ValueError: for a negative ``pad``, or a ``shift`` that is negative or larger than ``pad``.
    """

    def __init__(self, *, pad: int = PAD, shift: int = 6, **options: Any) -> None:  # 6: official code, README
        super().__init__(shift=shift, **options)
        if pad < 0:
            raise ValueError(f"data.pad is {pad}; expected 0 or more pixels")
        if shift > pad:
            raise ValueError(
                f"data.shift is {shift} with data.pad {pad}, which would push digits over the edge; expected a shift "
                "of at most the pad"
            )
        self.pad = pad
        size = 28 + 2 * pad  # 28: MNIST
        self.spec = DataSpec(image_shape=(1, size, size), num_classes=10)

    def describe(self, *, real: bool) -> dict[str, Any]:
        facts = super().describe(real=real)
        _, height, width = self.spec.image_shape
        return facts | {"name": f"{facts['name']}, placed on {height}x{width}"}

    def dataset(self, name: str) -> InMemory:
        moving = name == "train" and self.augment
        return (InMemory if moving else FixedPlaces)(self.sets[name], self.seed)

    def transform(self, images: Tensor, key: Tensor, *, augment: bool) -> Tensor:
        """Each digit in its place, which its key decides; ``augment`` has decided on the keys already."""
        canvas = torch.nn.functional.pad(to_unit_interval(images), (self.pad,) * 4)  # 4 sides
        return random_shift(canvas, key, self.shift)
