"""Checks of whether an attack is reliable, as required by Athalye et al. 2018 and Carlini et al. 2019.

A network may look robust because its gradient is uninformative: saturated activations, clamped losses, dead layers.
Each check tests for a symptom of such a network.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from capsule_studies.attacks.evaluation import (
    Attacked,
    AttackFunction,
    LossName,
    NetworkObjective,
)
from capsule_studies.attacks.gradient import Images, Objective, bim, fgsm, gradient_of, noise
from capsule_studies.attacks.session import AttackedRun, logits_of
from capsule_studies.attacks.square import square

STEPS = (1, 5, 10, 50, 200)
"""Numbers of BIM steps, to test whether more steps help."""
QUERIES = 1000  # ours: a fifth of Square's default
_EXACT = 2  # ours: images for finite differences, each of which costs dozens of passes in float64
_SLACK = 3  # ours: tolerance, in images, when two attacks are compared
_FAR = 5.0  # ours: percentage points
_SETTLED = 3.0  # ours: percentage points, within the interval of 1,000 images
_SMALL = 1e-300


class Check(NamedTuple):
    """A check and its result in words; ``passed`` is ``None`` if the check needs a baseline and there is none."""

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
    """Run all checks on the first ``images``, at the median of the epsilons above 0.

    One check uses four times the largest epsilon. ``baseline`` is another network on the same images: the gradients are
    compared with its gradients, and the attack should be stronger than images crafted against it.
    """
    few = attacked.first(images)
    count = sum(len(batch.labels) for batch in few.batches)
    norm = getattr(attack, "keywords", {}).get("norm", "linf")
    budgets = sorted(epsilon for epsilon in epsilons if epsilon > 0) or [0.1]
    middle, largest = budgets[len(budgets) // 2], budgets[-1]
    at = f"at epsilon {middle:g}"

    def accuracy(
        attack: AttackFunction,
        epsilon: float = middle,
        loss: LossName = loss,
        attacked: Attacked = few,
    ) -> float:
        return attacked.measure(attack, loss, [epsilon]).accuracy(epsilon)

    def gradients(attacked: Attacked) -> Gradients:
        parts = [
            gradient_of(attacked.objective(loss, batch), batch.images).cpu()
            for batch in attacked.batches
        ]
        return Gradients.of(torch.cat(parts))

    statistics, of_baseline = (
        gradients(few),
        None if baseline is None else gradients(baseline.first(images)),
    )
    yield zero_gradients(statistics, of_baseline)
    yield gradient_size(statistics, of_baseline)
    attacked_rate = accuracy(attack)
    noisy, once, several = (
        accuracy(functools.partial(attack, norm=norm)) for attack in (noise, fgsm, bim)
    )
    far = (
        attacked_rate < noisy - _FAR or attacked_rate <= 1
    )  # otherwise the gradient is uninformative
    yield Check(
        "random noise", far, f"{attacked_rate:.1f} %, under random signs {noisy:.1f} %, {at}"
    )
    yield stronger("multi-step", several, once, f"BIM in 10 steps against FGSM, {at}", count)
    of_training = accuracy(attack, loss="training")
    yield stronger(
        "loss",
        attacked_rate,
        of_training,
        f"{loss} on logits against the training loss, {at}",
        count,
    )
    other: LossName = "cross_entropy" if loss == "margin" else "margin"
    by_other = accuracy(attack, loss=other)  # a sound loss with the same goal
    comparison = f"{loss} and {other}, {at}: {attacked_rate:.1f} % and {by_other:.1f} %"
    yield Check("other loss", abs(attacked_rate - by_other) <= _FAR, comparison)
    by_steps = {}
    for steps in STEPS:  # step sizes as in PGD, so that every point can be reached
        size = middle if steps == 1 else 2.5 * middle / steps
        by_steps[steps] = accuracy(functools.partial(bim, steps=steps, step_size=size, norm=norm))
    yield converged(by_steps, count)
    remaining = accuracy(
        attack, 4 * largest
    )  # nearly unbounded, so that no image should be classified right
    yield Check(
        "large budget", remaining <= 1, f"{remaining:.1f} % at epsilon {4 * largest:g}"
    )  # ours: 1 %
    if baseline is not None:
        of_logits: LossName = "cross_entropy" if loss == "training" else loss
        transfer = accuracy(
            attack, loss=of_logits, attacked=replace(few, crafted_with=baseline.logits)
        )
        yield stronger(
            "white box",
            attacked_rate,
            transfer,
            f"own gradients against those of the baseline, {at}",
            count,
        )
    if norm == "linf":
        without = accuracy(functools.partial(square, queries=QUERIES))
        yield stronger(
            "gradient-free",
            attacked_rate,
            without,
            f"against Square, {QUERIES} queries, {at}",
            count,
        )
    # the margin does not saturate, and float64 makes central differences exact enough
    exact = attacked.batches[0].first(_EXACT)
    network: Any = copy.deepcopy(attacked.run.network).to("cpu", torch.float64)
    objective = NetworkObjective(
        "margin", exact.labels.cpu(), None, logits_of(network, attacked.preprocess)
    )
    error = gradient_error(
        objective, exact.images.to("cpu", torch.float64)
    )  # large if the graph is cut somewhere
    yield Check("finite differences", error < 1e-5, f"largest relative error {error:.1e}")  # ours


class Gradients(NamedTuple):
    """Percentages of pixels with a gradient of exactly 0 and of images where all pixels have such a gradient; and the
    median, 1st and 99th percentile over images of the mean absolute gradient of a pixel.
    """

    zero_pixels: float
    zero_images: float
    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, gradients: Float[Tensor, " images *shape"]) -> Gradients:
        """Compute the statistics of a loss's gradients with respect to the images."""
        sizes = gradients.abs().flatten(1)
        means = sizes.double().mean(1)
        lowest, median, highest = means.quantile(means.new_tensor([0.01, 0.5, 0.99])).tolist()
        pixels, images = (
            100 * share.double().mean().item() for share in (sizes == 0, (sizes == 0).all(1))
        )
        return cls(pixels, images, median, lowest, highest)


def zero_gradients(measured: Gradients, baseline: Gradients | None) -> Check:
    """Check that few gradients are exactly 0, and not many more than in the baseline."""
    text = f"{measured.zero_pixels:.1f} % of pixels, {measured.zero_images:.1f} % of images have no gradient"
    most = 1.0  # ours: %
    if baseline is not None:
        text += f" (baseline {baseline.zero_pixels:.1f} %, {baseline.zero_images:.1f} %)"
        most = max(most, 2 * baseline.zero_images)  # ours
    return Check("zero gradients", measured.zero_images < most, text)


def gradient_size(measured: Gradients, baseline: Gradients | None) -> Check:
    """Check that gradients are at most a thousand times smaller than those of the baseline.

    Hinton 2018, section 5.3, reports two orders of magnitude; Brendel and Bethge 2017 find 16 for masked gradients.
    """
    text = f"median {measured.median:.3g}, 1st and 99th percentile {measured.lowest:.3g} and {measured.highest:.3g}"
    if baseline is None:
        return Check("gradient size", None, text)
    ratio = baseline.median / max(measured.median, _SMALL)
    return Check(
        "gradient size",
        ratio < 1000,
        f"{text}; baseline {baseline.median:.3g}, {ratio:.3g} times it",
    )  # ours


def stronger(name: str, strong: float, weak: float, described: str, images: int) -> Check:
    """Check that the accuracy in percent under the stronger attack is not above that under the weaker attack."""
    passed = strong <= weak + 100 * _SLACK / images
    return Check(name, passed, f"{described}: {strong:.1f} % against {weak:.1f} %")


def converged(accuracies: Mapping[int, float], images: int) -> Check:
    """Check that more steps hardly help; ``accuracies`` maps ascending numbers of steps to percentages."""
    text = ", ".join(f"{accuracy:.1f} % after {count}" for count, accuracy in accuracies.items())
    pairs = [*pairwise(accuracies.values())]
    falls = all(more <= few + 100 * _SLACK / images for few, more in pairs)
    return Check("more steps", falls and pairs[-1][0] - pairs[-1][1] <= _SETTLED, text)


def gradient_error(
    objective: Objective,
    images: Images,
    *,
    directions: int = 10,
    steps: Sequence[float] = (1e-6, 1e-7, 1e-8),
) -> float:
    """Return the largest relative error of the gradient against central differences, along random lines and its sign.

    Of several step sizes, the one that agrees best counts: a large step may cross the kink of a rectified linear unit,
    of which a network has thousands. No step size agrees with a gradient whose graph is cut.
    Objective and images are in float64; ``directions`` is the number of random lines, ``steps`` are per pixel.
    """
    gradient = gradient_of(objective, images)
    generator = torch.Generator().manual_seed(0)
    lines = [
        torch.randn(images.shape, generator=generator, dtype=images.dtype)
        for _ in range(directions)
    ]
    worst = 0.0
    for line in (*lines, gradient.sign()):
        along = (gradient * line).flatten(1).sum(1)
        scale = (
            (gradient * line).flatten(1).norm(dim=1).clamp(min=_SMALL)
        )  # a line may be orthogonal to the gradient
        errors: list[Tensor] = []
        with torch.no_grad():
            for step in steps:
                difference = (objective(images + step * line) - objective(images - step * line)) / (
                    2 * step
                )
                errors.append((along - difference).abs() / scale)
        worst = max(worst, torch.stack(errors).amin(0).max().item())
    return worst
