"""The checks of ``masking`` of an attack on the network of a run."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from capsule_lab.attacks import masking
from capsule_lab.attacks.evaluation import AttackFunction, LossName, NetworkObjective, Prepared, gradients_of
from capsule_lab.attacks.gradient import bim, fgsm, random_signs
from capsule_lab.attacks.masking import Check
from capsule_lab.attacks.of_runs import Attacked, first
from capsule_lab.attacks.spaces import logits_of
from capsule_lab.attacks.square import square

STEPS = (1, 5, 10, 50, 200)
"""Of BIM, by which is seen whether more steps help."""
QUERIES = 1000  # ours: a fifth of what Square has by itself
_FEW = 2  # ours: images for finite differences, each of which costs dozens of passes in float64


def checks(
    attacked: Attacked,
    attack: AttackFunction,
    loss: LossName,
    epsilons: Sequence[float],
    *,
    images: int,
    baseline: Attacked | None = None,
) -> Iterator[Check]:
    """The checks of ``masking``, on the first ``images``, at the middle one of the budgets that is not 0.

    Args:
        attacked: the network, whose own gradients are looked at.
        attack, loss: that are to be believed.
        epsilons: the budgets; beyond the largest, four times as much is tried.
        images: how many.
        baseline: another network on the same images, with whose gradients its own are compared, and against which
            images are made that its own attack should beat.
    """
    few = first(attacked.batches, images)
    count = sum(len(batch.labels) for batch in few)
    norm = getattr(attack, "keywords", {}).get("norm", "linf")
    budgets = sorted(epsilon for epsilon in epsilons if epsilon > 0) or [0.1]
    middle, largest = budgets[len(budgets) // 2], budgets[-1]

    def accuracy(attack: AttackFunction, epsilon: float = middle, loss: LossName = loss, **options: Any) -> float:
        return attacked.measured(attack, loss, [epsilon], batches=few, **options).accuracy(epsilon)

    own = masking.gradients(gradients_of(few, loss, attacked.logits, attacked.training_loss))
    theirs = None
    if baseline is not None:
        of_baseline = first(baseline.batches, images)
        theirs = masking.gradients(gradients_of(of_baseline, loss, baseline.logits, baseline.training_loss))
    yield masking.zero_gradients(own, theirs)
    yield masking.gradient_size(own, theirs)
    at = f"at epsilon {middle:g}"
    found = accuracy(attack)
    noise, once, several = (accuracy(functools.partial(each, norm=norm)) for each in (random_signs, fgsm, bim))
    yield masking.below_noise(found, noise, at)
    yield masking.stronger("multi-step", several, once, f"BIM in 10 steps against FGSM, {at}", count)
    of_training = accuracy(attack, loss="training")
    described = f"{loss} on logits against the loss of training, {at}"
    yield masking.stronger("loss", found, of_training, described, count)
    other: LossName = "cross_entropy" if loss == "margin" else "margin"
    yield masking.alike("other loss", found, accuracy(attack, loss=other), f"{loss} and {other}, {at}")
    by_steps = {
        steps: accuracy(functools.partial(bim, steps=steps, step_size=_reaching(steps, middle), norm=norm))
        for steps in STEPS
    }
    yield masking.converged(by_steps, count)
    beyond = 4 * largest
    yield masking.reaches_zero([(beyond, accuracy(attack, beyond))])
    if baseline is not None:
        of_logits: LossName = "cross_entropy" if loss == "training" else loss
        transfer = accuracy(attack, loss=of_logits, crafted_with=baseline.logits)
        described = f"own gradients against those of the baseline, {at}"
        yield masking.stronger("white box", found, transfer, described, count)
    if norm == "linf":
        without = accuracy(functools.partial(square, queries=QUERIES))
        yield masking.stronger("gradient-free", found, without, f"against Square, {QUERIES} queries, {at}", count)
    yield masking.exact_gradient(_gradient_error(attacked, few))


def _reaching(steps: int, epsilon: float) -> float:
    """Steps as large as PGD's, that the same number of them could reach any point."""
    return epsilon if steps == 1 else 2.5 * epsilon / steps


def _gradient_error(attacked: Attacked, batches: list[Prepared]) -> float:
    """Of the margin, which does not saturate, in float64, where central differences are exact enough, on the CPU."""
    (few,) = first(batches, _FEW)
    network = copy.deepcopy(attacked.run.network).to("cpu", torch.float64)
    logits = logits_of(network, attacked.preprocess)
    objective = NetworkObjective("margin", few.labels.cpu(), None, logits)
    return masking.gradient_error(objective, few.images.to("cpu", torch.float64))
