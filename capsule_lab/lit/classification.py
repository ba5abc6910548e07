"""The training loop of classifiers: the inputs of the loss, and the errors."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from capsule_lab.errors import ConfigError
from capsule_lab.functional import combine_crops
from capsule_lab.lit.base import AbstractModule
from capsule_lab.lit.metrics import SplitMetrics
from capsule_lab.losses import sigmoid_cross_entropy_loss
from capsule_lab.metrics import HAS_LABEL, BalancedAnswerError, constant_error, constant_labels
from capsule_lab.networks import AbstractCapsuleNetwork, AbstractNetwork
from capsule_lab.types import Batch, CapsuleOutput

Loss = Callable[..., Tensor]


class BatchOfTest(NamedTuple):
    """What is kept of a batch for the predictions of a test."""

    labels: Tensor
    factors: Any  # None for data without factors
    ranking: Tensor
    part: int  # of the test set


class AbstractClassifierModule(AbstractModule):
    """Trains a classifier; a subclass defines only the terms of the loss.

    In addition to the quantities of ``AbstractModule``, it logs ``<split>/error`` in percent and, in validation and
    test, ``balanced_error`` and ``auroc``, which ranks images by the softmax of their scores. If images have several
    labels, ``error`` counts an image as right if all its labels are, ``<split>/label_error`` counts single labels, and,
    in validation and test, ``present_error`` and ``present_f1`` count the classes that score above 0.9 as present,
    instead of the other two. If images have any number of labels, an image has the classes that score above 0.5:
    ``error`` counts an image as right if these are all its labels and no others, ``<split>/label_error`` counts the
    answers for single classes, and ``balanced_error`` and ``auroc`` are averages over the classes.

    A batch may contain several crops per image, ``(batch, crop, channel, height, width)``: the loss is then the mean
    over the crops, and ``combine_crops`` gives the prediction.

    Args:
        loss: the classification loss, ``(scores, labels) -> scalar``; receives logits if it ``expects`` them. A
            schedule with the name of one of its arguments, such as ``margin``, sets this argument during ``fit``
            (training and validation) in place of the configured value.
        num_classes, labels_per_image: number of classes, and of labels per image; 0 for any number.
        class_weights: weights of the classes in the classification loss of training steps, of which only the ratios
            count, or ``"balanced"``, see ``weights_of_classes``; ``None`` for none. Those of validation and test are
            not weighted, so that runs can be compared. A mixture of images has the mean of the weights in its shares.
        **options: see ``AbstractModule``.
    """

    network: AbstractNetwork

    def __init__(
        self,
        network: AbstractNetwork,
        *,
        loss: Loss,
        num_classes: int,
        labels_per_image: int = 1,
        class_weights: Sequence[float] | Literal["balanced"] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(network, metrics=SplitMetrics(num_classes, labels_per_image), **options)
        _check_range(network, loss)
        if class_weights is not None:
            _check_class_weights(class_weights, num_classes)
            _check_takes_weights(loss, labels_per_image)
        self.loss = loss
        self.class_weights = class_weights
        self.weight_of_class: Tensor | None = None  # (class,), of a fit
        self._tested: list[BatchOfTest] = []
        arguments = inspect.signature(_function(loss)).parameters
        self.scheduled_arguments = self.schedule.keys() & arguments

    def classification_term(
        self, batch: Batch, output: CapsuleOutput, schedule: Mapping[str, float]
    ) -> dict[str, Tensor]:
        """Return the classification loss under its name: ``margin_loss`` gives ``margin``."""
        name = _function(self.loss).__name__.removesuffix("_loss")
        loss = self.scheduled_loss(schedule)
        if self.training and self.weight_of_class is not None:
            loss = functools.partial(loss, weights=self._weights_of(batch.labels))
        labels = batch.labels
        if labels.dtype == torch.bool:  # losses take rows of 0 and 1 as shares
            labels = labels.float()
        return {name: loss(self._scores_for_loss(output), labels)}

    def _weights_of(self, labels: Tensor) -> Tensor:
        assert self.weight_of_class is not None
        if labels.is_floating_point():  # no matrix product, which autocast would round
            return (labels * self.weight_of_class).sum(1)
        return self.weight_of_class[labels]

    def on_fit_start(self) -> None:
        super().on_fit_start()
        if self.class_weights is None:
            return
        given = None if self.class_weights == "balanced" else self.class_weights
        weights = weights_of_classes(self._data.class_counts(), given)
        if weights.ne(1).any():  # the weighted loss of equal weights differs in the last bits
            self.weight_of_class = weights.to(self.device)

    def on_fit_end(self) -> None:
        super().on_fit_end()
        self.weight_of_class = None

    def scheduled_loss(self, schedule: Mapping[str, float]) -> Loss:
        """Return the classification loss with the arguments that ``schedule`` sets."""
        scheduled = {name: schedule[name] for name in self.scheduled_arguments if name in schedule}
        return functools.partial(self.loss, **scheduled)

    @property
    def loss_takes_logits(self) -> bool:
        """Whether the loss receives real numbers, instead of activations in [0, 1]."""
        return self._takes_logits_of_capsules or self.network.scores_are == "logits"

    @property
    def _takes_logits_of_capsules(self) -> bool:
        return getattr(_function(self.loss), "expects", None) == "logits"  # see losses.expects

    def _scores_for_loss(self, output: CapsuleOutput) -> Tensor:
        if not self._takes_logits_of_capsules:
            return output.scores
        if output.logits is None:
            raise ConfigError(
                f"{_function(self.loss).__name__} expects logits, but {type(self.network).__name__} has none with this "
                "routing; expected loss=margin, or a routing whose Capsules have logits"
            )
        return output.logits

    def measure(self, split: str, batch: Batch, output: CapsuleOutput) -> None:
        if batch.classes.dtype == torch.bool:
            scores = self._in_unit_range(output.scores)
            self.metrics.update_errors(split, scores, batch.classes)
            self.metrics.update_ranks(split, output.ranking, batch.classes)
            return
        self.metrics.update_errors(split, output.ranking, batch.classes)
        # relative to the other classes: one image may have higher scores than another for all of them
        relative = output.ranking.log_softmax(1)
        self.metrics.update_ranks(split, relative, batch.classes)
        if self.metrics.counts_present(split):
            scores = self._in_unit_range(output.scores)
            self.metrics.update_present(split, scores, batch.classes)

    def _in_unit_range(self, scores: Tensor) -> Tensor:
        return scores.sigmoid() if self.network.scores_are == "logits" else scores

    def add_split(self, split: str) -> None:
        self.metrics.add_error(split, self.device)

    def on_test_start(self) -> None:
        super().on_test_start()
        self._tested = []

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Any]:
        outputs = super().test_step(batch, batch_idx, dataloader_idx)
        ranking = outputs["output"].ranking
        if batch.classes.dtype == torch.bool:
            ranking = self._in_unit_range(outputs["output"].scores)
        self._tested.append(BatchOfTest(batch.classes, batch.factors, ranking, dataloader_idx))
        return outputs

    def test_predictions(self) -> dict[str, npt.NDArray[Any]]:
        """Return the attributes of ``runs.predictions.Predictions`` for the last test.

        The result is empty if several processes tested, because each of them sees only a part of the images.
        """
        if not self._tested or self.trainer.world_size > 1:
            return {}
        labels = torch.cat([tested.labels for tested in self._tested])
        ranking = torch.cat([tested.ranking for tested in self._tested]).float()
        if labels.dtype == torch.bool:
            found = {
                "label": labels,
                "prediction": ranking > HAS_LABEL,
                "margin": margins_of_answers(ranking, labels),
            }
        else:
            several = labels if labels.ndim > 1 else labels.unsqueeze(1)  # [image label]
            predictions = ranking.topk(several.shape[1]).indices
            found = {
                "label": several.sort(1).values.reshape(labels.shape),
                "prediction": predictions.sort(1).values.reshape(labels.shape),
                "margin": margins(ranking, several),
            }
        data = cast(Any, self.trainer).datamodule  # an attribute that test sets
        spec = data.spec
        clusters = getattr(data, "test_clusters", None)  # of our data sets
        if clusters is not None:
            found["cluster"] = torch.from_numpy(clusters)
        if "instance" in spec.factors:
            factors = torch.cat([tested.factors for tested in self._tested])
            instance = factors[:, spec.factors.index("instance")]
            found["cluster"] = labels * (int(instance.max()) + 1) + instance
        if self.test_parts:
            parts = torch.tensor([tested.part for tested in self._tested])
            sizes = torch.tensor([len(tested.labels) for tested in self._tested])
            found["part"] = parts.repeat_interleave(sizes)
        return {name: _as_array(values) for name, values in found.items()}

    def class_results(self, split: str, train_counts: Sequence[int] | None) -> dict[str, Any]:
        """Return the attributes of ``runs.results.ClassResults`` for the last validation or test.

        The result is empty if images have a fixed number of several labels. ``train_counts``: number of training images
        of each class.
        """
        name = f"{split}/balanced_error"
        if name not in self.metrics:
            return {}
        metric = cast(Any, self.metrics[name])
        names = self._data.spec.class_names
        counts = metric.images.tolist()
        recalls = zip(names, metric.recalls.tolist(), counts, strict=True)
        found: dict[str, Any] = {
            "images": dict(zip(names, counts, strict=True)),
            "recall": {name: recall for name, recall, count in recalls if count},
        }
        if isinstance(metric, BalancedAnswerError):
            found |= self._constant_labels(names) if split == "test" else {}
        elif train_counts:
            most_frequent = max(range(len(train_counts)), key=train_counts.__getitem__)
            found["constant_error"] = constant_error(metric.images, most_frequent)
        return found

    def _constant_labels(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the best answer that is the same for every tested image, and its error; nothing as in
        ``test_predictions``.
        """
        if not self._tested or self.trainer.world_size > 1:
            return {}
        labels, error = constant_labels(torch.cat([tested.labels for tested in self._tested]))
        return {
            "constant_labels": [names[label] for label in labels.nonzero()[:, 0].tolist()],
            "constant_error": error,
        }

    def terms(self, batch: Batch) -> tuple[dict[str, Tensor], CapsuleOutput]:
        if batch.images.ndim < 5:
            return super().terms(batch)
        if batch.classes.dtype == torch.bool:
            raise ConfigError(
                "test images have several crops and any number of labels; expected one or the other, because "
                "scores of crops are summed, and a sum says nothing about a single label"
            )
        losses: dict[str, list[Tensor]] = {}
        scores: list[Tensor] = []
        # one crop of all images at a time: this takes no more memory than a single crop
        for crop in batch.images.unbind(1):
            terms, output = super().terms(batch._replace(images=crop))
            scores.append(output.scores)
            for name, value in terms.items():
                losses.setdefault(name, []).append(value)
        means = {name: torch.stack(values).mean() for name, values in losses.items()}
        logits = self.network.scores_are == "logits"
        combined = combine_crops(torch.stack(scores, 1), logits=logits)  # from [b crop k]
        return means, CapsuleOutput(combined)


class ClassifierModule(AbstractClassifierModule):
    """Classification alone (baselines of Sabour 2017, section 5; Hinton 2018, section 4)."""

    def loss_terms(
        self, batch: Batch, output: CapsuleOutput, schedule: Mapping[str, float]
    ) -> dict[str, Tensor]:
        return self.classification_term(batch, output, schedule)


def _check_range(network: AbstractNetwork, loss: Loss) -> None:
    """Check that activations or logits of the class capsules have the range that the loss expects."""
    function = _function(loss)
    if not isinstance(network, AbstractCapsuleNetwork):
        return
    *_, classes = network.capsule_layers().values()
    routing = getattr(classes, "routing", None)
    if routing is None:
        return
    if getattr(function, "expects", None) == "activations" and not routing.bounded:
        raise ValueError(
            f"{function.__name__} expects activations in [0, 1], but with "
            f"routing.squash={routing.options.get('squash', 'none')} lengths have no bound; expected "
            "loss=cross_entropy_logits for one label per image, or routing.squash=squash"
        )
    if function is sigmoid_cross_entropy_loss and not routing.sigmoid_logits:
        raise ValueError(
            "sigmoid_cross_entropy_loss expects logits of each class, but those of "
            f"{type(routing).__name__} are lengths or logarithms of activations, which have one sign; expected "
            f"{'loss=margin' if routing.bounded else 'routing.squash=squash'}, or for one label per image "
            "loss=cross_entropy_logits"
        )


def weights_of_classes(
    counts: Int64[Tensor, " class"], weights: Sequence[float] | None = None
) -> Float[Tensor, " class"]:
    """Return weights of the classes whose mean over all images is 1, so that learning rates stay comparable.

    ``w_k = v_k n / sum_l n_l v_l``, with ``n_k`` images of class ``k`` and ``n`` in all.

    Args:
        counts: number of images of each class, ``n_k``.
        weights: positive numbers ``v_k``, of which only the ratios count; by default ``v_k = 1 / n_k``, so that all
            classes have the same share of the loss (``class_weight="balanced"`` of scikit-learn).

    >>> weights_of_classes(torch.tensor([90, 10]))
    tensor([0.5556, 5.0000])
    >>> weights_of_classes(torch.tensor([90, 10]), [1, 9])
    tensor([0.5556, 5.0000])
    """
    exact = counts.double()
    given = 1 / exact.clamp_min(1)  # 1: a class without images has no effect
    if weights is not None:
        given = exact.new_tensor(weights)
    return (given * exact.sum() / (given * exact).sum()).float()


def _check_class_weights(weights: Sequence[float] | Literal["balanced"], num_classes: int) -> None:
    """Check that there is a positive number for each class, or ``"balanced"``."""
    if weights == "balanced":
        return
    are_numbers = all(type(weight) in (int, float) for weight in weights)
    is_valid = are_numbers and all(0 < float(weight) < math.inf for weight in weights)
    if not is_valid or len(weights) != num_classes:
        raise ValueError(
            f"class_weights is {weights}; expected balanced, or {num_classes} finite numbers above 0, one per class"
        )


def _check_takes_weights(loss: Loss, labels_per_image: int) -> None:
    """Check that the loss takes a weight for each image, and that an image has one class."""
    if labels_per_image != 1:
        several = labels_per_image or "any number"
        raise ValueError(
            f"class_weights needs one class for each image, but these have {several}; expected null"
        )
    if "weights" not in inspect.signature(_function(loss)).parameters:
        raise ValueError(
            f"{_function(loss).__name__} has no argument weights, one for each image, which class_weights needs; "
            "expected a loss of capsule_lab.losses, or null"
        )


def margins(
    ranking: Float[Tensor, "image class"], labels: Int64[Tensor, "image label"]
) -> Float[Tensor, " image"]:
    """Return the lowest number of an image's classes minus the highest of the others; negative if one is wrong."""
    ranking = ranking.float()
    is_label = torch.zeros_like(ranking, dtype=torch.bool).scatter(1, labels, True)
    lowest_label = ranking.masked_fill(~is_label, torch.inf).amin(1)
    highest_other = ranking.masked_fill(is_label, -torch.inf).amax(1)
    return lowest_label - highest_other


def margins_of_answers(
    scores: Float[Tensor, "image class"], labels: Bool[Tensor, "image class"]
) -> Float[Tensor, " image"]:
    """Return how far the score of the worst class is on the right side of ``HAS_LABEL``; negative if it is wrong."""
    above = scores.float() - HAS_LABEL
    return torch.where(labels, above, -above).amin(1)


def _as_array(values: Tensor) -> npt.NDArray[Any]:
    kind = "float32" if values.is_floating_point() else "int32"
    return values.cpu().numpy().astype(kind)


def _function(loss: Loss) -> Any:
    return getattr(loss, "func", loss)
