"""Attacks on the network of a run, on its images in the space of the attack."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from capsule_lab.analysis.equal_couplings import equal_couplings
from capsule_lab.analysis.reconstruction_detection import threshold, winning_reconstruction_error
from capsule_lab.attacks.evaluation import (
    AttackFunction,
    LogitsOf,
    LossName,
    Measured,
    NetworkObjective,
    Prepared,
    attacked_images,
    measure,
)
from capsule_lab.attacks.gradient import Box
from capsule_lab.attacks.spaces import Space, logits_in, logits_of, prepare, preprocessed
from capsule_lab.errors import RunError
from capsule_lab.networks import reconstructs
from capsule_lab.runs.open_run import Run, stored_batches
from capsule_lab.types import Batch

if TYPE_CHECKING:
    from capsule_lab.lit import AbstractCapsuleModule


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
            answers_of=None if self.threshold is None or batches is not None else self.logits_and_errors,
            targets=targets,
            on_step=self.on_step,
        )

    def logits_and_errors(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the squared distance of what the network sees and what its winning class capsule decodes to."""
        seen = self.preprocess(images)
        output = self.run.network(seen)
        errors = winning_reconstruction_error(self.run.network, seen, output=output)
        return logits_in(output, self.run.network), errors

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
        attacked = {epsilon: attacked_images(attack, objective, batch, epsilon) for epsilon in epsilons}
        with torch.no_grad():
            found = {each: self.logits(made).argmax(1).cpu() for each, made in attacked.items()}
        made = {each: images.cpu() for each, images in attacked.items()}
        return Examples(batch.images.cpu(), batch.labels.cpu(), batch.box, made, found)

    def training_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """The loss of classification that the network was trained with, a mean over images."""
        seen = self.preprocess(images)
        module = cast("AbstractCapsuleModule", self.run.module)
        terms = module.classification_term(Batch(seen, labels, labels), self.run.network(seen), {})
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
        RunError: if the runs are of different data, or the data cannot be attacked or has no such images.
    """
    if source is not None:
        check_alike(run, source)
    names = {"test": data.test_names, "val": data.val_names}[split]
    preprocess = functools.partial(preprocessed, data, names[0]) if space == "grey_levels" else _as_it_is
    networks = [frozen(each.network, device) for each in (run, source or run)]
    batches = prepare(data, stored_batches(data, split), space, device)
    if not batches:
        raise RunError(f"there are no images in split={split} of this data; expected split=test, or other data")
    own = logits_of(networks[0], preprocess)
    crafting = logits_of(networks[1], preprocess)
    if couplings == "equal":
        crafting = _with_equal_couplings(networks[1], crafting)
    return Attacked(run, batches, own, crafting, preprocess)


def check_alike(run: Run, other: Run) -> None:
    """Check that two runs were trained on the same data, real or a stand-in.

    Raises:
        RunError: if not.
    """
    both = [
        {
            "image_shape": tuple(each.spec.image_shape),
            "num_classes": each.spec.num_classes,
            "data": str(each.config.data["_target_"]).rpartition(".")[2],
            "source": each.provenance["source"],
        }
        for each in (run, other)
    ]
    for name, value in both[0].items():
        if both[1][name] != value:
            raise RunError(
                f"{other.checkpoint} has {name} {both[1][name]}, {run.checkpoint} has {value}; "
                "expected runs on the same data"
            )


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
