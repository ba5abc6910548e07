"""Attacks on the network of a run: its images in the space of the attack, accuracies, and the checks of ``masking``."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from capsule_lab.analysis.equal_couplings import equal_couplings
from capsule_lab.analysis.reconstruction_detection import threshold, winning_reconstruction_error
from capsule_lab.attacks import masking
from capsule_lab.attacks.evaluation import (
    AttackFunction,
    LogitsOf,
    LossName,
    Measured,
    NetworkObjective,
    Prepared,
    gradients_of,
    measure,
)
from capsule_lab.attacks.gradient import Box, bim, fgsm, random_signs
from capsule_lab.attacks.masking import Check
from capsule_lab.attacks.spaces import Space, logits_of, prepare
from capsule_lab.attacks.square import square
from capsule_lab.errors import RunError
from capsule_lab.networks import reconstructs
from capsule_lab.runs.open_run import Run, stored_batches
from capsule_lab.types import Batch

STEPS = (1, 5, 10, 50, 200)
"""Of BIM, by which the checks see whether more steps help."""
QUERIES = 1000  # ours: a fifth of what the attack has by itself
"""Of Square, in the checks."""
_FEW = 2  # ours: images for finite differences, each of which costs dozens of passes in float64


@dataclass(frozen=True)
class Examples:
    """Images before and after attacks, on the CPU, in the space of the attack.

    Attributes:
        images, labels: as they are.
        box: the pixels that there are.
        attacked: by epsilon.
        found: what the network takes them for, by epsilon.
    """

    images: Tensor
    labels: Tensor
    box: Box
    attacked: dict[float, Tensor]
    found: dict[float, Tensor]


@dataclass
class Attacked:
    """A network under attack, and the images.

    Attributes:
        run: whose network is to be fooled.
        batches: in the space of the attack.
        logits: of the network, of images in that space.
        crafted_with: logits that attacks see: of ``logits``, or of another network, or with equal couplings.
        preprocess: from the space to the network's input.
        threshold: of reconstruction errors, see ``detection_threshold``; ``None`` keeps no errors.
        on_step: called with the number of images after each batch, epsilon and target.
    """

    run: Run
    batches: list[Prepared]
    logits: LogitsOf
    crafted_with: LogitsOf
    preprocess: Callable[[Tensor], Tensor]
    threshold: float | None = None
    on_step: Callable[[int], None] | None = None

    def measured(
        self,
        attack: AttackFunction,
        loss: LossName,
        epsilons: Sequence[float],
        *,
        batches: list[Prepared] | None = None,
        crafted_with: LogitsOf | None = None,
        targets: Sequence[int | None] = (None,),
    ) -> Measured:
        """``measure`` on all of the images, or on other ``batches``."""
        return measure(
            self.batches if batches is None else batches,
            attack,
            loss,
            epsilons,
            attacked=self.logits,
            crafted_with=crafted_with or self.crafted_with,
            training_loss=self.training_loss,
            errors_of=None if self.threshold is None or batches is not None else self.reconstruction_errors,
            targets=targets,
            on_step=self.on_step,
        )

    def reconstruction_errors(self, images: Tensor) -> Tensor:
        """Squared distance of what the network sees and what the winning class capsule decodes to."""
        return winning_reconstruction_error(self.run.network, self.preprocess(images))

    def examples(
        self,
        attack: AttackFunction,
        loss: LossName,
        epsilons: Sequence[float],
        *,
        images: int,
        target: int | None = None,
    ) -> Examples:
        """The first images, before and after attacks.

        Args:
            attack, loss, epsilons: see ``measure``.
            images: how many.
            target: of the attack.
        """
        batch = first(self.batches, images)[0]
        objective = NetworkObjective(loss, batch.labels, target, self.crafted_with, self.training_loss)
        attacked = {each: attack(objective, batch.images, each, key=batch.key, box=batch.box) for each in epsilons}
        with torch.no_grad():
            found = {each: self.logits(made).argmax(1).cpu() for each, made in attacked.items()}
        made = {each: found.cpu() for each, found in attacked.items()}
        return Examples(batch.images.cpu(), batch.labels.cpu(), batch.box, made, found)

    def training_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """The loss of classification that the network was trained with, a mean over images."""
        seen = self.preprocess(images)
        terms = self.run.module.classification_term(Batch(seen, labels, labels), self.run.network(seen), {})
        (loss,) = terms.values()
        return loss


def open_attacked(
    run: Run,
    data: Any,
    split: str,
    space: Space,
    device: torch.device,
    *,
    source: Run | None = None,
    couplings: str = "trained",
) -> Attacked:
    """A run's network on a device, in evaluation mode and float32, with the images of a split.

    Args:
        run: whose network is attacked.
        data: of ``run.data_with``.
        split: ``"test"`` or ``"val"``.
        space: of the attack.
        device: for networks and images.
        source: the run whose network images are made against; ``None`` is the same.
        couplings: ``"equal"`` makes them against networks whose couplings are equal.

    Raises:
        ConfigError: if a network gives no logits.
        RunError: if the networks take different images, or the data cannot be attacked.
    """
    if source is not None and (source.spec.image_shape, source.spec.num_classes) != (
        run.spec.image_shape,
        run.spec.num_classes,
    ):
        raise RunError(
            f"{source.checkpoint} takes image_shape={source.spec.image_shape}, num_classes={source.spec.num_classes}; "
            f"{run.checkpoint} {run.spec.image_shape}, {run.spec.num_classes}; expected runs on the same data"
        )
    preprocess = functools.partial(preprocessed, data, split) if space == "grey_levels" else _as_it_is
    networks = [frozen(each.network, device) for each in (run, source or run)]
    batches = list(prepare(data, stored_batches(data, split), space, device))
    own = logits_of(networks[0], preprocess)
    crafting = logits_of(networks[1], preprocess)
    if couplings == "equal":
        crafting = _with_equal_couplings(networks[1], crafting)
    return Attacked(run, batches, own, crafting, preprocess)


def detection_threshold(run: Run, data: Any) -> float | None:
    """The reconstruction error that 5 % of the validation images exceed (Frosst, Sabour and Hinton 2018).

    Args:
        run: its network is where it is to compute.
        data: of ``run.data_with``.

    Returns:
        ``None`` for a network without a decoder, or data without validation images.
    """
    network: Any = run.network
    if not reconstructs(run.network):
        return None
    device = next(network.parameters()).device
    errors = []
    for name, stored in stored_batches(data, "val"):
        batch = Batch(stored.images.to(device), stored.labels.to(device), stored.key.to(device))
        with torch.no_grad():
            errors.append(winning_reconstruction_error(network, data.transform_batch(batch, name).images))
    return threshold(torch.cat(errors)) if errors else None


def frozen(network: nn.Module, device: torch.device) -> nn.Module:
    """The network on the device, in evaluation mode, whose parameters need no gradient: a third of the time."""
    return network.eval().requires_grad_(requires_grad=False).to(device)


def preprocessed(data: Any, split: str, images: Tensor) -> Tensor:
    """Grey levels as the network sees them, differentiable."""
    names = {"test": data.test_names, "val": data.val_names}[split]
    nothing = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    seen: Tensor = data.transform_batch(Batch(images, nothing, nothing), names[0]).images
    return seen


def _as_it_is(images: Tensor) -> Tensor:
    return images


def _with_equal_couplings(network: nn.Module, function: LogitsOf) -> LogitsOf:
    def logits(images: Tensor) -> Tensor:
        with equal_couplings(network):
            return function(images)

    return logits


def first(batches: list[Prepared], images: int) -> list[Prepared]:
    """The first so many images."""
    kept: list[Prepared] = []
    for batch in batches:
        left = images - sum(len(each.labels) for each in kept)
        if left > 0:
            parts = (batch.images[:left], batch.labels[:left], batch.key[:left])
            kept.append(Prepared(*parts, batch.box, batch.grey_levels[:left]))
    return kept


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
    noise, once, several = accuracy(random_signs), accuracy(fgsm), accuracy(bim)
    yield masking.below_noise(found, noise, at)
    yield masking.stronger("multi-step", several, once, f"BIM in 10 steps against FGSM, {at}")
    of_training = accuracy(attack, loss="training")
    yield masking.stronger("loss", found, of_training, f"{loss} on logits against the loss of training, {at}")
    other: LossName = "cross_entropy" if loss == "margin" else "margin"
    yield masking.alike("other loss", found, accuracy(attack, loss=other), f"{loss} and {other}, {at}")
    yield masking.converged(
        {steps: accuracy(functools.partial(bim, steps=steps, step_size=_reaching(steps, middle))) for steps in STEPS}
    )
    beyond = 4 * largest
    yield masking.reaches_zero([(beyond, accuracy(attack, beyond))])
    if baseline is not None:
        transfer = accuracy(attack, crafted_with=baseline.logits)
        yield masking.stronger("white box", found, transfer, f"own gradients against those of the baseline, {at}")
    without = accuracy(functools.partial(square, queries=QUERIES), loss="margin")
    yield masking.stronger("gradient-free", found, without, f"against Square, {QUERIES} queries, {at}")
    yield masking.exact_gradient(_gradient_error(attacked, few, loss))


def _reaching(steps: int, epsilon: float) -> float:
    """Steps as large as PGD's, that the same number of them could reach any point."""
    return epsilon if steps == 1 else 2.5 * epsilon / steps


def _gradient_error(attacked: Attacked, batches: list[Prepared], loss: LossName) -> float:
    """In float64, where central differences are exact enough, on the CPU."""
    (few,) = first(batches, _FEW)
    network = copy.deepcopy(attacked.run.network).to("cpu", torch.float64)
    logits = logits_of(network, attacked.preprocess)
    objective = NetworkObjective("margin" if loss == "training" else loss, few.labels.cpu(), None, logits)
    return masking.gradient_error(objective, few.images.to("cpu", torch.float64))
