"""The stand-in for CIFAR10 and SVHN: ``standin_digits`` in colour, 32x32.

Each digit has one colour, on a cloud-like background of two other colours; either the digit is light and the background
dark, or vice versa. Nothing is downloaded, and no image is a photograph.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from capsule_lab.data.loader import Images
from capsule_lab.data.sources import AbstractSource, tensor_hash
from capsule_lab.data.standins.digits import standin_digits
from capsule_lab.data.transforms import random_uniform, sample_key, to_unit_interval

SIZE = 32  # CIFAR10's and SVHN's pixels a side
VERSION = 1

_DARK = 0.4  # ours: largest value of a dark channel; light ones are at least 1 - 0.4, so that all digits are visible
_CLOUD = 4  # ours: random values per side, one per 8 pixels, which are interpolated to a cloud
# streams of the random draws, see random_bits
_COLOUR_STREAMS = range(9)  # three colours of three channels
_CLOUD_STREAMS = range(9, 9 + _CLOUD**2)
_INVERT = 9 + _CLOUD**2


class ColouredDigits(AbstractSource):
    """The stand-in for the data set ``name``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def load(self, *, train: bool) -> Images:
        return coloured_digits(train=train)

    def provenance(self) -> dict[str, Any]:
        digits = "scikit-learn's 1797 handwritten digits"
        return {
            "name": f"stand-in for {self.name}: {digits}, coloured, on clouds of colour, 32x32",
            "generator": "capsule_lab.data.standins.coloured_digits",
            "version": VERSION,
            "sha256": tensor_hash(coloured_digits(train=True)),
        }


@functools.cache
def coloured_digits(*, train: bool) -> Images:
    """Return the training or test images, ``(n, 3, 32, 32)`` uint8; read-only, because they are cached."""
    digits = standin_digits(train=train)
    number = len(digits.labels)
    margin = (SIZE - digits.images.shape[3]) // 2
    key = sample_key(VERSION, 0 if train else 1, torch.arange(number))
    colours = _DARK * _draws(key, _COLOUR_STREAMS).reshape(number, 3, 3, 1, 1)
    cloud = _draws(key, _CLOUD_STREAMS).reshape(number, 1, _CLOUD, _CLOUD)
    cloud = torch.nn.functional.interpolate(cloud, (SIZE, SIZE), mode="bilinear")
    background = torch.lerp(colours[:, 0], colours[:, 1], cloud)
    ink = torch.nn.functional.pad(to_unit_interval(digits.images), (margin,) * 4)
    light_on_dark = torch.lerp(background, 1 - colours[:, 2], ink)
    is_inverted = random_uniform(key, _INVERT, 0.0, 1.0).reshape(number, 1, 1, 1) < 1 / 2
    images = torch.where(is_inverted, 1 - light_on_dark, light_on_dark)
    return Images((255 * images).round().to(torch.uint8), digits.labels)


def _draws(key: Tensor, streams: range) -> Tensor:
    """Draw uniform numbers from 0 to 1, ``(key, stream)``."""
    return torch.stack([random_uniform(key, stream, 0.0, 1.0) for stream in streams], 1)
