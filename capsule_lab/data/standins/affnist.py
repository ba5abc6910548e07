"""Synthetic affNIST: the stand-in for affNIST's test set, made from any digits, batch by batch.

affNIST's page describes the process: each digit is rotated, sheared and scaled at random, and placed at random on
40x40 pixels without losing any part. The page has no code; ranges and order follow reports of its users. An error on
synthetic affNIST is therefore close to an error on affNIST, but cannot replace it.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from capsule_lab.data.formats.affnist import SIZE, VERSIONS
from capsule_lab.data.loader import Images, Index, InMemory
from capsule_lab.data.transforms import (
    affine,
    crop,
    random_bits,
    random_uniform,
    sample_key,
    to_unit_interval,
)
from capsule_lab.types import Batch

STANDIN_NAME = "synthetic affNIST"
STANDIN_VERSION = 1
FACTORS = ("rotation", "shear", "scale_x", "scale_y", "right", "down")
"""Factors of ``SyntheticAffNIST``: rotation in degrees counter-clockwise, the others as in ``transforms.affine``."""

RANGES = {  # affNIST as described by its users; ours: uniform scales, where TensorFlow Federated has log-uniform ones
    "rotation": (-20.0, 20.0),  # degrees
    "shear": (-0.2, 0.2),
    "scale_x": (0.8, 1.2),
    "scale_y": (0.8, 1.2),
}
# streams of the draws, after those of RANGES; see random_bits
_DOWN = len(RANGES)
_RIGHT = len(RANGES) + 1
_AT_ONCE = 500  # ours: versions computed at once, 6 MB as floats
_CANVAS = 54  # ours: 28x28 pixels transformed within RANGES reach 25.6 pixels from the middle


class SyntheticAffNIST(InMemory):
    """Affine versions of every image, computed batch by batch and never stored.

    Version ``n`` shows image ``n`` modulo the number of images, so that all images are used equally often. Its
    transformation depends on the seed and ``n`` alone. Everything is computed on the CPU, so that pixels do not depend
    on the device of the network. Images are ``(n, 1, 28, 28)`` digits; ``size`` limits the number of all versions;
    ``farthest`` limits the positions, see ``place``.
    """

    def __init__(
        self,
        images: Images,
        seed: int,
        *,
        versions: int = VERSIONS,
        size: int | None = None,
        farthest: int | None = None,
    ) -> None:
        super().__init__(images, seed)
        self.farthest = farthest
        everything = versions * len(images.labels)
        self.size = everything if size is None else min(size, everything)

    def to(self, device: torch.device) -> InMemory:
        """Return the set itself: it stays on the CPU for every ``device``."""
        return self

    def __getitem__(self, batch: Index) -> Batch:
        index, _ = batch
        key = sample_key(self.seed, 0, index)
        image = index % len(self.data.labels)
        pixels, factors = transformed(self.data.images[image], key, self.farthest)
        return Batch(pixels, self.data.labels[image], key, factors)

    def stored(self) -> Images:
        """Compute all versions, for small sets that are used often: 1600 bytes each."""
        batches = [self[index, 0] for index in torch.arange(self.size).split(_AT_ONCE)]
        return Images(
            torch.cat([batch.images for batch in batches]),
            torch.cat([batch.labels for batch in batches]),
            torch.cat([cast(Tensor, batch.factors) for batch in batches]),
        )


def transformed(
    images: UInt8[Tensor, "batch 1 28 28"],
    key: Int64[Tensor, " batch"],
    farthest: int | None = None,
) -> tuple[UInt8[Tensor, "batch 1 40 40"], Float[Tensor, "batch 6"]]:
    """Transform each image by its key, bilinearly, to 256 grey levels as in affNIST; also return the ``FACTORS``.

    ``farthest`` is that of ``place``.
    """
    rotation, shear, scale_x, scale_y = (
        random_uniform(key, stream, low, high) for stream, (low, high) in enumerate(RANGES.values())
    )
    margin = (_CANVAS - images.shape[2]) // 2
    canvas = torch.nn.functional.pad(to_unit_interval(images), (margin,) * 4)
    still = torch.zeros_like(rotation)
    wide = affine(
        canvas,
        rotation=rotation * (math.pi / 180),
        shear=shear,
        scale_x=scale_x,
        scale_y=scale_y,
        right=still,
        down=still,
    )
    grey = (255 * wide).round().to(torch.uint8)
    pixels, down, right = place(grey, key, farthest)
    factors = [rotation, shear, scale_x, scale_y, right.float(), down.float()]  # as FACTORS
    return pixels, torch.stack(factors, 1)


def place(
    images: UInt8[Tensor, "batch 1 side side"],
    key: Int64[Tensor, " batch"],
    farthest: int | None = None,
) -> tuple[UInt8[Tensor, "batch 1 40 40"], Int64[Tensor, " batch"], Int64[Tensor, " batch"]]:
    """Place the part of each image that is not black uniformly at random, completely inside 40x40 pixels.

    A part that is larger, which no digit of MNIST becomes, is centred and loses its edges. With ``farthest``, each
    image moves by at most so many pixels on each axis.
    Also return the number of pixels by which each was moved down and to the right, relative to the centred image.
    """
    ink = images[:, 0] > 0  # [b row column]
    middle = (images.shape[2] - SIZE) // 2
    allowed = None if farthest is None else (middle - farthest, middle + farthest)
    top = _corner(ink.any(2), key, _DOWN, allowed)
    left = _corner(ink.any(1), key, _RIGHT, allowed)
    padded = torch.nn.functional.pad(images, (SIZE,) * 4)
    return crop(padded, top + SIZE, left + SIZE, SIZE), middle - top, middle - left


def _corner(ink: Tensor, key: Tensor, stream: int, allowed: tuple[int, int] | None) -> Tensor:
    """Draw the start of the 40-pixel window on one axis, from all positions whose window contains all ``ink``.

    ``allowed`` are the first and the last position to choose from; ``None`` without a limit.
    """
    side = ink.shape[1]
    position = torch.arange(side)
    first = torch.where(ink, position, side).amin(1)
    last = torch.where(ink, position, -1).amax(1)
    lowest, highest = last - (SIZE - 1), first
    if allowed is not None:
        lowest, highest = lowest.clamp(*allowed), highest.clamp(*allowed)
    choices = highest - lowest + 1
    chosen = lowest + random_bits(key, stream) % choices.clamp(min=1)
    return torch.where(choices < 1, (lowest + highest) // 2, chosen)


def standin_provenance(seed: int) -> dict[str, Any]:
    """Return the provenance of the test images."""
    return {
        "generator": "capsule_lab.data.standins.affnist",
        "version": STANDIN_VERSION,
        "seed": seed,
    }
