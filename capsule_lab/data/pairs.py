"""Pairs of images of different classes: which, drawn from the pair's key; and how one is laid over the other."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from capsule_lab.data.loader import Images, InMemory
from capsule_lab.data.transforms import random_bits, sample_key
from capsule_lab.types import Batch

Blend = Literal["sum", "max"]

_PARTNER = 0  # number of the draw, see random_bits


class Pairs(InMemory):
    """Every image with others of another class; none of the pairs is ever stored.

    The first of pair ``n`` is image ``n`` modulo their number, so that all come round before one comes again. The
    second is drawn from all images of other classes, each as likely, by the key of the pair: a function of the seed,
    the epoch and ``n`` alone.

    Args:
        images: to pair with each other.
        seed: of the draws.
        size: number of pairs in an epoch.
        fixed: the same pairs in every epoch.

    Raises:
        ValueError: for a size below 1, or images of one class only.
    """

    def __init__(self, images: Images, seed: int, *, size: int, fixed: bool) -> None:
        super().__init__(images, seed)
        count = len(images.labels)
        if size < 1:
            raise ValueError(f"the number of pairs is {size}; expected 1 or more")
        self.size = size
        self.fixed = fixed
        labels = images.labels
        self.by_class = labels.argsort(stable=True)
        self.counts = torch.bincount(labels)  # [class]
        self.starts = self.counts.cumsum(0) - self.counts
        if count and self.counts.max() == count:
            raise ValueError(f"all {count} images are of class {int(labels[0])}; expected several, to pair them")

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, batch: tuple[Tensor, int]) -> Batch:
        index, epoch = batch
        key = sample_key(self.seed, 0 if self.fixed else epoch, index)
        first = index % len(self.data.labels)
        chosen = torch.stack([first, self.partners(first, key)], 1)  # [b 2]
        return Batch(self.data.images[chosen].flatten(1, 2), self.data.labels[chosen], key)

    def partners(self, first: Int64[Tensor, " batch"], key: Int64[Tensor, " batch"]) -> Int64[Tensor, " batch"]:
        """An image of another class for each of ``first``."""
        label = self.data.labels[first]
        others = len(self.data.labels) - self.counts[label]
        place = random_bits(key, _PARTNER) % others  # among all images by class, its own class left out
        return self.by_class[torch.where(place < self.starts[label], place, place + self.counts[label])]


def overlay(
    parts: Float[Tensor, "batch label channel height width"], blend: Blend
) -> Float[Tensor, "batch channel height width"]:
    """One image of several in [0, 1]: their sum, clipped at 1 (Sabour 2017, section 6), or their maximum."""
    return parts.sum(1).clamp(max=1) if blend == "sum" else parts.amax(1)
