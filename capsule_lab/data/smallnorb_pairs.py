"""Stereo pairs of toys from two neighbouring viewpoints (Hinton, Krizhevsky and Wang 2011, section on 3-D)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
        ignored = {
            "stereo": ("channels", "pairs have both eyes as channels"),
            "test_crops": (1, "pairs have one crop"),
            "brightness": (None, "pairs are not augmented"),
            "contrast": (None, "pairs are not augmented"),
            "train_images": (None, "images would lose their neighbouring views"),
        }
        for name, (only, why) in ignored.items():
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
        return facts | {
            "name": f"pairs of views of {', '.join(self.categories)} of {facts['name']}"
        }

    def describe_test(self, counts: Mapping[str, int]) -> str:
        return f"{counts['test']} pairs of {self.test_sizes['test']}"

    def split_test(self, images: Images) -> tuple[Images, ...]:
        """Shuffle the test images, so that the first ones cover all toys and viewpoints."""
        order = np.random.default_rng(self.seed).permutation(len(images.labels))
        return super().split_test(images.subset(order))

    def load(self, *, train: bool) -> Images:
        images = super().load(train=train)
        wanted = torch.tensor([files.CLASSES.index(name) for name in self.categories])
        return images.subset(torch.isin(images.labels, wanted).nonzero()[:, 0])

    def dataset(self, name: str) -> InMemory:
        images = self.sets[name]
        size = (
            None
            if name == "train" or self.eval_images is None
            else min(len(images.labels), self.eval_images)
        )
        return ViewPairs(images, self.seed, size=size, fixed=name != "train" or not self.augment)

    def _limit(self, indices: Indices, images: Images) -> Indices:
        return indices  # eval_images limits pairs

    def unpaired_batch(self, batch: Batch, name: str) -> Batch:
        first, _ = batch.images.chunk(2, dim=1)
        return super().transform_batch(batch._replace(images=first), "val")

    def transform_batch(self, batch: Batch, name: str) -> Batch:
        first, second = (
            super(SmallNORBPairsDataModule, self)
            .transform_batch(batch._replace(images=images), "val")
            .images
            for images in batch.images.chunk(2, dim=1)
        )
        return batch._replace(images=first, targets=second)


class ViewPairs(InMemory):
    """Pairs each image with one of the same toy and lighting from a neighbouring viewpoint, drawn by the pair's key.

    ``Batch.images`` has the channels of both. Azimuths are cyclic; the lowest elevation has no neighbour below, and
    the highest none above. Images need smallNORB's factors.
    """

    def __init__(self, images: Images, seed: int, **options: Any) -> None:
        super().__init__(images, seed, **options)
        self.neighbours, self.counts = neighbouring_views(images)

    def __getitem__(self, batch: Index) -> Batch:
        index, key = batch[0], self.key(*batch)
        partner = self.neighbours[index, random_bits(key, 0) % self.counts[index]]
        both = torch.cat([self.data.images[index], self.data.images[partner]], 1)
        assert self.data.factors is not None
        factors = self.data.factors[index]
        change = camera_rotation(*_degrees(factors), *_degrees(self.data.factors[partner]))
        return Batch(both, self.data.labels[index], key, factors, change=change)


def neighbouring_views(
    images: Images,
) -> tuple[Int64[Tensor, "image nine"], Int64[Tensor, " image"]]:
    """Find the images at most one step away from each image in azimuth and elevation: their indices and counts.

    The first ``counts`` entries of a row are the neighbours, including the image itself; the others are -1.
    """
    assert images.factors is not None
    instance, elevation, azimuth, lighting = images.factors.long().T
    row, column = elevation + 1, azimuth // 2  # the first and the last row stay empty
    _, scene = torch.unique(
        torch.stack([images.labels, instance, lighting], 1), dim=0, return_inverse=True
    )
    table = torch.full((int(scene.max()) + 1, _ELEVATIONS + 2, _AZIMUTHS), -1)
    table[scene, row, column] = torch.arange(len(scene))
    steps = (-1, 0, 1)
    rows = torch.stack(
        [table[scene, row + e, (column + a) % _AZIMUTHS] for a in steps for e in steps], 1
    )
    order = (rows < 0).long().argsort(dim=1, stable=True)
    return rows.gather(1, order), (rows >= 0).sum(1)


def _degrees(factors: Tensor) -> tuple[Tensor, Tensor]:
    azimuth, elevation = (
        factors[:, files.FACTORS.index(name)] for name in ("azimuth", "elevation")
    )
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
    p, t = azimuth.double().deg2rad(), elevation.double().deg2rad()
    zero = torch.zeros_like(p)
    right = torch.stack([-p.sin(), p.cos(), zero], 1)
    up = torch.stack([-p.cos() * t.sin(), -p.sin() * t.sin(), t.cos()], 1)
    backwards = torch.stack([p.cos() * t.cos(), p.sin() * t.cos(), t.sin()], 1)
    return torch.stack([right, up, backwards], 1).float()
