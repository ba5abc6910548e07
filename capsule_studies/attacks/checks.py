"""Checks of whether an attack is reliable, as required by Athalye et al. 2018 and Carlini et al. 2019.

A network may look robust because its gradient is uninformative: saturated activations, clamped losses, dead layers.
Each check tests for a symptom of such a network.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
from capsule_studies.attacks.gradient import Images, Norm, Objective, bim, fgsm, gradient_of, noise
from capsule_studies.attacks.session import AttackedRun, logits_of
from capsule_studies.attacks.square import square
from capsule_studies.images import count_images, percent

STEPS = (1, 5, 10, 50, 200)
"""Numbers of BIM steps, to test whether more steps help."""
QUERIES = 1000  # ours: a fifth of Square's default
_EXACT = 2  # ours: images for finite differences, each of which costs dozens of passes in float64
_SLACK = 3  # ours: tolerance, in images, when two attacks are compared
_FAR = 5.0  # ours: percentage points
_SETTLED = 3.0  # ours: percentage points, within the interval of 1,000 images
_UNBOUNDED = 1.0  # ours: percentage of images that a nearly unbounded attack may leave
_GRADIENT_ERROR = 1e-5  # ours
_FALLBACK_EPSILON = 0.1
_SMALL = 1e-300


class Check(NamedTuple):
    """A check and its result in words; ``passed`` is ``None`` if there is nothing to compare with, as a baseline."""

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
    budgets = sorted(epsilon for epsilon in epsilons if epsilon > 0) or [_FALLBACK_EPSILON]
    setting = _Setting(
        run=attacked,
        network=attacked.first(images),
        attack=attack,
        loss=loss,
        epsilon=budgets[len(budgets) // 2],
        largest_epsilon=budgets[-1],
        baseline=None if baseline is None else baseline.first(images),
    )
    for check in _CHECKS:
        result = check(setting)
        if result is not None:
            yield result


@dataclass(frozen=True)
class _Setting:
    """The attack that is checked, with the accuracies that several checks need.

    Attributes:
        run: the attacked network with all images; ``network`` has only those of the checks.
        epsilon: the strength at which attacks are compared.
    """

    run: AttackedRun
    network: Attacked
    attack: AttackFunction
    loss: LossName
    epsilon: float
    largest_epsilon: float
    baseline: Attacked | None

    @property
    def norm(self) -> Norm:
        norm: Norm = getattr(self.attack, "keywords", {}).get("norm", "linf")
        return norm

    @property
    def at(self) -> str:
        return f"at epsilon {self.epsilon:g}"

    @cached_property
    def attacked_accuracy(self) -> float:
        return self.accuracy(self.attack)

    @cached_property
    def gradients(self) -> Gradients:
        return self._gradients_of(self.network)

    @cached_property
    def baseline_gradients(self) -> Gradients | None:
        return None if self.baseline is None else self._gradients_of(self.baseline)

    def accuracy(
        self,
        attack: AttackFunction,
        *,
        epsilon: float | None = None,
        loss: LossName | None = None,
        network: Attacked | None = None,
    ) -> float:
        """Return the accuracy in percent under an attack; by default, all else is as in the checked attack."""
        strength = self.epsilon if epsilon is None else epsilon
        measured = (network or self.network).measure(attack, loss or self.loss, [strength])
        return measured.accuracy(strength)

    def stronger(self, name: str, strong: float, weak: float, described: str) -> Check:
        """Compare two accuracies, see ``stronger``."""
        return stronger(name, strong, weak, described, count_images(self.network.batches))

    def _gradients_of(self, network: Attacked) -> Gradients:
        parts = []
        for batch in network.batches:
            objective = network.objective(self.loss, batch)
            parts.append(gradient_of(objective, batch.images).cpu())
        return Gradients.of(torch.cat(parts))


def _zero_gradients(setting: _Setting) -> Check:
    return zero_gradients(setting.gradients, setting.baseline_gradients)


def _gradient_size(setting: _Setting) -> Check:
    return gradient_size(setting.gradients, setting.baseline_gradients)


def _random_noise(setting: _Setting) -> Check:
    """The attack finds more than random signs; otherwise the gradient is uninformative."""
    attacked = setting.attacked_accuracy
    noisy = setting.accuracy(functools.partial(noise, norm=setting.norm))
    found = f"{attacked:.1f} %, under random signs {noisy:.1f} %, {setting.at}"
    return Check("random noise", attacked < noisy - _FAR or attacked <= 1, found)


def _multi_step(setting: _Setting) -> Check:
    once = setting.accuracy(functools.partial(fgsm, norm=setting.norm))
    several = setting.accuracy(functools.partial(bim, norm=setting.norm))
    described = f"BIM in 10 steps against FGSM, {setting.at}"
    return setting.stronger("multi-step", several, once, described)


def _training_loss(setting: _Setting) -> Check:
    if setting.loss == "training":
        return Check("loss", None, "the attack itself uses the training loss")
    by_training = setting.accuracy(setting.attack, loss="training")
    described = f"{setting.loss} on logits against the training loss, {setting.at}"
    return setting.stronger("loss", setting.attacked_accuracy, by_training, described)


def _other_loss(setting: _Setting) -> Check:
    """A sound loss with the same goal is about as strong."""
    other: LossName = "cross_entropy" if setting.loss == "margin" else "margin"
    own_accuracy = setting.attacked_accuracy
    accuracy = setting.accuracy(setting.attack, loss=other)
    numbers = f"{own_accuracy:.1f} % and {accuracy:.1f} %"
    found = f"{setting.loss} and {other}, {setting.at}: {numbers}"
    return Check("other loss", abs(own_accuracy - accuracy) <= _FAR, found)


def _more_steps(setting: _Setting) -> Check:
    by_steps = {}
    for steps in STEPS:
        # step sizes as in PGD, so that every point can be reached
        size = setting.epsilon if steps == 1 else 2.5 * setting.epsilon / steps
        attack = functools.partial(bim, steps=steps, step_size=size, norm=setting.norm)
        by_steps[steps] = setting.accuracy(attack)
    return converged(by_steps, count_images(setting.network.batches))


def _large_budget(setting: _Setting) -> Check:
    """A nearly unbounded attack leaves no image that is classified right."""
    epsilon = 4 * setting.largest_epsilon
    remaining = setting.accuracy(setting.attack, epsilon=epsilon)
    found = f"{remaining:.1f} % at epsilon {epsilon:g}"
    return Check("large budget", remaining <= _UNBOUNDED, found)


def _white_box(setting: _Setting) -> Check | None:
    """The own gradients are stronger than those of the baseline; ``None`` without a baseline."""
    if setting.baseline is None:
        return None
    loss: LossName = "cross_entropy" if setting.loss == "training" else setting.loss
    transfer = replace(setting.network, crafted_with=setting.baseline.logits)
    accuracy = setting.accuracy(setting.attack, loss=loss, network=transfer)
    described = f"own gradients against those of the baseline, {setting.at}"
    return setting.stronger("white box", setting.attacked_accuracy, accuracy, described)


def _gradient_free(setting: _Setting) -> Check | None:
    """The attack is stronger than Square; ``None`` in another norm than Square's."""
    if setting.norm != "linf":
        return None
    accuracy = setting.accuracy(functools.partial(square, queries=QUERIES))
    described = f"against Square, {QUERIES} queries, {setting.at}"
    return setting.stronger("gradient-free", setting.attacked_accuracy, accuracy, described)


def _finite_differences(setting: _Setting) -> Check:
    """The error of the gradient is small; it is large if the graph is cut somewhere.

    The margin does not saturate, and float64 makes central differences exact enough.
    """
    batch = setting.run.batches[0].first(_EXACT)
    network: Any = copy.deepcopy(setting.run.run.network).to("cpu", torch.float64)
    logits = logits_of(network, setting.run.preprocess)
    objective = NetworkObjective("margin", batch.labels.cpu(), None, logits)
    error = gradient_error(objective, batch.images.to("cpu", torch.float64))
    return Check(
        "finite differences", error < _GRADIENT_ERROR, f"largest relative error {error:.1e}"
    )


_CHECKS: tuple[Callable[[_Setting], Check | None], ...] = (
    _zero_gradients,
    _gradient_size,
    _random_noise,
    _multi_step,
    _training_loss,
    _other_loss,
    _more_steps,
    _large_budget,
    _white_box,
    _gradient_free,
    _finite_differences,
)
"""The checks in the order of the report; a check returns ``None`` if it does not apply."""


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
        percentiles = means.new_tensor([0.01, 0.5, 0.99])
        lowest, median, highest = means.quantile(percentiles).tolist()
        is_zero = sizes == 0
        return cls(percent(is_zero), percent(is_zero.all(1)), median, lowest, highest)


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
    found = f"{text}; baseline {baseline.median:.3g}, {ratio:.3g} times it"
    return Check("gradient size", ratio < 1000, found)  # ours


def stronger(name: str, strong: float, weak: float, described: str, images: int) -> Check:
    """Check that the accuracy in percent under the stronger attack is not above that under the weaker attack."""
    passed = strong <= weak + 100 * _SLACK / images
    return Check(name, passed, f"{described}: {strong:.1f} % against {weak:.1f} %")


def converged(accuracies: Mapping[int, float], images: int) -> Check:
    """Check that more steps hardly help; ``accuracies`` maps ascending numbers of steps to percentages."""
    text = ", ".join(f"{accuracy:.1f} % after {count}" for count, accuracy in accuracies.items())
    slack = 100 * _SLACK / images
    falls = all(more <= few + slack for few, more in pairwise(accuracies.values()))
    *_, last_but_one, last = accuracies.values()
    gain = last_but_one - last
    return Check("more steps", falls and gain <= _SETTLED, text)


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
    lines = []
    for _ in range(directions):
        lines.append(torch.randn(images.shape, generator=generator, dtype=images.dtype))
    lines.append(gradient.sign())
    worst = 0.0
    for line in lines:
        products = (gradient * line).flatten(1)
        along = products.sum(1)
        scale = products.norm(dim=1).clamp(min=_SMALL)  # a line may be orthogonal to the gradient
        errors: list[Tensor] = []
        with torch.no_grad():
            for step in steps:
                rise = objective(images + step * line) - objective(images - step * line)
                slope = rise / (2 * step)
                errors.append((along - slope).abs() / scale)
        best = torch.stack(errors).amin(0)  # of each image, over the steps
        worst = max(best.max().item(), worst)  # in this order, NaN stays
    return worst
