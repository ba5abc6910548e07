"""The stand-in for MNIST: the handwritten digits that scikit-learn bundles, in MNIST's format.

These are 1797 digits of 8x8 pixels in 17 grey levels, written by 13 people (the test part of UCI's Optical Recognition
of Handwritten Digits), upsampled to MNIST's 20x20 box inside 28x28. They are ordered by writer: the last fifth, which
serves as the test set, comes from people with hardly any digits in the training set.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchvision.transforms.v2 import functional as transforms

from capsule_lab.data.loader import Images
from capsule_lab.data.sources import AbstractSource, tensor_hash

STANDIN_VERSION = 1
STANDIN_NAME = "stand-in for MNIST: scikit-learn's 1797 handwritten digits, 8x8 upsampled to 28x28"

_TEST_SHARE = 5  # ours: one in five is a test image
_BOX = 20  # LeCun 1998: MNIST's digits are fitted into a 20x20 box
_MARGIN = 4  # (28 - 20) / 2
_PIXELS = 8  # width and height of the digits
_GREYS = 16  # their largest pixel


class StandinDigits(AbstractSource):
    """The stand-in for MNIST."""

    def load(self, *, train: bool) -> Images:
        return standin_digits(train=train)

    def provenance(self) -> dict[str, Any]:
        return {
            "name": STANDIN_NAME,
            "generator": "capsule_lab.data.standins.digits",
            "version": STANDIN_VERSION,
            "sha256": tensor_hash(standin_digits(train=True)),
        }


@functools.cache
def standin_digits(*, train: bool) -> Images:
    """Return the training or test images, ``(n, 1, 28, 28)`` uint8; read-only, because they are cached."""
    pixels, labels = np.split(_read_digits(), [_PIXELS**2], axis=1)
    images = torch.from_numpy(pixels).float() / _GREYS
    images = images.view(-1, 1, _PIXELS, _PIXELS)
    box = transforms.resize(
        images, [_BOX, _BOX], interpolation=transforms.InterpolationMode.BICUBIC, antialias=False
    )
    stored = (255 * box.clamp(0, 1)).round().to(torch.uint8)
    stored = torch.nn.functional.pad(stored, (_MARGIN,) * 4)
    everything = Images(stored, torch.from_numpy(labels[:, 0]).long())
    number = len(stored)
    cut = number - number // _TEST_SHARE
    return everything.subset(range(cut) if train else range(cut, number))


def _read_digits() -> npt.NDArray[np.float64]:
    """Return ``sklearn.datasets.load_digits(as_frame=False)`` as rows of 64 pixels and a label."""
    return np.loadtxt(Path(__file__).parent / "uci_digits" / "digits.csv.gz", delimiter=",")
