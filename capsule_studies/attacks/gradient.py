"""Attacks along the gradient: FGSM, BIM and PGD, targeted if their loss is; and random signs, their control.

An objective maps images, in any space, to the numbers that the attack maximises, one per image. It must treat images
independently (evaluation mode), so that the batch has no influence on the attack of an image. PGD and Square need an
``evaluation.NetworkObjective``: they choose restarts and queries by its ``success``, whatever the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from capsule_lab.data.transforms import element_keys, random_bits, random_uniform
from capsule_lab.errors import RunError, check_number
from capsule_studies.attacks.kind import attack

Images = Float[Tensor, " batch *shape"]
Key = Int64[Tensor, " batch"]
Objective = Callable[[Images], Float[Tensor, " batch"]]
Norm = Literal["linf", "l2"]

_SMALL = 1e-30
"""Smaller than any length above 0 that occurs in float32."""


class Box(NamedTuple):
    """The range of a pixel's values."""

    low: float = -torch.inf
    high: float = torch.inf


UNIT, GREY_LEVELS = Box(0.0, 1.0), Box(0.0, 255.0)


@attack("FGSM", along_gradients=True)
def fgsm(
    objective: Objective,
    images: Images,
    epsilon: float,
    key: Any = None,
    box: Box = UNIT,
    *,
    norm: Norm = "linf",
) -> Images:
    """Take one step of epsilon along the sign of the gradient (Goodfellow et al. 2015).

    A pixel without gradient does not change, so that a network whose gradients vanish looks robust: see ``checks``.

    Args:
        objective: maximised by the attack; not used by attacks without a loss.
        images: the images to attack.
        epsilon: largest change of a pixel.
        key: a number for each image from which random draws derive.
        box: the range of pixels; pixels of ``images`` outside of it stay, but move no further.
        norm: the norm that ``epsilon`` bounds; in ``"l2"``, the step is along the gradient and has length ``epsilon``.
    """
    return bim(objective, images, epsilon, key, box, steps=1, step_size=epsilon, norm=norm)


@attack("BIM", along_gradients=True)
def bim(
    objective: Objective,
    images: Images,
    epsilon: float,
    key: Any = None,
    box: Box = UNIT,
    *,
    steps: int = 10,  # ours
    step_size: float | None = None,
    norm: Norm = "linf",
) -> Images:
    """Take several steps of FGSM within epsilon (Kurakin et al. 2017); Hinton 2018 does not state how many.

    A ``step_size`` of ``None`` is ``epsilon / steps``, which reaches the bound if the sign never changes.
    """
    check_number("steps", steps, 1)
    size = epsilon / steps if step_size is None else step_size
    return _ascend(objective, images, images, epsilon, steps, size, box, norm)


@attack("PGD", along_gradients=True)
def pgd(
    objective: Any,
    images: Images,
    epsilon: float,
    key: Key,
    box: Box = UNIT,
    *,
    steps: int = 50,  # ours: the checks show that more do not help
    step_size: float | None = None,
    restarts: int = 5,  # ours
    norm: Norm = "linf",
) -> Images:
    """Take steps along the gradient from random starts, and keep the most successful restart (Madry et al. 2018).

    A ``step_size`` of ``None`` is ``2.5 * epsilon / steps`` (a rule of thumb after Madry et al.), which can reach any
    point. An image has no further restarts once an attack on it has succeeded.
    """
    check_number("steps", steps, 1)
    check_number("restarts", restarts, 1)
    size = 2.5 * epsilon / steps if step_size is None else step_size
    best, best_value = images.clone(), images.new_full((len(images),), -torch.inf)
    remaining = torch.arange(len(images), device=images.device)
    for restart in range(restarts):
        part, part_objective = images[remaining], objective.at(remaining)
        start = random_start(part, epsilon, key[remaining], restart, norm)
        start = _projected(part, start, epsilon, box, norm)
        attacked = _ascend(part_objective, part, start, epsilon, steps, size, box, norm)
        with torch.no_grad():
            value = part_objective.success(attacked)
        better = value > best_value[remaining]
        improved = remaining[better]
        best[improved] = attacked[better]
        best_value[improved] = value[better]
        remaining = (best_value <= 0).nonzero()[:, 0]
        if not len(remaining):
            break
    return best


@attack("random signs")
def noise(
    objective: Any,
    images: Images,
    epsilon: float,
    key: Key,
    box: Box = UNIT,
    *,
    norm: Norm = "linf",
) -> Images:
    """Add epsilon with a random sign to every pixel: the control of every attack; arguments as in ``fgsm``."""
    size = epsilon if norm == "linf" else epsilon / images[0].numel() ** 0.5
    bits = random_bits(element_keys(key, images.shape[1:]), 0) % 2
    signs = 2.0 * bits.to(images) - 1
    return _projected(images, images + size * signs, epsilon, box, norm)


def random_start(images: Images, epsilon: float, key: Key, stream: int, norm: Norm) -> Images:
    """Draw a point of the ball around each image: uniform in the cube, or with uniform direction and radius."""
    keys = element_keys(key, images.shape[1:])
    uniform = random_uniform(keys, stream, -1.0, 1.0).to(images)
    if norm == "linf":
        return images + epsilon * uniform
    other = random_uniform(keys, stream + 2**20, 0.0, 1.0).to(images)
    normal = torch.erfinv(uniform * (1 - 2**-24)) * 2**0.5  # from the uniform number
    lengths = _lengths(normal)
    radius = epsilon * other.flatten(1)[:, 0].view_as(lengths)
    return images + radius * normal / lengths.clamp(min=_SMALL)


def gradient_of(objective: Objective, images: Images) -> Images:
    """Compute the gradient of the objective with respect to the images; nothing else gets a gradient."""
    with torch.enable_grad():
        images = images.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(objective(images).sum(), images)
    if not gradient.isfinite().all():
        raise RunError(
            "the gradient of the loss is not finite for some images, so that an attack would leave them unchanged; "
            "expected finite gradients"
        )
    return gradient


def _ascend(
    objective: Objective,
    images: Images,
    start: Images,
    epsilon: float,
    steps: int,
    size: float,
    box: Box,
    norm: Norm,
) -> Images:
    check_number("step_size", size, 0)
    attacked = start.detach()
    for _ in range(steps):
        gradient = gradient_of(objective, attacked)
        direction = gradient.sign()
        if norm == "l2":
            direction = gradient / _lengths(gradient).clamp(min=_SMALL)
        attacked = _projected(images, attacked + size * direction, epsilon, box, norm)
    return attacked


def _projected(images: Images, attacked: Images, epsilon: float, box: Box, norm: Norm) -> Images:
    """Project onto the ``epsilon`` ball around the images, then onto the box, which increases no distance to them."""
    if norm == "linf":
        attacked = torch.minimum(torch.maximum(attacked, images - epsilon), images + epsilon)
    else:
        change = attacked - images
        share = epsilon / _lengths(change).clamp(min=_SMALL)
        attacked = images + change * share.clamp(max=1)
    # pixels of an image outside of the box stay, but move no further
    lowest = images.clamp(max=box.low)
    highest = images.clamp(min=box.high)
    return torch.minimum(torch.maximum(attacked, lowest), highest).detach()


def _lengths(change: Images) -> Float[Tensor, " batch *ones"]:
    lengths = torch.linalg.vector_norm(change.flatten(1), dim=1)
    return lengths.view(-1, *[1] * (change.ndim - 1))
