"""The images of a study, before and after preprocessing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from capsule_lab.errors import RunError
from capsule_lab.runs.open_run import stored_batches
from capsule_lab.types import Batch

_BACKGROUND = 16
"""Ours: largest mean grey level, of 255, of the outermost pixels of a black background."""


def count_images(batches: Sequence[Any]) -> int:
    """Return the number of images in all batches."""
    return sum(len(batch.labels) for batch in batches)


def percent(which: Bool[Tensor, "*shape"]) -> float:
    """Return the percentage of images, or of others, for which something is true."""
    return 100 * which.double().mean().item()


def joined_images(batches: Sequence[Any]) -> Float[Tensor, "image ..."]:
    """Return the images of all batches."""
    return torch.cat([batch.images for batch in batches])


def joined_labels(batches: Sequence[Any]) -> Int64[Tensor, " image"]:
    """Return the labels of all batches."""
    return torch.cat([batch.labels for batch in batches])


class StudyImages:
    """The images of a split, ``"val"`` or ``"test"``, with one label each, on the device of the network.

    ``stored`` contains pairs of a set's name and a batch before preprocessing; ``seen`` the preprocessed batches.
    """

    def __init__(self, data: Any, split: str, device: torch.device) -> None:
        self.data = data
        self.device = device
        self.stored: list[tuple[str, Batch]] = []
        for name, batch in stored_batches(data, split):
            self.stored.append((name, on_device(batch, device)))
        if not self.stored:
            raise RunError(
                f"this data has no images in split={split}; expected split=test, or other data"
            )
        _, first = self.stored[0]
        if first.labels.ndim != 1:
            raise RunError(
                f"images of {type(data).__name__} have several labels; expected data with one label each"
            )
        self.seen = [data.unpaired_batch(batch, name) for name, batch in self.stored]
        if self.seen[0].images.ndim != 4:
            raise RunError("each image is evaluated in several crops; expected data.test_crops=1")

    def changed(self, change: Callable[[Tensor], Tensor]) -> list[Batch]:
        """Return the preprocessed batches after a change of their grey levels, which are floating-point numbers."""
        batches = []
        for name, batch in self.stored:
            changed = batch._replace(images=change(batch.images.float()))
            batches.append(self.data.unpaired_batch(changed, name))
        return batches

    def preprocessed(self, grey_levels: Tensor) -> Tensor:
        """Preprocess images in grey levels; the result is differentiable."""
        nothing = torch.zeros(len(grey_levels), dtype=torch.int64, device=grey_levels.device)
        batch = Batch(grey_levels, nothing, nothing)
        name, _ = self.stored[0]
        seen: Tensor = self.data.unpaired_batch(batch, name).images
        return seen

    def check_preprocessing(self, instead: str) -> None:
        """Check that integer and floating-point grey levels are preprocessed alike; else recommend ``instead``."""
        unchanged = self.changed(lambda images: images)
        for again, seen in zip(unchanged, self.seen, strict=True):
            # ours: rounding of float32
            if not torch.allclose(again.images, seen.images, atol=1e-4):
                raise RunError(
                    f"preprocessing by {type(self.data).__name__} moves images, or treats floating-point grey levels "
                    f"differently; expected {instead}"
                )

    @property
    def has_black_background(self) -> bool:
        """Whether the upper edges of the images are black."""
        edges = [batch.images[:, :, 0].flatten() for _, batch in self.stored]
        mean = torch.cat(edges).float().mean()
        return float(mean) <= _BACKGROUND

    def of_training(self, images: int) -> list[Batch]:
        """Return the first ``images`` training images of the first epoch, preprocessed like validation images."""
        batches: list[Batch] = []
        for _, batch in stored_batches(self.data, "train"):
            remaining = images - count_images(batches)
            if remaining <= 0:
                break
            part = on_device(batch, self.device, remaining)
            batches.append(self.data.unpaired_batch(part, "val"))
        return batches


def on_device(batch: Batch, device: torch.device, images: int | None = None) -> Batch:
    """Move a stored batch, or its first ``images``, to a device."""
    factors = None if batch.factors is None else batch.factors[:images].to(device)
    return Batch(
        batch.images[:images].to(device),
        batch.labels[:images].to(device),
        batch.key[:images].to(device),
        factors,
    )
