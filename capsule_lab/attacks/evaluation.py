"""What a network says of images that were attacked over several budgets."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from capsule_lab.attacks import losses
from capsule_lab.attacks.gradient import Box, Images, gradient_of

LogitsOf = Callable[[Images], Float[Tensor, "batch class"]]
AnswersOf = Callable[[Images], tuple[Float[Tensor, "batch class"], Float[Tensor, " batch"]]]
TrainingLoss = Callable[[Images, Int64[Tensor, " batch"]], Float[Tensor, ""]]
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
class Answers:
    """What a network says of images under one attack, all on the CPU.

    Attributes:
        logits: of every class, ``(images, classes)``.
        change: mean change of a pixel, in units of the space, ``(images,)``.
        reconstruction_errors: of the winning class, ``(images,)``; empty if they were not asked for.
    """

    logits: Float[Tensor, "images class"] = field(default_factory=lambda: torch.empty(0, 0))
    change: Float[Tensor, " images"] = field(default_factory=lambda: torch.empty(0))
    reconstruction_errors: Float[Tensor, " some"] = field(default_factory=lambda: torch.empty(0))

    @property
    def found(self) -> Int64[Tensor, " images"]:
        """The class that each image is taken for."""
        return self.logits.argmax(1)

    def add(self, logits: Tensor, change: Tensor, errors: Tensor | None) -> None:
        """Append a batch."""
        self.logits = torch.cat([self.logits.reshape(-1, logits.shape[1]), logits.cpu()])
        self.change = torch.cat([self.change, change.cpu()])
        if errors is not None:
            self.reconstruction_errors = torch.cat([self.reconstruction_errors, errors.cpu()])


@dataclass
class Measured:
    """Everything that an evaluation has found.

    Attributes:
        labels, grey_levels: of the images, in order, as in ``Prepared``.
        digest: SHA-256 of the images.
        clean: of the images as they are.
        attacked: by epsilon and target; ``None`` is the target of attacks that only avoid the label.
    """

    labels: Int64[Tensor, " images"] = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    digest: str = ""
    grey_levels: Float[Tensor, " images"] = field(default_factory=lambda: torch.empty(0))
    clean: Answers = field(default_factory=Answers)
    attacked: dict[tuple[float, int | None], Answers] = field(default_factory=dict)

    @property
    def was_right(self) -> Bool[Tensor, " images"]:
        """Which images the network takes for what they are when nothing attacks them."""
        return self.clean.found == self.labels

    def accuracy(self, epsilon: float, target: int | None = None) -> float:
        """Percent of all images that are classified right when attacked."""
        return 100 * (self.attacked[epsilon, target].found == self.labels).double().mean().item()


@dataclass(frozen=True)
class NetworkObjective:
    """What an attack on the images of a batch raises: a loss of a network's logits.

    Attributes:
        loss: of ``losses``, or ``"training"``.
        labels: of the images.
        target: class that the network shall say; ``None`` is any but the label.
        logits_of: of the network that the attack sees.
        training_loss: of ``"training"``: the loss of images and classes that the network was trained with.
    """

    loss: LossName
    labels: Int64[Tensor, " batch"]
    target: int | None
    logits_of: LogitsOf
    training_loss: TrainingLoss | None = None

    def at(self, chosen: Int64[Tensor, " part"]) -> NetworkObjective:
        """That of some of the images."""
        return replace(self, labels=self.labels[chosen])

    def __call__(self, images: Images) -> Float[Tensor, " batch"]:
        """One number per image.

        Raises:
            ValueError: for ``"training"`` without a training loss.
        """
        targeted = self.target is not None
        classes = torch.full_like(self.labels, self.target) if self.target is not None else self.labels
        if self.loss == "training":
            if self.training_loss is None:
                raise ValueError("loss is 'training', and there is no training loss; expected one")
            loss = self.training_loss(images, classes).expand(len(images))
            return -loss if targeted else loss
        logits = self.logits_of(images)
        if self.loss == "dlr":
            return losses.dlr(logits, self.labels, targets=classes if targeted else None)
        return {"cross_entropy": losses.cross_entropy, "margin": losses.margin}[self.loss](
            logits, classes, targeted=targeted
        )


def measure(
    batches: Iterable[Prepared],
    attack: AttackFunction,
    loss: LossName,
    epsilons: Sequence[float],
    *,
    attacked: LogitsOf,
    crafted_with: LogitsOf | None = None,
    training_loss: TrainingLoss | None = None,
    answers_of: AnswersOf | None = None,
    targets: Sequence[int | None] = (None,),
    on_step: Callable[[int], None] | None = None,
) -> Measured:
    """Attack every batch with every budget, and keep what the network says.

    Args:
        batches: the images.
        attack: one of this package, with its options bound.
        loss: what it raises, of ``losses``; ``"training"``, which shows masking, is ``training_loss``.
        epsilons: budgets, in units of the space.
        attacked: the logits of the network that is to be fooled.
        crafted_with: those that the attack sees: another network's, for a transfer, or those with equal couplings;
            ``None`` is ``attacked``.
        training_loss: of images and labels.
        answers_of: logits of ``attacked`` and reconstruction errors of its decoder, in one pass; ``None`` keeps no
            errors.
        targets: classes to reach, one after another; ``None`` is any class but the label.
        on_step: called with the number of images after each batch, epsilon and target.
    """
    crafted_with = crafted_with or attacked
    measured, digest = Measured(), hashlib.sha256()

    def ask(answers: Answers, images: Images, batch: Prepared) -> None:
        change = (images - batch.images).abs().flatten(1).mean(1)
        with torch.no_grad():
            logits, errors = answers_of(images) if answers_of else (attacked(images), None)
            answers.add(logits, change, errors)

    for batch in batches:
        measured.labels = torch.cat([measured.labels, batch.labels.cpu()])
        measured.grey_levels = torch.cat([measured.grey_levels, batch.grey_levels.cpu()])
        digest.update(batch.images.cpu().numpy().tobytes())
        ask(measured.clean, batch.images, batch)
        for target in targets:
            objective = NetworkObjective(loss, batch.labels, target, crafted_with, training_loss)
            for epsilon in epsilons:
                images = attacked_images(attack, objective, batch, epsilon)
                ask(measured.attacked.setdefault((epsilon, target), Answers()), images, batch)
                if on_step:
                    on_step(len(batch.labels))
    measured.digest = digest.hexdigest()
    return measured


def attacked_images(attack: AttackFunction, objective: NetworkObjective, batch: Prepared, epsilon: float) -> Images:
    """A batch under an attack. Of several restarts and queries any success counts, also where the loss is another.

    Args:
        attack, epsilon: see ``measure``.
        objective: of these images.
        batch: the images.
    """
    chooses = "chosen_by" in inspect.signature(attack).parameters
    chosen = {"chosen_by": replace(objective, loss="margin")} if chooses else {}
    return attack(objective, batch.images, epsilon, key=batch.key, box=batch.box, **chosen)


def gradients_of(
    batches: Iterable[Prepared], loss: LossName, logits: LogitsOf, training_loss: TrainingLoss | None = None
) -> Float[Tensor, " images *shape"]:
    """Of a loss of the labels by the images as they are, on the CPU.

    Args:
        batches, loss, training_loss: see ``measure``.
        logits: of the network.
    """
    objectives = ((NetworkObjective(loss, each.labels, None, logits, training_loss), each.images) for each in batches)
    return torch.cat([gradient_of(objective, images).cpu() for objective, images in objectives])
