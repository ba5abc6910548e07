"""MultiMNIST: two overlapping digits of different classes (Sabour, Frosst and Hinton 2017, section 6)."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from capsule_lab.data.loader import Images, InMemory
from capsule_lab.data.mnist import MNISTDataModule
from capsule_lab.data.pairs import Blend, Pairs, overlay
from capsule_lab.data.splits import Indices
from capsule_lab.data.transforms import affine, random_shift, random_uniform, to_unit_interval
from capsule_lab.errors import check_choice
from capsule_lab.types import Batch, DataSpec

Placing = Literal["shift", "affine"]

PER_IMAGE = 1000  # section 6: pairs that begin with the same image, 10 million for testing


class MultiMNISTDataModule(MNISTDataModule):
    """Pairs of MNIST digits, composed as they are needed, on the batch's device; none is ever stored.

    Every image is paired with one of another class of the same split, each is moved by itself, and the two are laid
    over each other. An epoch of training has one pair for each image, another one in every epoch; pairs for validation
    and testing are the same for ever. What the network sees goes into ``Batch.images``, the two digits alone, in their
    places, into ``Batch.parts``, and the two classes, which always differ, into ``Batch.labels``.

    The paper says 80 % of the boxes of 20x20 pixels overlap on average; two digits moved by up to 4 pixels each give
    72.6 %, and one of them 79.0 %. Its official code moves the first digit of a pair by the same for all its partners;
    here each pair has moves of its own.

    Args:
        pad: zeros around the 28x28 pixels: 4 gives 36x36.
        shift: largest move of each digit in each direction, in pixels: 4 in the paper, 6 in the official code's README.
        blend: ``"sum"`` is clipped at 1 (section 6); ``"max"`` is the tutorials'.
        placing: ``"shift"`` (section 6), or ``"affine"``: turned by up to 5 degrees, moved by up to a fifth of the
            canvas and shrunk to 0.5 to 0.7, as a tutorial does.
        validation_pairs, test_pairs: how many; up to 1,000 for each image of the split.
        augment: other pairs in every epoch of training; without, the same.
        **options: see ``MNISTDataModule``.

    Raises:
        ValueError: for a negative ``pad`` or ``shift``, an unknown ``blend`` or ``placing``, or no pairs at all;
            from ``setup``, for more pairs than there are.
    """

    def __init__(
        self,
        *,
        pad: int = 4,  # section 6: 36x36
        shift: int = 4,  # section 6
        blend: Blend = "sum",
        placing: Placing = "shift",
        validation_pairs: int = 10_000,  # ours: as many as images
        test_pairs: int = 10_000,  # ours: as many as images; the paper has 10 million
        **options: Any,
    ) -> None:
        super().__init__(shift=shift, **options)
        if pad < 0:
            raise ValueError(f"data.pad is {pad}; expected 0 or more pixels")
        check_choice("data.blend", blend, ("sum", "max"))
        check_choice("data.placing", placing, ("shift", "affine"))
        if validation_pairs < 1 or test_pairs < 1:
            raise ValueError(f"data has {validation_pairs} validation and {test_pairs} test pairs; expected 1 or more")
        self.pad = pad
        self.blend: Blend = blend
        self.placing: Placing = placing
        self.pairs = {"validation": validation_pairs, "test": test_pairs}
        size = 28 + 2 * pad  # 28: MNIST
        self.spec = DataSpec(image_shape=(1, size, size), num_classes=10, labels_per_image=2)

    def describe(self, *, real: bool) -> dict[str, Any]:
        facts = super().describe(real=real)
        return facts | {"name": f"pairs of digits of {facts['name']}"}

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if "test" in self.sets:
            self.provenance["test_images"] = f"{len(self.dataset('test'))} pairs of {len(self.sets['test'].labels)}"

    def dataset(self, name: str) -> InMemory:
        images = self.sets[name]
        if name == "train":
            return Pairs(images, self.seed, size=len(images.labels), fixed=not self.augment)
        wanted, most = self.pairs[name], PER_IMAGE * len(images.labels)
        if wanted > most:
            raise ValueError(f"data.{name}_pairs is {wanted}; expected {most}, {PER_IMAGE} for each image, or fewer")
        size = wanted if self.eval_images is None else min(wanted, self.eval_images)
        return Pairs(images, self.seed, size=size, fixed=True)

    def _few(self, indices: Indices, images: Images) -> Indices:
        return indices  # fewer pairs, but of all images

    def prepare(self, batch: Batch, *, augment: bool) -> Batch:
        """The composite of each pair, and its parts."""
        number, labels = batch.labels.shape
        digits = batch.images.reshape(number * labels, 1, *batch.images.shape[2:])
        # a key for each digit of a pair
        key = torch.stack([batch.key + n for n in range(labels)], 1).reshape(-1)
        parts = self.transform(digits, key, augment=augment).reshape(number, labels, *self.spec.image_shape)
        return batch._replace(images=overlay(parts, self.blend), parts=parts)

    def transform(self, images: Tensor, key: Tensor, *, augment: bool) -> Tensor:
        """Each digit in its place on the canvas."""
        canvas = torch.nn.functional.pad(images, (self.pad,) * 4)  # 4 sides
        if self.placing == "shift":
            return random_shift(to_unit_interval(canvas), key, self.shift, _FIRST)
        most = canvas.shape[3] / 5  # a fifth, as the tutorial
        drawn = (
            random_uniform(key, stream, low, high)
            for stream, (low, high) in enumerate([(-_TURN, _TURN), (0.5, 0.7), (-most, most), (-most, most)], _FIRST)
        )
        rotation, scale, right, down = drawn
        return affine(
            to_unit_interval(canvas), rotation=rotation, shear=torch.zeros_like(scale),
            scale_x=scale, scale_y=scale, right=right, down=down,
        )  # fmt: skip


_FIRST = 1  # number of the first draw, see random_bits; 0 is the partner
_TURN = math.radians(5)  # the tutorial's
