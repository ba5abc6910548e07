"""MultiMNIST: two overlapping digits of different classes (Sabour, Frosst and Hinton 2017, section 6)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int64
from torch import Tensor

from capsule_lab.data import transforms
from capsule_lab.data.base import AbstractDataModule
from capsule_lab.data.loader import Images, Index, InMemory
from capsule_lab.data.mnist import SIZE, MNISTFiles, check_shift
from capsule_lab.data.splits import Indices
from capsule_lab.data.standins.digits import StandinDigits
from capsule_lab.errors import check_choice, check_number
from capsule_lab.types import Batch, DataSpec

Blend = Literal["sum", "max"]
Placing = Literal["shift", "affine"]
SameClass = Literal["never", "also", "only"]

PAIRS_PER_IMAGE = 1000  # section 6: pairs with the same first image, 10 million for testing

# streams of the random draws, see random_bits: the second image, then the positions
_PARTNER = 0
_FIRST = 1
_TURN = math.radians(5)  # from a tutorial
_SCALE = (0.5, 0.7)  # from the same tutorial


class MultiMNISTDataModule(AbstractDataModule):
    """Pairs of overlapping MNIST digits, composed batch by batch on the batch's device and never stored.

    Every image is paired with an image of another class from the same split; both are shifted independently, and the
    two are overlaid. A training epoch has one pair per image, and every epoch has new pairs; pairs for validation and
    testing are the same in every epoch. ``Batch.images`` contains the composites, ``Batch.parts`` the two digits
    separately at their positions, and ``Batch.labels`` the two classes, which differ unless ``same_class`` allows
    equal ones.

    The paper states an average overlap of 80 % of the 20x20 boxes; shifting both digits by up to 4 pixels gives
    72.6 %, and shifting only one 79.0 %. The official code shifts the first digit equally for all its partners;
    here every pair has its own shifts.

    Args:
        pad: zeros around the 28x28 pixels: 4 gives 36x36.
        shift: largest shift of each digit in each direction, in pixels: 4 in the paper, 6 in the code's README.
        blend: ``"sum"``, clipped at 1 (section 6), or ``"max"``, as in tutorials.
        placing: ``"shift"`` (section 6), or ``"affine"``: rotation by up to 5 degrees, shift by up to a fifth of the
            canvas, and scale 0.5 to 0.7, as in a tutorial.
        same_class: pairs of two digits of one class: ``"never"`` (section 6), ``"also"``, as often as drawing from all
            other images gives them, or ``"only"``. Such a pair counts as right if its class ranks first.
        val_pairs, test_pairs: number of pairs; up to 1,000 per image of the split.
        eval_images: maximum number of pairs in each validation and test set, made from all images; ``None`` for all.
        augment: draw new pairs in every training epoch; otherwise all epochs have the same.
        **options: see ``AbstractDataModule``.
    """

    def __init__(
        self,
        *,
        pad: int = 4,  # section 6: 36x36
        shift: int = 4,  # section 6
        blend: Blend = "sum",
        placing: Placing = "shift",
        same_class: SameClass = "never",
        val_pairs: int = 10_000,  # ours: as many as images
        test_pairs: int = 10_000,  # ours: as many as images; the paper has 10 million
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_number("data.pad", pad, 0)
        check_shift(shift, SIZE + 2 * pad)
        check_choice("data.blend", blend, ("sum", "max"))
        check_choice("data.placing", placing, ("shift", "affine"))
        check_choice("data.same_class", same_class, ("never", "also", "only"))
        check_number("data.val_pairs", val_pairs, 1)
        check_number("data.test_pairs", test_pairs, 1)
        self.pad = pad
        self.shift = shift
        self.blend: Blend = blend
        self.placing: Placing = placing
        self.same_class: SameClass = same_class
        self.pairs = {"val": val_pairs, "test": test_pairs}
        self.real_source = MNISTFiles(self.directory)
        self.standin_source = StandinDigits()

    @property
    def spec(self) -> DataSpec:
        size = SIZE + 2 * self.pad
        return DataSpec(image_shape=(1, size, size), num_classes=10, labels_per_image=2)

    @property
    def input_form(self) -> dict[str, Any]:
        return {"kind": "two overlapping digits"}

    def from_arrays(self, path: Path) -> Tensor:
        """Return composites, not single digits, which ``transform`` would place: see ``AbstractDataModule``."""
        return transforms.to_unit_interval(self.stored_arrays(path))

    def describe(self) -> dict[str, Any]:
        facts = super().describe()
        return facts | {"name": f"pairs of digits of {facts['name']}"}

    def describe_test(self, counts: Mapping[str, int]) -> str:
        return f"{counts['test']} pairs of {self.test_sizes['test']}"

    def whole_test_size(self) -> int:
        return self.pairs["test"]

    def dataset(self, name: str) -> InMemory:
        images, same_class = self.sets[name], self.same_class
        if name == "train":
            return Pairs(images, self.seed, same_class=same_class, fixed=not self.augment)
        size = self.pairs[name]
        check_number(f"data.{name}_pairs", size, 1, PAIRS_PER_IMAGE * len(images.labels))
        if self.eval_images is not None:
            size = min(size, self.eval_images)
        return Pairs(images, self.seed, same_class=same_class, size=size, fixed=True)

    def _limit(self, indices: Indices, images: Images) -> Indices:
        return indices  # eval_images limits pairs

    def transform_batch(self, batch: Batch, name: str) -> Batch:
        """Compose each pair; return the composites and their parts."""
        digits = batch.images.flatten(0, 1)[:, None]  # [2b 1 height width]
        keys = torch.stack([batch.key, batch.key + 1], 1)  # one for each digit of a pair
        placed = self.transform(digits, keys.flatten(), augment=True)
        parts = placed.unflatten(0, (-1, 2))  # [b 2 1 height width]
        images = parts.sum(1).clamp(max=1) if self.blend == "sum" else parts.amax(1)
        return batch._replace(images=images, parts=parts)

    def transform(self, images: Tensor, key: Tensor, *, augment: bool) -> Tensor:
        """Place each digit at random, also without ``augment``: the keys determine the positions, see ``dataset``."""
        canvas = torch.nn.functional.pad(transforms.to_unit_interval(images), (self.pad,) * 4)
        if self.placing == "shift":
            return transforms.random_shift(canvas, key, self.shift, _FIRST)
        most = canvas.shape[3] / 5  # from the same tutorial
        ranges = [(-_TURN, _TURN), _SCALE, (-most, most), (-most, most)]
        drawn = (
            transforms.random_uniform(key, stream, low, high)
            for stream, (low, high) in enumerate(ranges, _FIRST)
        )
        rotation, scale, right, down = drawn
        return transforms.affine(
            canvas,
            rotation=rotation,
            shear=torch.zeros_like(scale),
            scale_x=scale,
            scale_y=scale,
            right=right,
            down=down,
        )


class Pairs(InMemory):
    """Pairs each image with a partner, by default of another class; the pairs are never stored.

    The first image of pair ``n`` is image ``n`` modulo the number of images, so that all are first equally often. The
    second is drawn uniformly from all allowed partners by the key of the pair, which depends on the seed, the epoch and
    ``n`` alone.

    Args:
        images, seed, **options: see ``InMemory``.
        same_class: see ``MultiMNISTDataModule``.
    """

    def __init__(
        self, images: Images, seed: int, *, same_class: SameClass = "never", **options: Any
    ) -> None:
        super().__init__(images, seed, **options)
        labels, count = images.labels, len(images.labels)
        self.by_class = labels.argsort(stable=True)
        self.counts = torch.bincount(labels)  # [class]
        self.starts = self.counts.cumsum(0) - self.counts
        self.place = torch.empty_like(self.by_class)  # of each image in by_class
        self.place[self.by_class] = torch.arange(count)
        self.same_class = same_class
        of_class = {
            "never": count - self.counts,
            "also": torch.full_like(self.counts, count - 1),
            "only": self.counts - 1,
        }
        self.partners_of_class = of_class[same_class]  # number of partners per image of a class
        alone = labels[self.partners_of_class[labels] == 0]
        if len(alone):
            raise ValueError(
                f"an image of class {alone[0]} has no partner among {count} images with data.same_class={same_class}; "
                "expected one for each: use more images"
            )

    def __getitem__(self, batch: Index) -> Batch:
        index, _ = batch
        key = self.key(*batch)
        first = index % len(self.data.labels)
        chosen = torch.stack([first, self.partners(first, key)], 1)  # [b 2]
        return Batch(self.data.images[chosen].flatten(1, 2), self.data.labels[chosen], key)

    def partners(
        self, first: Int64[Tensor, " batch"], key: Int64[Tensor, " batch"]
    ) -> Int64[Tensor, " batch"]:
        """Draw a partner for each image of ``first``, see ``same_class``."""
        label = self.data.labels[first]
        # among the allowed partners, ordered by class
        rank = transforms.random_bits(key, _PARTNER) % self.partners_of_class[label]
        if self.same_class == "never":  # leave out its own class
            left_out, width = self.starts[label], self.counts[label]
        else:  # leave out the image itself
            left_out, width = self.place[first], torch.ones_like(first)
        if self.same_class == "only":
            rank = rank + self.starts[label]
        return self.by_class[torch.where(rank < left_out, rank, rank + width)]
