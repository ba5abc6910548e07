"""What a network says of images that were attacked over several budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from capsule_lab.studies.attacks import losses
from capsule_lab.studies.attacks.gradient import Box, Images, gradient_of

LogitsOf = Callable[[Images], Float[Tensor, "batch class"]]
AnswersOf = Callable[[Images], tuple[Float[Tensor, "batch class"], Float[Tensor, " some"]]]
TrainingLoss = Callable[[Images, Int64[Tensor, " batch"]], Float[Tensor, ""]]
AttackFunction = Callable[..., Images]
"""``attack(objective, images, epsilon, key, box)``: see ``gradient.fgsm``."""
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

    def first(self, images: int) -> Prepared:
        """The first so many images."""
        parts = (self.images[:images], self.labels[:images], self.key[:images])
        return Prepared(*parts, self.box, self.grey_levels[:images])


@dataclass(frozen=True)
class Answers:
    """What a network says of images under one attack, all on the CPU.

    Attributes:
        logits: of every class, ``(images, classes)``.
        change: mean change of a pixel, in units of the space, ``(images,)``.
        reconstruction_errors: of the winning class, ``(images,)``; empty if they were not asked for.
    """

    logits: Float[Tensor, "images class"]
    change: Float[Tensor, " images"]
    reconstruction_errors: Float[Tensor, " some"]

    @property
    def found(self) -> Int64[Tensor, " images"]:
        """The class that each image is taken for."""
        return self.logits.argmax(1)


@dataclass(frozen=True)
class Measured:
    """Everything that an evaluation has found.

    Attributes:
        labels, grey_levels: of the images, in order, as in ``Prepared``.
        clean: of the images as they are.
        attacked: by epsilon and target; ``None`` is the target of attacks that only avoid the label.
    """

    labels: Int64[Tensor, " images"]
    grey_levels: Float[Tensor, " images"]
    clean: Answers
    attacked: dict[tuple[float, int | None], Answers]

    @property
    def was_right(self) -> Bool[Tensor, " images"]:
        """Which images the network takes for what they are when nothing attacks them."""
        return self.clean.found == self.labels

    def accuracy(self, epsilon: float, target: int | None = None) -> float:
        """Percent of all images that are classified right when attacked."""
        return 100 * (self.attacked[epsilon, target].found == self.labels).double().mean().item()


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

    @property
    def success(self) -> NetworkObjective:
        """Above 0 where the attack has succeeded: the margin."""
        return replace(self, loss="margin")

    def __call__(self, images: Images) -> Float[Tensor, " batch"]:
        """One number per image."""
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
        return getattr(losses, self.loss)(logits, classes, targeted=targeted)


@dataclass
class Attacked:
    """A network under attack, and the images.

    Attributes:
        batches: in the space of the attack.
        logits: of the network that is to be fooled, of images in that space.
        crafted_with: logits that attacks see, if they are others: of another network, for a transfer, or with equal
            couplings.
        training_loss: of images and labels, for the objective ``"training"``, which shows masking.
        logits_and_errors: the logits, and the reconstruction errors of the decoder, in one pass; ``None`` keeps no
            errors.
        on_step: called with the number of images after each batch, epsilon and target.
    """

    batches: list[Prepared]
    logits: LogitsOf
    crafted_with: LogitsOf | None = None
    training_loss: TrainingLoss | None = None
    logits_and_errors: AnswersOf | None = None
    on_step: Callable[[int], None] | None = None

    def first(self, images: int) -> Attacked:
        """The same network and the first so many images; reconstruction errors are not kept."""
        kept: list[Prepared] = []
        for batch in self.batches:
            left = images - sum(len(each.labels) for each in kept)
            if left > 0:
                kept.append(batch.first(left))
        return Attacked(kept, self.logits, self.crafted_with, self.training_loss, on_step=self.on_step)

    def objective(self, loss: LossName, batch: Prepared, target: int | None = None) -> NetworkObjective:
        """What an attack on a batch raises."""
        return NetworkObjective(loss, batch.labels, target, self.crafted_with or self.logits, self.training_loss)

    def measure(
        self, attack: AttackFunction, loss: LossName, epsilons: Sequence[float], targets: Iterable[int | None] = (None,)
    ) -> Measured:
        """Attack every batch with every budget, and keep what the network says.

        Args:
            attack: one of this package, with its options bound.
            loss: what it raises, of ``losses``, or ``"training"``.
            epsilons: budgets, in units of the space.
            targets: classes to reach, one after another; ``None`` is any class but the label.
        """
        parts: dict[tuple[float, int | None] | None, list[tuple[Tensor, ...]]] = {}

        def ask(key: tuple[float, int | None] | None, images: Images, batch: Prepared) -> None:
            change = (images - batch.images).abs().flatten(1).mean(1)
            with torch.no_grad():
                if self.logits_and_errors is None:
                    logits, errors = self.logits(images), change.new_empty(0)
                else:
                    logits, errors = self.logits_and_errors(images)
            parts.setdefault(key, []).append((logits.cpu(), change.cpu(), errors.cpu()))

        for batch in self.batches:
            ask(None, batch.images, batch)
            for target in targets:
                objective = self.objective(loss, batch, target)
                for epsilon in epsilons:
                    ask((epsilon, target), attack(objective, batch.images, epsilon, batch.key, batch.box), batch)
                    if self.on_step:
                        self.on_step(len(batch.labels))
        answers = {key: Answers(*map(torch.cat, zip(*found, strict=True))) for key, found in parts.items()}
        clean = answers.pop(None)
        return Measured(
            torch.cat([batch.labels.cpu() for batch in self.batches]),
            torch.cat([batch.grey_levels.cpu() for batch in self.batches]),
            clean,
            {key: each for key, each in answers.items() if key is not None},
        )

    def examples(
        self, attack: AttackFunction, loss: LossName, epsilons: Sequence[float], images: int, target: int | None = None
    ) -> Examples:
        """The first images of the first batch, before and after attacks.

        Args:
            attack, loss, epsilons: see ``measure``.
            images: how many.
            target: of the attack.
        """
        batch = self.batches[0].first(images)
        objective = self.objective(loss, batch, target)
        attacked = {each: attack(objective, batch.images, each, batch.key, batch.box) for each in epsilons}
        with torch.no_grad():
            found = {each: self.logits(made).argmax(1).cpu() for each, made in attacked.items()}
        made = {each: images.cpu() for each, images in attacked.items()}
        return Examples(batch.images.cpu(), batch.labels.cpu(), batch.box, made, found)

    def gradients(self, loss: LossName) -> Float[Tensor, " images *shape"]:
        """Of a loss of the labels by the images as they are, on the CPU; of the network's own logits."""
        return torch.cat(
            [
                gradient_of(
                    NetworkObjective(loss, each.labels, None, self.logits, self.training_loss), each.images
                ).cpu()
                for each in self.batches
            ]
        )
