"""In which space an attack moves pixels: those that the network sees, or the grey levels before preprocessing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from capsule_lab.studies.attacks.evaluation import Prepared
from capsule_lab.studies.attacks.gradient import UNIT, Box
from capsule_lab.studies.images import StudyImages
from capsule_lab.types import Batch

Space = Literal["input", "grey_levels"]
GREY_LEVELS = Box(0.0, 255.0)


def prepare(images: StudyImages, space: Space) -> list[Prepared]:
    """Batches in the space of an attack.

    In ``"input"``, pixels are as the network sees them: within [0, 1] where those of all images are, which is where
    preprocessing divides by 255; without bounds where it standardises, as in Hinton 2018. In ``"grey_levels"`` they are
    those of the stored image, 0 to 255, and preprocessing is part of what is attacked.
    """
    stored = [batch for _, batch in images.stored]
    if space == "grey_levels":
        images.check_preprocessing("space=input")
        ones = [torch.ones(len(each.labels), device=images.device) for each in stored]
        return [
            Prepared(each.images.float(), each.labels, each.key, GREY_LEVELS, one)
            for each, one in zip(stored, ones, strict=True)
        ]
    prepared = [
        Prepared(seen.images, each.labels, each.key, Box(), grey_levels_per_unit(each.images, seen.images))
        for each, seen in zip(stored, images.seen, strict=True)
    ]
    if all(each.images.min() >= 0 and each.images.max() <= 1 for each in prepared):
        return [replace(each, box=UNIT, grey_levels=torch.full_like(each.grey_levels, 255)) for each in prepared]
    return prepared


def preprocessed(data: Any, name: str, images: Tensor) -> Tensor:
    """Grey levels of the set of this name as the network sees them, differentiable."""
    nothing = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    seen: Tensor = data.unpaired_batch(Batch(images, nothing, nothing), name).images
    return seen


def grey_levels_per_unit(
    stored: Shaped[Tensor, "batch channel height width"], seen: Float[Tensor, "batch channel rows columns"]
) -> Float[Tensor, " batch"]:
    """How many grey levels are one unit of the network's input: 255, or an image's standard deviation.

    It is the slope of the line between the stored image's central pixels and those that the network sees; ``nan``
    where they are on no line, as of images that are composed or moved.
    """
    if stored.shape[1] != seen.shape[1] or any(n < m for n, m in zip(stored.shape[2:], seen.shape[2:], strict=True)):
        return seen.new_full((len(seen),), torch.nan)
    height, width = seen.shape[2:]
    top, left = (stored.shape[2] - height) // 2, (stored.shape[3] - width) // 2  # as transforms.centre_corner
    centre = stored[:, :, top : top + height, left : left + width]
    grey, values = (each.flatten(1).double() for each in (centre, seen))
    grey, values = grey - grey.mean(1, keepdim=True), values - values.mean(1, keepdim=True)
    slope = (grey * values).sum(1) / grey.square().sum(1).clamp(min=1e-9)
    off = (values - slope[:, None] * grey).abs().amax(1)
    return torch.where((off < 1e-3) & (slope > 0), 1 / slope, torch.nan).to(seen)
