"""What attacks raise of a network, and what it says of images that were attacked over several budgets.

Losses are per image, and larger the nearer the network is to the wrong answer. Of scores that saturate, such as lengths
and activations of capsules, the gradient vanishes on just the images that a network is sure of, and it looks robust
where it is not; so all of these take logits, see ``CapsuleOutput.logits``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from capsule_lab.studies.attacks.gradient import Box, Images

LogitsOf = Callable[[Images], Float[Tensor, "batch class"]]
TrainingLoss = Callable[[Images, Int64[Tensor, " batch"]], Float[Tensor, ""]]
AttackFunction = Callable[..., Images]
"""``attack(objective, images, epsilon, key, box)``: see ``gradient.fgsm``."""
LossName = Literal["cross_entropy", "margin", "dlr", "training"]

_PICTURES = 8  # ours: what fits a page
_SMALL = 1e-12  # Croce and Hein 2020's code: of logits that are all alike


def cross_entropy(
    logits: Float[Tensor, "batch class"], classes: Int64[Tensor, " batch"], *, targeted: bool = False
) -> Float[Tensor, " batch"]:
    """Softmax cross-entropy of the label; targeted, less that of the target (Goodfellow et al. 2015).

    ``classes`` are the labels or, if it is targeted, the target classes.
    """
    loss = torch.nn.functional.cross_entropy(logits, classes, reduction="none")
    return -loss if targeted else loss


def margin(
    logits: Float[Tensor, "batch class"], classes: Int64[Tensor, " batch"], *, targeted: bool = False
) -> Float[Tensor, " batch"]:
    """By how much the best other class is ahead of the label, or the target of all others (Carlini and Wagner 2017).

    It never saturates, and is above 0 just where the attack succeeds. Arguments are those of ``cross_entropy``.
    """
    own = _logit_of(logits, classes)
    others = logits.scatter(1, classes[:, None], -torch.inf).amax(1)
    return own - others if targeted else others - own


def dlr(
    logits: Float[Tensor, "batch class"],
    classes: Int64[Tensor, " batch"],
    *,
    targets: Int64[Tensor, " batch"] | None = None,
) -> Float[Tensor, " batch"]:
    """Difference of logits ratio (Croce and Hein 2020, equations 5 and 6): the margin, whatever the logits' scale.

    ``classes`` are the labels, and ``targets`` the target classes; ``None`` is anything but the label.
    """
    least = 3 if targets is None else 4
    if logits.shape[1] < least:
        raise ValueError(f"the logits are of {logits.shape[1]} classes; the loss dlr needs {least}, margin needs 2")
    ordered = logits.sort(dim=1, descending=True).values
    if targets is None:
        return margin(logits, classes) / (ordered[:, 0] - ordered[:, 2]).clamp(min=_SMALL)
    ahead = _logit_of(logits, targets) - _logit_of(logits, classes)
    return ahead / (ordered[:, 0] - ordered[:, 2:4].mean(1)).clamp(min=_SMALL)


def _logit_of(logits: Tensor, classes: Tensor) -> Tensor:
    return logits.gather(1, classes[:, None])[:, 0]


class Prepared(NamedTuple):
    """A batch in the space of an attack, the keys that random draws derive from, and the pixels that there are.

    ``grey_levels`` are how many grey levels of 255 one unit of the space is, of each image.
    """

    images: Images
    labels: Int64[Tensor, " batch"]
    key: Int64[Tensor, " batch"]
    box: Box
    grey_levels: Float[Tensor, " batch"]

    def first(self, images: int) -> Prepared:
        """The first so many images."""
        pixels, labels, key, box, grey_levels = self
        return Prepared(pixels[:images], labels[:images], key[:images], box, grey_levels[:images])


class Answers(NamedTuple):
    """What a network says of images under one attack, all on the CPU.

    ``change`` is the mean change of a pixel in units of the space. ``reconstruction_errors`` are of the winning class,
    none if they were not asked for; ``pictures`` the first of the attacked images.
    """

    logits: Float[Tensor, "images class"]
    reconstruction_errors: Float[Tensor, " some"]
    change: Float[Tensor, " images"]
    pictures: Float[Tensor, " few *shape"]

    @property
    def found(self) -> Int64[Tensor, " images"]:
        """The class that each image is taken for."""
        return self.logits.argmax(1)


class Measured(NamedTuple):
    """What was found of images as they are, and by epsilon and target, ``None`` being any class but the label."""

    labels: Int64[Tensor, " images"]
    grey_levels: Float[Tensor, " images"]
    clean: Answers
    attacked: dict[tuple[float, int | None], Answers]

    @property
    def was_right(self) -> Bool[Tensor, " images"]:
        """Which images the network takes for what they are when nothing attacks them."""
        return self.clean.found == self.labels

    def accuracy(self, epsilon: float) -> float:
        """Percent of all images that are classified right when attacked, without a target."""
        return 100 * (self.attacked[epsilon, None].found == self.labels).double().mean().item()


@dataclass(frozen=True)
class NetworkObjective:
    """What an attack on the images of a batch raises: a loss of the logits of the network that it sees.

    ``target`` is the class that the network shall say, ``None`` any but the label; ``training_loss``, of the loss
    ``"training"``, that of images and classes which the network was trained with.
    """

    loss: LossName
    labels: Int64[Tensor, " batch"]
    target: int | None
    logits_of: LogitsOf
    training_loss: TrainingLoss | None = None

    def at(self, chosen: Int64[Tensor, " part"]) -> NetworkObjective:
        """That of some of the images."""
        return replace(self, labels=self.labels[chosen])

    def success(self, images: Images) -> Float[Tensor, " batch"]:
        """Above 0 where the attack has succeeded: the margin."""
        return replace(self, loss="margin")(images)

    def __call__(self, images: Images) -> Float[Tensor, " batch"]:
        """One number per image."""
        targeted = self.target is not None
        classes = torch.full_like(self.labels, self.target) if self.target is not None else self.labels
        if self.loss == "training":
            assert self.training_loss is not None
            loss = self.training_loss(images, classes).expand(len(images))
            return -loss if targeted else loss
        logits = self.logits_of(images)
        if self.loss == "dlr":
            return dlr(logits, self.labels, targets=classes if targeted else None)
        return (cross_entropy if self.loss == "cross_entropy" else margin)(logits, classes, targeted=targeted)


@dataclass
class Attacked:
    """A network under attack, and the images.

    Attributes:
        batches: in the space of the attack.
        logits: of the network that is to be fooled, of images in that space.
        crafted_with: logits that attacks see, if they are others: of another network, or with equal couplings.
        training_loss: of images and labels, for the objective ``"training"``, which shows masking.
        on_step: called with the number of images after each batch, epsilon and target.
    """

    batches: list[Prepared]
    logits: LogitsOf
    crafted_with: LogitsOf | None = None
    training_loss: TrainingLoss | None = None
    on_step: Callable[[int], None] = lambda _: None

    def first(self, images: int) -> Attacked:
        """The same network and the first so many images; reconstruction errors are not kept."""
        kept: list[Prepared] = []
        for batch in self.batches:
            left = images - sum(len(each.labels) for each in kept)
            if left > 0:
                kept.append(batch.first(left))
        return Attacked(kept, self.logits, self.crafted_with, self.training_loss, on_step=self.on_step)

    def logits_and_errors(self, images: Images) -> tuple[Tensor, Tensor]:
        """The logits, and the reconstruction errors of the decoder: none."""
        return self.logits(images), images.new_empty(0)

    def objective(self, loss: LossName, batch: Prepared, target: int | None = None) -> NetworkObjective:
        """What an attack on a batch raises."""
        return NetworkObjective(loss, batch.labels, target, self.crafted_with or self.logits, self.training_loss)

    def measure(
        self, attack: AttackFunction, loss: LossName, epsilons: Sequence[float], targets: Iterable[int | None] = (None,)
    ) -> Measured:
        """Attack every batch with every budget, and keep what the network says.

        Args:
            attack, loss: one of this package, with its options bound, and what it raises.
            epsilons: budgets, in units of the space.
            targets: classes to reach, one after another.
        """
        parts: dict[Any, list[tuple[Tensor, ...]]] = {}

        @torch.no_grad()
        def ask(key: tuple[float, int | None] | None, images: Images, batch: Prepared) -> None:
            change = (images - batch.images).abs().flatten(1).mean(1)
            found = (*self.logits_and_errors(images), change, images[: 0 if key in parts else _PICTURES])
            parts.setdefault(key, []).append(tuple(each.cpu() for each in found))

        for batch in self.batches:
            ask(None, batch.images, batch)
            for target in targets:
                objective = self.objective(loss, batch, target)
                for epsilon in epsilons:
                    ask((epsilon, target), attack(objective, batch.images, epsilon, batch.key, batch.box), batch)
                    self.on_step(len(batch.labels))
        answers = {key: Answers(*map(torch.cat, zip(*found, strict=True))) for key, found in parts.items()}
        _, labels, _, _, grey_levels = zip(*self.batches, strict=True)
        return Measured(torch.cat(labels).cpu(), torch.cat(grey_levels).cpu(), answers.pop(None), answers)
