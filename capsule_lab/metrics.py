"""Metrics for capsule networks, based on torchmetrics."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassRecall,
    MultilabelExactMatch,
    MultilabelF1Score,
    MultilabelRecall,
)
from torchmetrics.functional.classification import binary_auroc
from torchmetrics.utilities import dim_zero_cat

from capsule_lab.functional import check_label_count, predicted_labels
from capsule_lab.shapes import check_range, checks_shapes
from capsule_lab.types import RoutingTrace

HAS_LABEL = (
    0.5  # ours: halfway between m- and m+ of the margin loss, and the middle of a probability
)
PRESENT = 0.9  # a tutorial's code for MultiMNIST: classes with a higher score count as present
# Apple's GPUs have no float64
WIDEST = torch.float32 if torch.backends.mps.is_available() else torch.float64


class ErrorRate(MulticlassAccuracy):
    """Percentage of images whose highest score is not that of their label."""

    higher_is_better = False

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(num_classes=num_classes, average="micro", validate_args=False, **kwargs)

    @checks_shapes
    def update(
        self, preds: Float[Tensor, "batch {self.num_classes}"], target: Int64[Tensor, " batch"]
    ) -> None:
        _check_classes(self, target, preds)
        super().update(preds, target)

    def compute(self) -> Tensor:
        return 100 * (1 - super().compute())

    def counts(self) -> tuple[Tensor, Tensor]:
        """Return how many were wrong and how many there were in this process."""
        right, wrong = cast(Tensor, self.tp).sum(), cast(Tensor, self.fn).sum()
        return wrong, right + wrong


class BalancedError(MulticlassRecall):
    """Error in percent, averaged over the classes: 100 minus the mean recall.

    Rare classes count as much as frequent ones; a constant answer has 50 for two classes, 90 for ten. Classes without
    images do not count.

    Attributes:
        recalls: of the last ``compute``: percentage of the images of each class that are right, ``(class,)``.
        images: of the last ``compute``: number of images of each class, ``(class,)``.
    """

    higher_is_better = False

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(num_classes=num_classes, average="none", validate_args=False, **kwargs)
        self.recalls = torch.zeros(num_classes)
        self.images = torch.zeros(num_classes, dtype=torch.int64)

    @checks_shapes
    def update(
        self, preds: Float[Tensor, "batch {self.num_classes}"], target: Int64[Tensor, " batch"]
    ) -> None:
        _check_classes(self, target, preds)
        super().update(preds, target)

    def compute(self) -> Tensor:
        self.recalls = 100 * super().compute()
        self.images = cast(Tensor, self.tp) + cast(Tensor, self.fn)
        return 100 - self.recalls[self.images > 0].mean()


class AUROC(Metric):
    """Area under the ROC curve of each class against all others, averaged over the classes, in [0, 1].

    Images of a class are ranked by its score, so that only the order of the scores counts. Chance is 0.5. Classes
    without images, or that all images have, do not count. Labels are classes, or a row for each image of whether it has
    each class.
    """

    full_state_update = False
    higher_is_better = True
    scores: list[Tensor]
    labels: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for state in ("scores", "labels"):
            self.add_state(state, [], dist_reduce_fx="cat")

    @checks_shapes
    def update(
        self,
        scores: Float[Tensor, "batch classes"],
        labels: Int64[Tensor, " batch"] | Bool[Tensor, "batch classes"],
    ) -> None:
        if labels.ndim == 1:
            _check_classes(self, labels, scores)
        self.scores.append(scores)
        self.labels.append(labels)

    def compute(self) -> dict[str, Tensor]:
        """Return ``auroc``; nothing if all images have one class, which is told apart from no other."""
        scores, labels = dim_zero_cat(self.scores), dim_zero_cat(self.labels)
        has_label = labels
        if labels.ndim == 1:
            has_label = labels[:, None] == torch.arange(scores.shape[1], device=labels.device)
        images = has_label.sum(0)
        areas = []
        for label in ((images > 0) & (images < len(labels))).nonzero()[:, 0]:
            ranks = scores[:, label].unique(return_inverse=True)[1]
            # torchmetrics would pass scores outside of [0, 1] through a logistic function, which rounds to 1
            areas.append(binary_auroc(ranks / len(ranks), has_label[:, label], validate_args=False))
        return {"auroc": torch.stack(areas).mean()} if areas else {}


def constant_error(counts: Tensor, answer: int) -> float:
    """Return the error in percent of always answering one class, for ``counts`` images of each class."""
    number = counts.sum()
    return 100 * (number - counts[answer]).item() / number.item()


class LabelError(Metric):
    """Percentage of labels that are not among the n highest scores of an image with n labels.

    One correct digit of two counts as half an error, so do not compare it with ``ExactMatchError``.
    """

    full_state_update = False
    higher_is_better = False
    wrong: Tensor
    total: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for state in ("wrong", "total"):
            self.add_state(state, torch.tensor(0), dist_reduce_fx="sum")

    @checks_shapes
    def update(
        self, scores: Float[Tensor, "batch classes"], labels: Int64[Tensor, "batch label"]
    ) -> None:
        check_label_count(type(self).__name__, scores, labels)
        _check_classes(self, labels, scores)
        wrong = self._wrong(~predicted_labels(scores.topk(labels.shape[1]).indices, labels).any(2))
        self.wrong += wrong.sum()
        self.total += wrong.numel()

    def compute(self) -> Tensor:
        return 100 * self.wrong / self.total

    def counts(self) -> tuple[Tensor, Tensor]:
        """Return how many were wrong and how many there were in this process."""
        return self.wrong, self.total

    def _wrong(self, missed: Bool[Tensor, "batch label"]) -> Tensor:
        return missed


class ExactMatchError(LabelError):
    """Percentage of images whose labels are not exactly the classes with the highest scores.

    A prediction of two digits is correct only if both are (Sabour 2017, section 6).
    """

    def _wrong(self, missed: Bool[Tensor, "batch label"]) -> Tensor:
        return missed.any(1)


class AnswerError(LabelError):
    """Percentage of wrong answers, one for each image and class, whether the image has this class (Hamming loss).

    For images with any number of labels: the answer is yes if the score, in [0, 1], is above ``HAS_LABEL``.
    """

    @checks_shapes
    def update(
        self, scores: Float[Tensor, "batch classes"], labels: Bool[Tensor, "batch classes"]
    ) -> None:
        wrong = self._wrong((scores > HAS_LABEL) != labels)
        self.wrong += wrong.sum()
        self.total += wrong.numel()


class AnySetError(AnswerError):
    """Percentage of images whose labels, any number of them, are not exactly the classes of ``AnswerError``."""

    def _wrong(self, missed: Bool[Tensor, "batch label"]) -> Tensor:
        return missed.any(1)


class BalancedAnswerError(MultilabelRecall):
    """Error of ``AnswerError`` in percent, averaged over images with and without a class, then over the classes.

    A constant answer has 50. Classes without images, or that all images have, do not count.

    Attributes:
        recalls: of the last ``compute``: percentage of the images with each class that it is found in, ``(class,)``.
        images: of the last ``compute``: number of images with each class, ``(class,)``.
    """

    higher_is_better = False

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(num_classes, average="none", validate_args=False, **kwargs)
        self.recalls = torch.zeros(num_classes)
        self.images = torch.zeros(num_classes, dtype=torch.int64)

    @checks_shapes
    def update(
        self,
        scores: Float[Tensor, "batch {self.num_labels}"],
        labels: Bool[Tensor, "batch {self.num_labels}"],
    ) -> None:
        super().update((scores > HAS_LABEL).to(torch.int64), labels.to(torch.int64))

    def compute(self) -> Any:
        """Return ``{"balanced_error": …}``; an empty dictionary if no class counts."""
        right_without, wrong_without = cast(Tensor, self.tn), cast(Tensor, self.fp)
        without = right_without + wrong_without
        self.recalls = 100 * super().compute()
        self.images = cast(Tensor, self.tp) + cast(Tensor, self.fn)
        counts = (self.images > 0) & (without > 0)
        right = (self.recalls + 100 * right_without / without)[counts] / 2
        return {"balanced_error": 100 - right.mean()} if len(right) else {}


def constant_labels(labels: Bool[Tensor, "image class"]) -> tuple[Bool[Tensor, " class"], float]:
    """Return the most frequent set of labels, and the error in percent of always answering it."""
    rows, counts = labels.unique(dim=0, return_counts=True)
    most_frequent = int(counts.argmax())
    return rows[most_frequent], constant_error(counts, most_frequent)


class PresentError(MultilabelExactMatch):
    """Percentage of images whose present classes are not exactly their labels.

    A class is present if its score is above ``PRESENT``; the number of labels is not used.
    """

    higher_is_better = False

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(num_classes, validate_args=False, **kwargs)

    @checks_shapes
    def update(
        self, scores: Float[Tensor, "batch {self.num_labels}"], labels: Int64[Tensor, "batch label"]
    ) -> None:
        _check_classes(self, labels, scores)
        super().update(*_rows(scores, labels))

    def compute(self) -> Tensor:
        return 100 * (1 - super().compute())


class PresentF1(MultilabelF1Score):
    """F1 score of the present classes, see ``PresentError``, over all images and classes together, in [0, 1]."""

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(num_classes, average="micro", validate_args=False, **kwargs)

    @checks_shapes
    def update(
        self, scores: Float[Tensor, "batch {self.num_labels}"], labels: Int64[Tensor, "batch label"]
    ) -> None:
        _check_classes(self, labels, scores)
        super().update(*_rows(scores, labels))


def _check_classes(metric: Metric, labels: Tensor, scores: Tensor) -> None:
    last = scores.shape[1] - 1
    check_range(type(metric).__name__, "labels", labels, 0, last, f"classes, 0 to {last}")


def _rows(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return present classes and labels as 0 and 1; torchmetrics would treat scores that round above 1 as logits."""
    present = (scores > PRESENT).to(torch.int64)
    return present, torch.zeros_like(present).scatter(1, labels, 1)


def coupling_entropy_of(trace: RoutingTrace) -> Tensor:
    """Return the ``CouplingEntropy`` of one iteration over all processes.

    A prior that is added after the softmax can make couplings negative; those count as 0.
    """
    entropy = CouplingEntropy().to(trace.couplings.device)
    entropy.update(trace.couplings.clamp_min(0))
    return entropy.compute()


class CouplingEntropy(Metric):
    """Evenness of the couplings over parents: 1 if they are uniform, 0 if each child goes to one parent.

    It is the entropy of a child's couplings divided by the logarithm of the number of parents, averaged over
    children and images. Couplings of a leaky routing are renormalised.
    """

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    @checks_shapes
    def update(self, couplings: Float[Tensor, "batch child parent"]) -> None:
        expected = "shares of each child, 0 or more, not logits"
        check_range("CouplingEntropy", "couplings", couplings, 0, math.inf, expected)
        couplings = couplings.to(torch.promote_types(couplings.dtype, torch.float32))
        mass = couplings.sum(2, keepdim=True).clamp_min(torch.finfo(couplings.dtype).tiny)
        parents = max(couplings.shape[2], 2)  # the entropy of one parent is 0
        entropy = torch.special.entr(couplings / mass).sum(2) / math.log(parents)
        self.total += entropy.sum()
        self.count += entropy.numel()

    def compute(self) -> Tensor:
        return self.total / self.count


class DeadCapsuleRate(Metric):
    """Percentage of capsules whose activation stays below ``threshold`` for all images."""

    full_state_update = False
    higher_is_better = False
    largest: Tensor

    def __init__(
        self,
        threshold: float = 0.01,  # ours: a tenth of the margin loss's m-
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.threshold = threshold
        self.add_state("largest", torch.tensor(0.0), dist_reduce_fx="max")

    @checks_shapes
    def update(self, activations: Float[Tensor, "batch capsule"]) -> None:
        if self.largest.ndim and self.largest.shape != activations.shape[1:]:
            raise ValueError(
                f"DeadCapsuleRate received activations of {activations.shape[1]} capsules after batches of "
                f"{len(self.largest)}; expected one layer: use a metric for each"
            )
        self.largest = torch.maximum(self.largest, activations.amax(0))

    def compute(self) -> Tensor:
        return 100 * (self.largest < self.threshold).float().mean()


class ActivationStatistics(Metric):
    """Mean and standard deviation of activations over images and capsules."""

    full_state_update = False
    total: Tensor
    squares: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for state in ("total", "squares", "count"):
            self.add_state(state, torch.tensor(0.0, dtype=WIDEST), dist_reduce_fx="sum")

    @checks_shapes
    def update(self, activations: Float[Tensor, "batch capsule"]) -> None:
        values = activations.to(WIDEST)  # the variance is a difference of squares
        self.total += values.sum()
        self.squares += values.square().sum()
        self.count += values.numel()

    def compute(self) -> tuple[Tensor, Tensor]:
        mean = self.total / self.count
        return mean, (self.squares / self.count - mean.square()).clamp_min(0).sqrt()
