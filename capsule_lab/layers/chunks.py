"""Images route independently: a few at a time keep their votes in a CPU's cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from capsule_lab.types import Capsules


def route_in_chunks(
    route: Callable[[Tensor, Tensor | None], Capsules],
    poses: Float[Tensor, "batch child dim"],
    activations: Float[Tensor, "batch child"] | None,
    *,
    votes_per_image: int,
    cache: int,
    recompute: bool = False,
) -> Capsules:
    """``route(poses, activations)``, on a CPU for as many images at a time as keep their votes in cache.

    Args:
        route: from poses and activations of some images to the capsules above.
        poses, activations: of all images.
        votes_per_image: numbers that the votes of one image are.
        cache: bytes of votes that may be in work together.
        recompute: keep no votes for the backward pass but make them again there.
    """
    images = max(len(poses), 1)
    if poses.device.type == "cpu" and not torch.compiler.is_compiling():
        images = max(cache // (votes_per_image * poses.element_size()), 1)
    if recompute and torch.is_grad_enabled():
        once = route

        def route(some_poses: Tensor, some_activations: Tensor | None) -> Capsules:
            return checkpoint(once, some_poses, some_activations, use_reentrant=False, preserve_rng_state=False)

    below = poses.split(images)
    if len(below) <= 1:
        return route(poses, activations)
    presence = [None] * len(below) if activations is None else activations.split(images)
    above = [route(*some) for some in zip(below, presence, strict=True)]
    return Capsules(*(torch.cat(parts) for parts in zip(*above, strict=True)))
