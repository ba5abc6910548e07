"""Pairs of images with a known change between them (Hinton, Krizhevsky and Wang 2011), from any data set."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal, NamedTuple, cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from capsule_lab.data.base import AbstractDataModule
from capsule_lab.data.loader import InMemory
from capsule_lab.data.mnist import MNISTDataModule, check_shift
from capsule_lab.data.transforms import (
    affine,
    affine_matrix,
    random_integers,
    random_uniform,
    shift,
)
from capsule_lab.errors import check_choice, check_number
from capsule_lab.types import Batch, DataSpec

Change = Literal["shift", "affine"]
Moved = Literal["both", "target"]

CHANGES: dict[Change, tuple[int, ...]] = {"shift": (2,), "affine": (3, 3)}  # shapes of the change

_DRAWS = 5  # random draws for the first image of an affine pair; those for the second follow


class Pair(NamedTuple):
    """Two versions of each image: the network's input and its target."""

    first: Float[Tensor, "batch channel height width"]
    second: Float[Tensor, "batch channel height width"]
    change: Float[Tensor, "batch 2"] | Float[Tensor, "batch 3 3"]
    """The change from the first to the second: ``(right, down)`` in pixels, or a matrix."""


class ImagePairs(AbstractDataModule):
    """Mixin that makes pairs from the images of a DataModule with one label per image; pairs are never stored.

    It precedes the DataModule: ``class MNISTPairsDataModule(ImagePairs, MNISTDataModule)``. Both images of a pair are
    versions of one stored image, which the DataModule preprocesses as in validation. The key of an image determines
    its pair: training has new pairs in every epoch, validation and testing always the same. ``Batch.images`` contains
    the first images, ``Batch.targets`` the second, ``Batch.change`` the changes; labels stay, so that classifiers can
    be trained on the first images. Everything is computed on the batch's device.

    Args:
        change: ``"shift"``, by whole pixels, padded with zeros; or ``"affine"``: rotation, scale and shear about the
            centre, then a shift. For the latter, the network receives a matrix in homogeneous coordinates, whose unit
            is half the side of the image.
        shift: largest shift of each image in each direction, in pixels; affine pairs are not limited to whole pixels.
        moved: transform ``"both"`` images, or only the ``"target"``. If the first image never moves, capsules do not
            need poses to locate it.
        rotation: largest rotation of each image in affine pairs, in degrees.
        scale: largest scale factor in affine pairs; the smallest is its inverse.
        shear: largest shear in affine pairs: pixels to the right per pixel above the centre.
        augment: draw new pairs in every training epoch; otherwise all epochs have the same.
        **options: options of the DataModule.
    """

    def __init__(
        self,
        *,
        change: Change = "shift",
        shift: int = 2,  # Hinton 2011, from memory
        moved: Moved = "both",
        rotation: float = 20.0,  # ours
        scale: float = 1.25,  # ours
        shear: float = 0.2,  # ours
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_choice("data.change", change, tuple(CHANGES))
        check_choice("data.moved", moved, ("both", "target"))
        check_number("data.rotation", rotation, 0)
        check_number("data.scale", scale, 1)
        check_number("data.shear", shear, 0)
        self.change: Change = change
        check_shift(shift, min(self.spec.image_shape[1:]))
        self.moved: Moved = moved
        self.largest_shift = shift
        self.rotation, self.scale, self.shear = math.radians(rotation), math.log(scale), shear

    @property
    def spec(self) -> DataSpec:
        images: DataSpec = cast(Any, super()).spec  # of the DataModule that follows
        return replace(images, change=CHANGES[self.change])

    @property
    def input_form(self) -> dict[str, Any]:
        return {"kind": "a pair of images"}

    def describe(self) -> dict[str, Any]:
        facts = super().describe()
        return facts | {"name": f"pairs of {facts['name']}"}

    def dataset(self, name: str) -> InMemory:
        return InMemory(self.sets[name], self.seed, fixed=name != "train" or not self.augment)

    def unpaired_batch(self, batch: Batch, name: str) -> Batch:
        return super().transform_batch(batch, "val" if name == "train" else name)  # not augmented

    def transform_batch(self, batch: Batch, name: str) -> Batch:
        seen = self.unpaired_batch(batch, name)
        pair = self.pair(seen.images, batch.key)
        return seen._replace(images=pair.first, targets=pair.second, change=pair.change)

    def pair(
        self, images: Float[Tensor, "batch channel height width"], key: Int64[Tensor, " batch"]
    ) -> Pair:
        if self.change == "shift":
            return self._shifted(images, key, self.largest_shift)
        unit = max(images.shape[2:]) / 2
        first, matrix = images, torch.eye(3, device=images.device).expand(len(images), 3, 3)
        if self.moved == "both":
            first, matrix = self._affine(images, key, 0, unit)
        second, other = self._affine(images, key, _DRAWS, unit)
        return Pair(first, second, other @ torch.linalg.inv_ex(matrix).inverse)

    def _shifted(self, images: Tensor, key: Tensor, largest: int) -> Pair:
        down, right, other_down, other_right = (
            random_integers(key, stream, -largest, largest) for stream in range(4)
        )
        if self.moved == "target":
            down, right = torch.zeros_like(down), torch.zeros_like(right)
        first = shift(images, down, right, largest)
        second = shift(images, other_down, other_right, largest)
        change = torch.stack([other_right - right, other_down - down], 1)
        return Pair(first, second, change.to(images.dtype))

    def _affine(
        self, images: Tensor, key: Tensor, stream: int, unit: float
    ) -> tuple[Tensor, Tensor]:
        """Return transformed images and their homogeneous matrices, with half the image as the unit."""
        shift = float(self.largest_shift)
        largest = (self.rotation, self.scale, self.shear, shift, shift)
        draws = (
            random_uniform(key, number, -most, most) for number, most in enumerate(largest, stream)
        )
        rotation, log_scale, shear, right, down = draws
        scale = log_scale.exp()
        matrix = torch.zeros(len(images), 3, 3, device=images.device)
        matrix[:, :2, :2] = affine_matrix(
            rotation=rotation, shear=shear, scale_x=scale, scale_y=scale
        )
        matrix[:, :2, 2] = torch.stack([right, down], 1) / unit
        matrix[:, 2, 2] = 1
        moved = affine(
            images,
            rotation=rotation,
            shear=shear,
            scale_x=scale,
            scale_y=scale,
            right=right,
            down=down,
        )
        return moved, matrix


class MNISTPairsDataModule(ImagePairs, MNISTDataModule):
    """Pairs of MNIST digits: see ``ImagePairs`` and ``MNISTDataModule``."""
