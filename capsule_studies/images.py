"""The images of a study, before and after preprocessing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from capsule_lab.errors import RunError
from capsule_lab.runs.open_run import stored_batches
from capsule_lab.types import Batch

_BACKGROUND = (
    16  # ours: largest mean grey level, of 255, of the outermost pixels of a black background
)


class StudyImages:
    """The images of a split, ``"val"`` or ``"test"``, with one label each, on the device of the network.

    ``stored`` contains pairs of a set's name and a batch before preprocessing; ``seen`` the preprocessed batches.
    """

    def __init__(self, data: Any, split: str, device: torch.device) -> None:
        self.data = data
        self.device = device
        self.stored = [
            (name, on_device(batch, device)) for name, batch in stored_batches(data, split)
        ]
        if not self.stored:
            raise RunError(
                f"this data has no images in split={split}; expected split=test, or other data"
            )
        if self.stored[0][1].labels.ndim != 1:
            raise RunError(
                f"images of {type(data).__name__} have several labels; expected data with one label each"
            )
        self.seen = [data.unpaired_batch(batch, name) for name, batch in self.stored]
        if self.seen[0].images.ndim != 4:
            raise RunError("each image is evaluated in several crops; expected data.test_crops=1")

    def changed(self, change: Callable[[Tensor], Tensor]) -> list[Batch]:
        """Return the preprocessed batches after a change of their grey levels, which are floating-point numbers."""
        return [
            self.data.unpaired_batch(batch._replace(images=change(batch.images.float())), name)
            for name, batch in self.stored
        ]

    def preprocessed(self, grey_levels: Tensor) -> Tensor:
        """Preprocess images in grey levels; the result is differentiable."""
        nothing = torch.zeros(len(grey_levels), dtype=torch.int64, device=grey_levels.device)
        seen: Tensor = self.data.unpaired_batch(
            Batch(grey_levels, nothing, nothing), self.stored[0][0]
        ).images
        return seen

    def check_preprocessing(self, instead: str) -> None:
        """Check that integer and floating-point grey levels are preprocessed alike; else recommend ``instead``."""
        for again, seen in zip(self.changed(lambda images: images), self.seen, strict=True):
            if not torch.allclose(
                again.images, seen.images, atol=1e-4
            ):  # ours: rounding of float32
                raise RunError(
                    f"preprocessing by {type(self.data).__name__} moves images, or treats floating-point grey levels "
                    f"differently; expected {instead}"
                )

    @property
    def has_black_background(self) -> bool:
        """Whether the upper edges of the images are black."""
        edges = torch.cat([batch.images[:, :, 0].flatten() for _, batch in self.stored]).float()
        return float(edges.mean()) <= _BACKGROUND

    def of_training(self, images: int) -> list[Batch]:
        """Return the first ``images`` training images of the first epoch, preprocessed like validation images."""
        batches: list[Batch] = []
        for _, batch in stored_batches(self.data, "train"):
            remaining = images - sum(len(batch.labels) for batch in batches)
            if remaining <= 0:
                break
            batches.append(
                self.data.unpaired_batch(on_device(batch, self.device, remaining), "val")
            )
        return batches


def on_device(batch: Batch, device: torch.device, images: int | None = None) -> Batch:
    """Move a stored batch, or its first ``images``, to a device."""
    factors = None if batch.factors is None else batch.factors[:images].to(device)
    pixels, labels, key = (tensor[:images].to(device) for tensor in batch[:3])
    return Batch(pixels, labels, key, factors)
