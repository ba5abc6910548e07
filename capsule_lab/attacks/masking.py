"""Whether an attack can be believed: what Athalye et al. 2018 and Carlini et al. 2019 ask of an evaluation.

A network may look robust because its gradient says nothing: activations that saturate, losses that are clamped, layers
that are dead. Each check compares what such a network would show with what a sound attack shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from capsule_lab.attacks.gradient import Images, Objective, gradient_of

_SLACK = 3  # ours: images by which attacks of one strength may differ


@dataclass(frozen=True)
class Gradients:
    """What the gradients of images look like.

    Attributes:
        zero_pixels: percent of pixels whose gradient is exactly 0.
        zero_images: percent of images all of whose pixels have none.
        median, lowest, highest: over images, of the mean size of a pixel's gradient; the 1st and the 99th percentile.
    """

    zero_pixels: float
    zero_images: float
    median: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class Check:
    """One question of an attack.

    Attributes:
        name: of the check.
        passed: ``None`` where it says something only beside another network, or could not be made.
        found: what was measured, in words.
    """

    name: str
    passed: bool | None
    found: str


def gradients(found: Float[Tensor, " batch *shape"]) -> Gradients:
    """Statistics of the gradients of a loss by the images, of all images of an evaluation.

    Args:
        found: of each image, as ``gradient_of`` gives them.
    """
    sizes = found.abs().flatten(1)
    means = sizes.double().mean(1)
    lowest, median, highest = means.quantile(means.new_tensor([0.01, 0.5, 0.99])).tolist()
    return Gradients(
        zero_pixels=100 * (sizes == 0).double().mean().item(),
        zero_images=100 * (sizes == 0).all(1).double().mean().item(),
        median=median,
        lowest=lowest,
        highest=highest,
    )


def gradient_error(
    objective: Objective, images: Images, *, directions: int = 10, steps: Sequence[float] = (1e-6, 1e-7, 1e-8)
) -> float:
    """How far the gradient is from central differences: the largest relative error, along random lines and its sign.

    Of several steps the one that agrees best: a difference over a large one may have the kink of a rectified linear
    unit in it, of which a network has thousands, and none agrees with a gradient whose graph is cut.

    Args:
        objective: in float64.
        images: a few, in float64.
        directions: how many random lines.
        steps: of the difference, per pixel.
    """
    gradient = gradient_of(objective, images)
    generator = torch.Generator().manual_seed(0)
    lines = [torch.randn(images.shape, generator=generator, dtype=images.dtype) for _ in range(directions)]
    worst = 0.0
    for line in (*(line.to(images) for line in lines), gradient.sign()):
        along = (gradient * line).flatten(1).sum(1)
        scale = (gradient * line).flatten(1).norm(dim=1).clamp(min=_SMALL)  # a line may be across the gradient
        with torch.no_grad():
            differences = [
                (objective(images + step * line) - objective(images - step * line)) / (2 * step) for step in steps
            ]
        errors = torch.stack([(along - difference).abs() / scale for difference in differences])  # [step image]
        worst = max(worst, errors.amin(0).max().item())
    return worst


_SMALL = 1e-300


def zero_gradients(found: Gradients, baseline: Gradients | None) -> Check:
    """Few gradients are exactly 0; not many more than of a network of rectified linear units."""
    text = f"{found.zero_pixels:.1f} % of pixels, {found.zero_images:.1f} % of images have no gradient"
    if baseline is None:
        return Check("zero gradients", found.zero_images < 1, text)  # ours: 1 %
    text += f" (baseline {baseline.zero_pixels:.1f} %, {baseline.zero_images:.1f} %)"
    return Check("zero gradients", found.zero_images < max(1, 2 * baseline.zero_images), text)  # ours


def gradient_size(found: Gradients, baseline: Gradients | None) -> Check:
    """Gradients are no more than a thousand times smaller than those of a CNN.

    Hinton 2018, section 5.3, has two orders of magnitude; where gradients are masked, Brendel and Bethge 2017 find 16.
    """
    text = f"median {found.median:.3g}, 1st and 99th percentile {found.lowest:.3g} and {found.highest:.3g}"
    if baseline is None:
        return Check("gradient size", None, text)
    ratio = baseline.median / max(found.median, _SMALL)
    return Check("gradient size", ratio < 1000, f"{text}; baseline {baseline.median:.3g}, {ratio:.3g} times it")  # ours


def slack(images: int) -> float:
    """By how many percentage points accuracies on so many images may differ without a verdict."""
    return 100 * _SLACK / images


def stronger(name: str, strong: float, weak: float, described: str, images: int) -> Check:
    """Accuracy under what should be the stronger attack is not above that under the weaker.

    Args:
        name: of the check.
        strong, weak: accuracies in percent.
        described: the attacks, such as "10 steps against 1".
        images: how many the accuracies are of.
    """
    return Check(name, strong <= weak + slack(images), f"{described}: {strong:.1f} % against {weak:.1f} %")


def below_noise(attacked: float, noise: float, described: str) -> Check:
    """An attack is far below noise of the same size: else its gradient says nothing.

    Args:
        attacked, noise: accuracies in percent.
        described: where.
    """
    passed = attacked < noise - _FAR or attacked <= 1
    return Check("random noise", passed, f"{attacked:.1f} %, under random signs {noise:.1f} %, {described}")


_FAR = 5.0  # ours: percentage points


def alike(name: str, one: float, other: float, described: str) -> Check:
    """Two losses that both say what the network is to be led to give about the same accuracy.

    Args:
        name: of the check.
        one, other: accuracies in percent.
        described: the losses.
    """
    return Check(name, abs(one - other) <= _FAR, f"{described}: {one:.1f} % and {other:.1f} %")


def converged(accuracies: Mapping[int, float], images: int) -> Check:
    """More steps do not help much any more.

    Args:
        accuracies: in percent, by number of steps.
        images: how many they are of.
    """
    steps = sorted(accuracies)
    text = ", ".join(f"{accuracies[count]:.1f} % after {count}" for count in steps)
    falls = all(accuracies[more] <= accuracies[few] + slack(images) for few, more in pairwise(steps))
    settled = accuracies[steps[-2]] - accuracies[steps[-1]] <= _SETTLED if len(steps) > 1 else False
    return Check("more steps", falls and settled, text)


_SETTLED = 3.0  # ours: percentage points, within the interval of 1,000 images


def reaches_zero(accuracies: Sequence[tuple[float, float]]) -> Check:
    """Where the budget is large enough to make anything of an image, nothing is classified right.

    Args:
        accuracies: epsilon and accuracy in percent, the largest epsilon last.
    """
    epsilon, accuracy = accuracies[-1]
    return Check("large budget", accuracy <= 1, f"{accuracy:.1f} % at epsilon {epsilon:g}")  # ours: 1 %


def exact_gradient(error: float) -> Check:
    """The gradient is that of the function that is attacked: no part of the graph is cut."""
    return Check("finite differences", error < 1e-5, f"largest relative error {error:.1e}")  # ours
