"""Objectives of attacks, and the evaluation of a network on images that were attacked with several budgets.

Losses are per image, and larger the nearer the network is to a wrong answer. Scores that saturate, such as lengths and
activations of capsules, have a vanishing gradient on exactly those images that the network classifies confidently, so
that it looks more robust than it is; all losses therefore take logits, see ``CapsuleOutput.logits``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from capsule_studies.attacks.gradient import Box, Images
from capsule_studies.images import count_images, joined_labels, percent

LogitsOf = Callable[[Images], Float[Tensor, "batch class"]]
TrainingLoss = Callable[[Images, Int64[Tensor, " batch"]], Float[Tensor, ""]]
AttackFunction = Callable[..., Images]
"""``attack(objective, images, epsilon, key, box)``: see ``gradient.fgsm``."""
LossName = Literal["cross_entropy", "margin", "training"]

_PICTURES = 8  # ours: what fits a page


def cross_entropy(
    logits: Float[Tensor, "batch class"],
    classes: Int64[Tensor, " batch"],
    *,
    targeted: bool = False,
) -> Float[Tensor, " batch"]:
    """Compute the softmax cross-entropy of the label, or minus that of the target (Goodfellow et al. 2015).

    ``classes`` are the labels or, if ``targeted``, the target classes.
    """
    loss = torch.nn.functional.cross_entropy(logits, classes, reduction="none")
    return -loss if targeted else loss


def margin(
    logits: Float[Tensor, "batch class"],
    classes: Int64[Tensor, " batch"],
    *,
    targeted: bool = False,
) -> Float[Tensor, " batch"]:
    """Compute the lead of the best other class over the label, or of the target over all others (Carlini and Wagner
    2017). It never saturates, and is above 0 exactly if the attack succeeds; arguments as in ``cross_entropy``.
    """
    label_logit = logits.gather(1, classes[:, None])[:, 0]
    others = logits.scatter(1, classes[:, None], -torch.inf).amax(1)
    return label_logit - others if targeted else others - label_logit


class Prepared(NamedTuple):
    """A batch in the space of an attack, the keys for random draws, and the range of its pixels.

    ``grey_levels`` is the number of grey levels, of 255, in one unit of the space, for each image.
    """

    images: Images
    labels: Int64[Tensor, " batch"]
    key: Int64[Tensor, " batch"]
    box: Box
    grey_levels: Float[Tensor, " batch"]

    def first(self, images: int) -> Prepared:
        """Return the first ``images`` of the batch."""
        pixels, labels, key, box, grey_levels = self
        return Prepared(pixels[:images], labels[:images], key[:images], box, grey_levels[:images])


class Answers(NamedTuple):
    """The outputs of a network for images under one attack, all on the CPU.

    ``change`` is the mean absolute change of a pixel in units of the space. ``reconstruction_errors`` are those of the
    winning class, empty unless they are measured; ``pictures`` are the attacked images that ``Measured.shown`` names.
    """

    logits: Float[Tensor, "images class"]
    reconstruction_errors: Float[Tensor, " some"]
    change: Float[Tensor, " images"]
    pictures: Float[Tensor, " few *shape"]

    @property
    def found(self) -> Int64[Tensor, " images"]:
        """The predicted class of each image."""
        return self.logits.argmax(1)


class Measured(NamedTuple):
    """Outputs for clean images, and for attacked images by epsilon and target; ``None`` is any class but the label.

    ``shown`` are the numbers of the images whose pictures are kept, the first ones of every class.
    """

    labels: Int64[Tensor, " images"]
    grey_levels: Float[Tensor, " images"]
    shown: Int64[Tensor, " few"]
    clean: Answers
    attacked: dict[tuple[float, int | None], Answers]

    @property
    def was_right(self) -> Bool[Tensor, " images"]:
        """Which images the network classifies right without an attack."""
        return self.clean.found == self.labels

    def accuracy(self, epsilon: float) -> float:
        """Return the percentage of all images that are classified right under the untargeted attack."""
        return percent(self.attacked[epsilon, None].found == self.labels)


@dataclass(frozen=True)
class NetworkObjective:
    """The objective that an attack on a batch maximises: a loss of the logits of the network that it attacks.

    ``target`` is the class that the attack aims at, ``None`` for any class but the label. ``training_loss`` is the
    network's training loss as a function of images and classes, for the loss ``"training"``.
    """

    loss: LossName
    labels: Int64[Tensor, " batch"]
    target: int | None
    logits_of: LogitsOf
    training_loss: TrainingLoss | None = None

    def at(self, chosen: Int64[Tensor, " part"]) -> NetworkObjective:
        """Return the objective for some of the images."""
        return replace(self, labels=self.labels[chosen])

    def success(self, images: Images) -> Float[Tensor, " batch"]:
        """Return the margin, which is above 0 where the attack has succeeded."""
        return replace(self, loss="margin")(images)

    def __call__(self, images: Images) -> Float[Tensor, " batch"]:
        """Return one number per image."""
        targeted = self.target is not None
        classes = self.labels
        if self.target is not None:
            classes = torch.full_like(self.labels, self.target)
        if self.loss == "training":
            assert self.training_loss is not None
            of_training = self.training_loss(images, classes).expand(len(images))
            return -of_training if targeted else of_training
        loss = cross_entropy if self.loss == "cross_entropy" else margin
        return loss(self.logits_of(images), classes, targeted=targeted)


@dataclass
class Attacked:
    """A network under attack, and the images.

    Attributes:
        batches: images in the space of the attack.
        logits: maps images in that space to the logits of the attacked network.
        crafted_with: logits for crafting the images, if different: of another network, or with equal couplings.
        training_loss: maps images and labels to the objective ``"training"``, which reveals masked gradients.
        on_step: called with the number of images after each batch, epsilon and target.
    """

    batches: list[Prepared]
    logits: LogitsOf
    crafted_with: LogitsOf | None = None
    training_loss: TrainingLoss | None = None
    on_step: Callable[[int], None] = lambda _: None

    def first(self, images: int) -> Attacked:
        """Return the same network with the first ``images``; reconstruction errors are not measured."""
        batches: list[Prepared] = []
        for batch in self.batches:
            remaining = images - count_images(batches)
            if remaining > 0:
                batches.append(batch.first(remaining))
        return Attacked(
            batches, self.logits, self.crafted_with, self.training_loss, on_step=self.on_step
        )

    def logits_and_errors(self, images: Images) -> tuple[Tensor, Tensor]:
        """Return the logits, and the decoder's reconstruction errors, which are empty here."""
        return self.logits(images), images.new_empty(0)

    def objective(
        self, loss: LossName, batch: Prepared, target: int | None = None
    ) -> NetworkObjective:
        """Return the objective that an attack on a batch maximises."""
        return NetworkObjective(
            loss, batch.labels, target, self.crafted_with or self.logits, self.training_loss
        )

    def measure(
        self,
        attack: AttackFunction,
        loss: LossName,
        epsilons: Sequence[float],
        targets: Iterable[int | None] = (None,),
    ) -> Measured:
        """Attack every batch with every budget, in units of the space, and keep the network's outputs.

        ``attack`` has its options bound and maximises ``loss``; there is one attack for each target class.
        """
        clean: list[Answers] = []
        parts: dict[tuple[float, int | None], list[Answers]] = {}
        labels = joined_labels(self.batches).cpu()
        shown = _first_of_every_class(labels)
        start = 0
        for batch in self.batches:
            end = start + len(batch.labels)
            here = shown[(start <= shown) & (shown < end)] - start
            start = end
            clean.append(self._answers(batch.images, batch, here))
            for target in targets:
                objective = self.objective(loss, batch, target)
                for epsilon in epsilons:
                    images = attack(objective, batch.images, epsilon, batch.key, batch.box)
                    answers = parts.setdefault((epsilon, target), [])
                    answers.append(self._answers(images, batch, here))
                    self.on_step(len(batch.labels))
        grey_levels = [batch.grey_levels for batch in self.batches]
        return Measured(
            labels=labels,
            grey_levels=torch.cat(grey_levels).cpu(),
            shown=shown,
            clean=_joined(clean),
            attacked={key: _joined(answers) for key, answers in parts.items()},
        )

    @torch.no_grad()
    def _answers(self, images: Images, batch: Prepared, shown: Int64[Tensor, " shown"]) -> Answers:
        """Evaluate the network on the images into which a batch was turned; keep those of ``shown`` as ``pictures``."""
        logits, errors = self.logits_and_errors(images)
        change = (images - batch.images).abs().flatten(1).mean(1)
        few = images.cpu()[shown]
        return Answers(logits.cpu(), errors.cpu(), change.cpu(), few)


def _first_of_every_class(labels: Int64[Tensor, " images"]) -> Int64[Tensor, " few"]:
    """Return the numbers of the first images of each class, as many of each as there is room for, in their order."""
    turn = torch.empty_like(labels)
    for label in labels.unique():
        of_class = labels == label
        turn[of_class] = torch.arange(int(of_class.sum()))
    chosen = turn.argsort(stable=True)[:_PICTURES]
    return chosen.sort().values


def _joined(answers: Sequence[Answers]) -> Answers:
    return Answers(*map(torch.cat, zip(*answers, strict=True)))
