"""Whether an attack can be believed: what Athalye et al. 2018 and Carlini et al. 2019 ask of an evaluation.

A network may look robust because its gradient says nothing: activations that saturate, losses that are clamped, layers
that are dead. Each check compares what such a network would show with what a sound attack shows.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from capsule_lab.studies.attacks.evaluation import Attacked, AttackFunction, LossName, NetworkObjective
from capsule_lab.studies.attacks.gradient import Images, Objective, bim, fgsm, gradient_of, noise
from capsule_lab.studies.attacks.session import AttackedRun, logits_of
from capsule_lab.studies.attacks.square import square

STEPS = (1, 5, 10, 50, 200)
"""Of BIM, by which is seen whether more steps help."""
QUERIES = 1000  # ours: a fifth of what Square has by itself
_EXACT = 2  # ours: images for finite differences, each of which costs dozens of passes in float64
_SLACK = 3  # ours: images by which attacks of one strength may differ
_FAR = 5.0  # ours: percentage points
_SETTLED = 3.0  # ours: percentage points, within the interval of 1,000 images
_SMALL = 1e-300


@dataclass(frozen=True)
class Check:
    """A check and what was found, in words; ``passed`` is ``None`` where it needs another network to compare with."""

    name: str
    passed: bool | None
    found: str


def checks(
    attacked: AttackedRun,
    attack: AttackFunction,
    loss: LossName,
    epsilons: Sequence[float],
    *,
    images: int,
    baseline: Attacked | None = None,
) -> Iterator[Check]:
    """All checks, on the first ``images``, at the middle one of the budgets that is not 0.

    Args:
        attacked: the network, whose own gradients are looked at.
        attack, loss: that are to be believed.
        epsilons: the budgets; beyond the largest, four times as much is tried.
        images: how many.
        baseline: another network on the same images, with whose gradients its own are compared, and against which
            images are made that its own attack should beat.
    """
    few = attacked.first(images)
    count = sum(len(batch.labels) for batch in few.batches)
    norm = getattr(attack, "keywords", {}).get("norm", "linf")
    budgets = sorted(epsilon for epsilon in epsilons if epsilon > 0) or [0.1]
    middle, largest = budgets[len(budgets) // 2], budgets[-1]
    at = f"at epsilon {middle:g}"

    def accuracy(
        attack: AttackFunction, epsilon: float = middle, loss: LossName = loss, attacked: Attacked = few
    ) -> float:
        return attacked.measure(attack, loss, [epsilon]).accuracy(epsilon)

    own = Gradients.of(few.gradients(loss))
    theirs = None if baseline is None else Gradients.of(baseline.first(images).gradients(loss))
    yield zero_gradients(own, theirs)
    yield gradient_size(own, theirs)
    found = accuracy(attack)
    noisy, once, several = (accuracy(functools.partial(each, norm=norm)) for each in (noise, fgsm, bim))
    yield below_noise(found, noisy, at)
    yield stronger("multi-step", several, once, f"BIM in 10 steps against FGSM, {at}", count)
    of_training = accuracy(attack, loss="training")
    yield stronger("loss", found, of_training, f"{loss} on logits against the loss of training, {at}", count)
    other: LossName = "cross_entropy" if loss == "margin" else "margin"
    yield alike("other loss", found, accuracy(attack, loss=other), f"{loss} and {other}, {at}")
    by_steps = {}
    for steps in STEPS:  # as large as PGD's, that the same number of them could reach any point
        size = middle if steps == 1 else 2.5 * middle / steps
        by_steps[steps] = accuracy(functools.partial(bim, steps=steps, step_size=size, norm=norm))
    yield converged(by_steps, count)
    beyond = 4 * largest  # where anything can be made of an image, nothing is classified right
    left = accuracy(attack, beyond)
    yield Check("large budget", left <= 1, f"{left:.1f} % at epsilon {beyond:g}")  # ours: 1 %
    if baseline is not None:
        of_logits: LossName = "cross_entropy" if loss == "training" else loss
        transfer = accuracy(attack, loss=of_logits, attacked=replace(few, crafted_with=baseline.logits))
        yield stronger("white box", found, transfer, f"own gradients against those of the baseline, {at}", count)
    if norm == "linf":
        without = accuracy(functools.partial(square, queries=QUERIES))
        yield stronger("gradient-free", found, without, f"against Square, {QUERIES} queries, {at}", count)
    error = _gradient_error(attacked)  # no part of the graph is cut
    yield Check("finite differences", error < 1e-5, f"largest relative error {error:.1e}")  # ours


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

    @classmethod
    def of(cls, gradients: Float[Tensor, " images *shape"]) -> Gradients:
        """Statistics of the gradients of a loss by the images."""
        sizes = gradients.abs().flatten(1)
        means = sizes.double().mean(1)
        lowest, median, highest = means.quantile(means.new_tensor([0.01, 0.5, 0.99])).tolist()
        pixels, images = (100 * each.double().mean().item() for each in (sizes == 0, (sizes == 0).all(1)))
        return cls(pixels, images, median, lowest, highest)


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
    """Accuracy in percent under what should be the stronger attack is not above that under the weaker."""
    return Check(name, strong <= weak + slack(images), f"{described}: {strong:.1f} % against {weak:.1f} %")


def below_noise(attacked: float, noise: float, described: str) -> Check:
    """Accuracy under an attack is far below that under noise of the same size: else its gradient says nothing."""
    passed = attacked < noise - _FAR or attacked <= 1
    return Check("random noise", passed, f"{attacked:.1f} %, under random signs {noise:.1f} %, {described}")


def alike(name: str, one: float, other: float, described: str) -> Check:
    """Accuracies under two losses that both say what the network is to be led to are about the same."""
    return Check(name, abs(one - other) <= _FAR, f"{described}: {one:.1f} % and {other:.1f} %")


def converged(accuracies: Mapping[int, float], images: int) -> Check:
    """More steps do not help much any more; accuracies in percent are by number of steps."""
    steps = sorted(accuracies)
    text = ", ".join(f"{accuracies[count]:.1f} % after {count}" for count in steps)
    falls = all(accuracies[more] <= accuracies[few] + slack(images) for few, more in pairwise(steps))
    settled = accuracies[steps[-2]] - accuracies[steps[-1]] <= _SETTLED if len(steps) > 1 else False
    return Check("more steps", falls and settled, text)


def gradient_error(
    objective: Objective, images: Images, *, directions: int = 10, steps: Sequence[float] = (1e-6, 1e-7, 1e-8)
) -> float:
    """How far the gradient is from central differences: the largest relative error, along random lines and its sign.

    Of several steps the one that agrees best: a difference over a large one may have the kink of a rectified linear
    unit in it, of which a network has thousands, and none agrees with a gradient whose graph is cut.

    Args:
        objective, images: in float64.
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


def _gradient_error(attacked: AttackedRun) -> float:
    """Of the margin, which does not saturate, in float64, where central differences are exact enough, on the CPU."""
    few = attacked.batches[0].first(_EXACT)
    network: Any = copy.deepcopy(attacked.run.network).to("cpu", torch.float64)
    objective = NetworkObjective("margin", few.labels.cpu(), None, logits_of(network, attacked.preprocess))
    return gradient_error(objective, few.images.to("cpu", torch.float64))
