"""Stereo pairs of toys from two neighbouring viewpoints (Hinton, Krizhevsky and Wang 2011, section on 3-D)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from capsule_lab.data.formats import smallnorb as files
from capsule_lab.data.loader import Images, Index, InMemory
from capsule_lab.data.smallnorb import SmallNORBDataModule
from capsule_lab.data.splits import Indices
from capsule_lab.data.transforms import random_bits
from capsule_lab.types import Batch, DataSpec

_AZIMUTHS, _ELEVATIONS = 18, 9  # LeCun 2004: per toy and lighting
_DEGREES = 10  # per unit of azimuth; the file contains even numbers only
_LOWEST, _STEP = 30, 5  # LeCun 2004: degrees of elevation 0, and between elevations
_FIXED_OPTIONS: dict[str, tuple[object, str]] = {
    "stereo": ("channels", "pairs have both eyes as channels"),
    "test_crops": (1, "pairs have one crop"),
    "brightness": (None, "pairs are not augmented"),
    "contrast": (None, "pairs are not augmented"),
    "train_images": (None, "images would lose their neighbouring views"),
}
"""Options of ``SmallNORBDataModule`` that have a single value here, and why."""


class SmallNORBPairsDataModule(SmallNORBDataModule):
    """Pairs of views of a toy with the same lighting: neighbours in azimuth, elevation or both, or the same view.

    ``Batch.targets`` contains the second views, ``Batch.change`` the rotation of the camera between the two. Images
    show the whole toy, 48x48 pixels, standardised; the test set has other toys. An epoch has one pair per image.

    Args:
        categories: names of the categories; the paper uses cars.
        crop: side of the central crop, in pixels of 48.
        augment: draw new pairs in every training epoch; otherwise all epochs have the same.
        eval_images: maximum number of pairs in each validation and test set; second views come from all images.
        **options: see ``SmallNORBDataModule``; ``train_images`` is not allowed, as it would leave few neighbours.
    """

    def __init__(
        self,
        *,
        categories: Sequence[str] = ("car",),  # Hinton 2011, from memory
        crop: int = files.SIZE,
        **options: Any,
    ) -> None:
        super().__init__(crop=crop, **options)
        for name, (only, why) in _FIXED_OPTIONS.items():
            if options.get(name, only) != only:
                raise ValueError(
                    f"data.{name} is {options[name]}, but {why}; expected {only or 'null'}"
                )
        unknown = [name for name in categories if name not in files.CLASSES]
        if unknown or not categories:
            raise ValueError(
                f"data.categories is {[*categories]}; expected names from {', '.join(files.CLASSES)}"
            )
        self.categories = tuple(categories)

    @property
    def spec(self) -> DataSpec:
        return replace(super().spec, change=(3, 3))

    def describe(self) -> dict[str, Any]:
        facts = super().describe()
        categories = ", ".join(self.categories)
        return facts | {"name": f"pairs of views of {categories} of {facts['name']}"}

    def describe_test(self, counts: Mapping[str, int]) -> str:
        return f"{counts['test']} pairs of {self.test_sizes['test']}"

    def split_test(self, images: Images) -> tuple[Images, ...]:
        """Shuffle the test images, so that the first ones cover all toys and viewpoints."""
        order = np.random.default_rng(self.seed).permutation(len(images.labels))
        return super().split_test(images.subset(order))

    def load(self, *, train: bool) -> Images:
        images = super().load(train=train)
        wanted = torch.tensor([files.CLASSES.index(name) for name in self.categories])
        is_wanted = torch.isin(images.labels, wanted)
        return images.subset(is_wanted.nonzero()[:, 0])

    def dataset(self, name: str) -> InMemory:
        images = self.sets[name]
        if name == "train":
            return ViewPairs(images, self.seed, fixed=not self.augment)
        size = len(images.labels)
        if self.eval_images is not None:
            size = min(size, self.eval_images)
        return ViewPairs(images, self.seed, size=size, fixed=True)

    def _limit(self, indices: Indices, images: Images) -> Indices:
        return indices  # eval_images limits pairs

    def unpaired_batch(self, batch: Batch, name: str) -> Batch:
        first, _ = batch.images.chunk(2, dim=1)
        return super().transform_batch(batch._replace(images=first), "val")  # not augmented

    def transform_batch(self, batch: Batch, name: str) -> Batch:
        _, second = batch.images.chunk(2, dim=1)
        inputs = self.unpaired_batch(batch, name)
        targets = super().transform_batch(batch._replace(images=second), "val")
        return batch._replace(images=inputs.images, targets=targets.images)


class ViewPairs(InMemory):
    """Pairs each image with one of the same toy and lighting from a neighbouring viewpoint, drawn by the pair's key.

    ``Batch.images`` has the channels of both. Azimuths are cyclic; the lowest elevation has no neighbour below, and
    the highest none above. Images need smallNORB's factors.
    """

    def __init__(self, images: Images, seed: int, **options: Any) -> None:
        super().__init__(images, seed, **options)
        self.neighbours, self.counts = neighbouring_views(images)

    def __getitem__(self, batch: Index) -> Batch:
        index, _ = batch
        key = self.key(*batch)
        drawn = random_bits(key, 0) % self.counts[index]
        first = self.data.subset(index)
        second = self.data.subset(self.neighbours[index, drawn])
        both = torch.cat([first.images, second.images], 1)
        assert first.factors is not None
        assert second.factors is not None
        change = camera_rotation(*_degrees(first.factors), *_degrees(second.factors))
        return Batch(both, first.labels, key, first.factors, change=change)


def neighbouring_views(
    images: Images,
) -> tuple[Int64[Tensor, "image nine"], Int64[Tensor, " image"]]:
    """Find the images at most one step away from each image in azimuth and elevation: their indices and counts.

    The first ``counts`` entries of a row are the neighbours, including the image itself; the others are -1.
    """
    assert images.factors is not None
    instance, elevation, azimuth, lighting = images.factors.long().T
    # a scene is a toy in one lighting; views[scene, row, column] is the index of its image, -1 if there is none
    scenes = torch.stack([images.labels, instance, lighting], 1)
    _, scene = torch.unique(scenes, dim=0, return_inverse=True)
    row = elevation + 1  # the first and the last row stay empty
    column = azimuth // 2
    views = torch.full((int(scene.max()) + 1, _ELEVATIONS + 2, _AZIMUTHS), -1)
    views[scene, row, column] = torch.arange(len(scene))
    steps = product((-1, 0, 1), repeat=2)
    around = [views[scene, row + up, (column + right) % _AZIMUTHS] for right, up in steps]
    found = torch.stack(around, 1)
    is_missing = found < 0
    order = is_missing.long().argsort(dim=1, stable=True)
    return found.gather(1, order), (~is_missing).sum(1)


def _degrees(factors: Tensor) -> tuple[Tensor, Tensor]:
    """Return azimuth and elevation in degrees."""
    _, elevation, azimuth, _ = factors.T
    return _DEGREES * azimuth, _LOWEST + _STEP * elevation


def camera_rotation(
    azimuth: Int64[Tensor, " batch"],
    elevation: Int64[Tensor, " batch"],
    other_azimuth: Int64[Tensor, " batch"],
    other_elevation: Int64[Tensor, " batch"],
) -> Float[Tensor, "batch 3 3"]:
    """Compute the rotation from the frame of the first camera to the second; both look at the toy's centre.

    The axes of a frame point right, up and from the toy to the camera. Angles are in degrees.
    """
    return _frame(other_azimuth, other_elevation) @ _frame(azimuth, elevation).transpose(1, 2)


def _frame(azimuth: Tensor, elevation: Tensor) -> Float[Tensor, "batch 3 3"]:
    """Return the camera's right, up and backward directions in the toy's coordinates, one per row."""
    phi, theta = azimuth.double().deg2rad(), elevation.double().deg2rad()
    cos_phi, sin_phi = phi.cos(), phi.sin()
    cos_theta, sin_theta = theta.cos(), theta.sin()
    zero = torch.zeros_like(phi)
    right = torch.stack([-sin_phi, cos_phi, zero], 1)
    up = torch.stack([-cos_phi * sin_theta, -sin_phi * sin_theta, cos_theta], 1)
    backwards = torch.stack([cos_phi * cos_theta, sin_phi * cos_theta, sin_theta], 1)
    return torch.stack([right, up, backwards], 1).float()
