"""Accuracy under attack: images of a run, attacked over several budgets, against any network."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from capsule_lab.attacks import losses
from capsule_lab.attacks.gradient import Box, Images, Objective, gradient_of
from capsule_lab.attacks.losses import AttackLoss

LogitsOf = Callable[[Images], Float[Tensor, "batch class"]]
AttackFunction = Callable[..., Images]
"""``attack(objective, images, epsilon, key=…, box=…)``: see ``gradient.fgsm``."""
LossName = Literal["cross_entropy", "margin", "dlr", "training"]


@dataclass(frozen=True)
class Prepared:
    """A batch, ready to be attacked.

    Attributes:
        images: in the space of the attack.
        labels: one of each image.
        key: of each image, from which random draws derive.
        box: the pixels that there are.
        grey_levels: of each image, how many grey levels of 255 one unit of the space is, ``(batch,)``.
    """

    images: Images
    labels: Int64[Tensor, " batch"]
    key: Int64[Tensor, " batch"]
    box: Box
    grey_levels: Float[Tensor, " batch"]


@dataclass
class Counts:
    """What images were taken for, at one epsilon and for one target.

    Attributes:
        target: class that the attack was to reach; ``None`` for anything but the label.
        images: how many there were.
        right: how many were classified right when attacked.
        reached: how many were taken for the target; of those that had another label and were right before,
            ``reached_of_eligible``, of ``eligible``.
        change: sum over images of the mean change of a pixel, in units of the space; ``grey_change`` in grey levels.
    """

    epsilon: float
    target: int | None
    images: int = 0
    right: int = 0
    reached: int = 0
    eligible: int = 0
    reached_of_eligible: int = 0
    change: float = 0.0
    grey_change: float = 0.0

    def add(
        self,
        found: Int64[Tensor, " batch"],
        batch: Prepared,
        attacked: Images,
        was_right: Bool[Tensor, " batch"],
    ) -> None:
        """Count a batch, of which the attacked network says ``found``."""
        size = (attacked - batch.images).abs().flatten(1).mean(1)
        self.images += len(found)
        self.right += int((found == batch.labels).sum())
        self.change += float(size.sum())
        self.grey_change += float((size * batch.grey_levels).sum())
        eligible = was_right if self.target is None else was_right & (batch.labels != self.target)
        reached = found != batch.labels if self.target is None else found == self.target
        self.reached += int(reached.sum())
        self.eligible += int(eligible.sum())
        self.reached_of_eligible += int((reached & eligible).sum())


@dataclass
class Measured:
    """Everything that an evaluation has found.

    Attributes:
        clean: how many of ``images`` were right when they were not attacked.
        counts: by epsilon and target.
        gradients: of the loss by each image that was not attacked, where they were asked for.
        keys: of the images, in order.
    """

    images: int = 0
    clean: int = 0
    counts: dict[tuple[float, int | None], Counts] = field(default_factory=dict)
    gradients: list[Tensor] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)


def measure(
    batches: Iterable[Prepared],
    attack: AttackFunction,
    loss: LossName,
    epsilons: Sequence[float],
    *,
    attacked: LogitsOf,
    crafted_with: LogitsOf | None = None,
    training_loss: Callable[[Images, Tensor], Tensor] | None = None,
    targets: Sequence[int | None] = (None,),
    keep_gradients: bool = False,
    on_step: Callable[[int], None] | None = None,
) -> Measured:
    """Attack every batch with every budget, and count what the network says.

    Args:
        batches: the images.
        attack: one of this package, with its options bound.
        loss: what it raises, of ``losses``; ``"training"``, which shows masking, is ``training_loss``.
        epsilons: budgets, in units of the space.
        attacked: the logits of the network that is to be fooled.
        crafted_with: those that the attack sees: another network's, for a transfer, or those with equal couplings;
            ``None`` is ``attacked``.
        training_loss: of images and labels.
        targets: classes to reach, one after another; ``None`` is any class but the label.
        keep_gradients: whether gradients of the unattacked images are kept.
        on_step: called with the number of images after each batch, epsilon and target.
    """
    crafted_with = crafted_with or attacked
    measured = Measured()
    restarts = "chosen_by" in inspect.signature(attack).parameters
    for batch in batches:
        with torch.no_grad():
            was_right = attacked(batch.images).argmax(1) == batch.labels
        measured.images += len(batch.labels)
        measured.clean += int(was_right.sum())
        measured.keys += batch.key.tolist()
        for target in targets:
            objective = objective_of(loss, batch.labels, target, crafted_with, training_loss)
            # any success of any restart counts, also where the loss is another
            chosen = {"chosen_by": objective_of("margin", batch.labels, target, crafted_with)} if restarts else {}
            if keep_gradients and target is targets[0]:
                measured.gradients.append(gradient_of(objective, batch.images).cpu())
            for epsilon in epsilons:
                images = attack(objective, batch.images, epsilon, key=batch.key, box=batch.box, **chosen)
                with torch.no_grad():
                    found = attacked(images).argmax(1)
                counts = measured.counts.setdefault((epsilon, target), Counts(epsilon, target))
                counts.add(found, batch, images, was_right)
                if on_step:
                    on_step(len(batch.labels))
    return measured


def objective_of(
    loss: LossName,
    labels: Int64[Tensor, " batch"],
    target: int | None,
    logits_of: LogitsOf,
    training_loss: Callable[[Images, Tensor], Tensor] | None = None,
) -> Objective:
    """What an attack on these images raises.

    Raises:
        ValueError: for ``"training"`` without a training loss.
    """
    classes = labels if target is None else torch.full_like(labels, target)
    if loss == "training":
        if training_loss is None:
            raise ValueError("loss is 'training', and there is no training loss; expected one")
        sign = 1 if target is None else -1
        return lambda images: sign * training_loss(images, classes).expand(len(images))
    if loss == "dlr":
        return lambda images: losses.dlr(logits_of(images), labels, targets=None if target is None else classes)
    function: AttackLoss = {"cross_entropy": losses.cross_entropy, "margin": losses.margin}[loss]
    return lambda images: function(logits_of(images), classes, targeted=target is not None)  # type: ignore[call-arg]
