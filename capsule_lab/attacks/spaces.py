"""In which space an attack moves pixels: those that the network sees, or the grey levels before preprocessing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from capsule_lab.attacks.evaluation import LogitsOf, Prepared
from capsule_lab.attacks.gradient import UNIT, Box
from capsule_lab.errors import ConfigError, RunError
from capsule_lab.types import Batch

if TYPE_CHECKING:
    from capsule_lab.data.base import AbstractDataModule

Space = Literal["input", "grey_levels"]
GREY_LEVELS = Box(0.0, 255.0)
_ROUNDING = 1e-4  # ours: of float32


def prepare(
    data: AbstractDataModule, batches: Iterator[tuple[str, Batch]], space: Space, device: torch.device
) -> list[Prepared]:
    """Batches in the space of an attack.

    In ``"input"``, pixels are as the network sees them: within [0, 1] where those of all images are, which is where
    preprocessing divides by 255; without bounds where it standardises, as in Hinton 2018. In ``"grey_levels"`` they are
    those of the stored image, 0 to 255, and preprocessing is part of what is attacked.

    Args:
        data: of the run.
        batches: name of the set, and images as stored.
        space: which.
        device: where the network is.

    Raises:
        RunError: for images with several labels, or seen through several crops; for grey levels of images that are
            moved.
    """
    prepared = []
    for name, stored in batches:
        batch = stored._replace(
            images=stored.images.to(device), labels=stored.labels.to(device), key=stored.key.to(device)
        )
        if batch.labels.ndim != 1:
            raise RunError(
                f"images of {type(data).__name__} have several labels; expected data with one, to be attacked"
            )
        seen = data.transform_batch(batch, name).images
        if seen.ndim != 4:
            raise RunError("images are seen through several crops; expected data.test_crops=1, to be attacked")
        if space == "grey_levels":
            if not torch.allclose(preprocessed(data, name, batch.images.float()), seen, atol=_ROUNDING):
                raise RunError(f"images of {type(data).__name__} are moved before they are seen; expected space=input")
            ones = seen.new_ones(len(seen))
            prepared.append(Prepared(batch.images.float(), batch.labels, batch.key, GREY_LEVELS, ones))
            continue
        prepared.append(Prepared(seen, batch.labels, batch.key, Box(), grey_levels_per_unit(batch.images, seen)))
    if space == "input" and all(each.images.min() >= 0 and each.images.max() <= 1 for each in prepared):
        levels = [torch.full_like(each.grey_levels, 255) for each in prepared]
        return [replace(each, box=UNIT, grey_levels=one) for each, one in zip(prepared, levels, strict=True)]
    return prepared


def preprocessed(data: AbstractDataModule, name: str, images: Tensor) -> Tensor:
    """Grey levels of the set of this name as the network sees them, differentiable."""
    nothing = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    seen: Tensor = data.transform_batch(Batch(images, nothing, nothing), name).images
    return seen


def logits_of(network: nn.Module, preprocess: Callable[[Tensor], Tensor] | None = None) -> LogitsOf:
    """Logits of a network in float32, preprocessing included.

    Args:
        network: in evaluation mode.
        preprocess: from the space of the attack to the network's input, differentiable; ``None`` if these are one.

    Raises:
        ConfigError: if the network gives no logits, which attacks need: see ``losses``.
    """

    def function(images: Tensor) -> Tensor:
        return logits_in(network(images if preprocess is None else preprocess(images)), network)

    return function


def logits_in(output: Any, network: nn.Module) -> Tensor:
    """The logits of what a network gives, in float32 at least.

    Raises:
        ConfigError: if there are none.
    """
    if output.logits is None:
        raise ConfigError(f"{type(network).__name__} gives no logits with this routing; an attack needs them")
    logits: Tensor = output.logits
    return logits if logits.dtype == torch.float64 else logits.float()


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
