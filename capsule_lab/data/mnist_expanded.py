"""Expanded MNIST: digits placed at random on a black canvas of 40x40 pixels (Sabour 2017, section 5.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from capsule_lab.data.base import AbstractDataModule
from capsule_lab.data.loader import InMemory
from capsule_lab.data.mnist import DIGIT, SIZE, MNISTFiles, check_shift
from capsule_lab.data.standins.digits import StandinDigits
from capsule_lab.data.transforms import random_shift, to_unit_interval
from capsule_lab.errors import check_number
from capsule_lab.types import DataSpec

if TYPE_CHECKING:
    from PIL import Image

    from capsule_lab.data.formats.pictures import Polarity

PAD = 6  # official code of Sabour 2017, README: "shift 6, pad 6"


class ExpandedMNISTDataModule(AbstractDataModule):
    """MNIST on a larger canvas: each digit is placed at random, and its 28x28 pixels are always complete.

    All positions that ``shift`` allows are equally likely, by default 13x13. A training image moves to a new position
    in every epoch; the position of a validation or test image depends only on the seed and its index. The official
    code instead stores every image in all 169 positions, and iterates over these in a random order.

    Args:
        pad: zeros around the 28x28 pixels: 6 gives 40x40.
        shift: largest shift from the middle in each direction, in pixels; at most ``pad``.
        augment: draw new positions in every training epoch; otherwise all epochs have the same.
        **options: see ``AbstractDataModule``.
    """

    def __init__(
        self,
        *,
        pad: int = PAD,
        shift: int = 6,  # official code of Sabour 2017, README
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_shift(shift)
        check_number("data.pad", pad, 0)
        if shift > pad:
            raise ValueError(
                f"data.shift is {shift} with data.pad {pad}, which would push digits over the edge; expected a shift "
                f"of at most {pad}"
            )
        self.pad = pad
        self.shift = shift
        self.real_source = MNISTFiles(self.directory)
        self.standin_source = StandinDigits()

    @property
    def spec(self) -> DataSpec:
        size = SIZE + 2 * self.pad
        return DataSpec(image_shape=(1, size, size), num_classes=10)

    @property
    def input_form(self) -> dict[str, Any]:
        return DIGIT | {"size": list(self.spec.image_shape[1:])}

    def from_picture(self, picture: Image.Image, *, polarity: Polarity = "auto") -> Tensor:
        """Place the digit in the middle; see ``AbstractDataModule.from_picture``."""
        digit = to_unit_interval(self.stored_picture(picture, polarity))
        return torch.nn.functional.pad(digit, (self.pad,) * 4)

    def describe(self) -> dict[str, Any]:
        return placed(super().describe(), self.pad)

    def dataset(self, name: str) -> InMemory:
        return InMemory(self.sets[name], self.seed, fixed=name != "train" or not self.augment)

    def transform(self, images: Tensor, key: Tensor, *, augment: bool) -> Tensor:
        """Place each digit at random, also without ``augment``: the keys determine the positions, see ``dataset``."""
        canvas = torch.nn.functional.pad(to_unit_interval(images), (self.pad,) * 4)
        return random_shift(canvas, key, self.shift)


def placed(provenance: dict[str, Any], pad: int) -> dict[str, Any]:
    """Return the provenance of digits that are placed on a canvas."""
    size = SIZE + 2 * pad
    return provenance | {"name": f"{provenance['name']}, placed on {size}x{size}"}
