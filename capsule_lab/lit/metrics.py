"""Metrics of the training loop: means of the loss terms and prediction errors, for each split."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric

from capsule_lab.lit import lightning_internals
from capsule_lab.metrics import (
    AUROC,
    AnswerError,
    AnySetError,
    BalancedAnswerError,
    BalancedError,
    ErrorRate,
    ExactMatchError,
    LabelError,
    PresentError,
    PresentF1,
)

SPLITS = ("train", "val", "test")


class SplitMetrics(nn.ModuleDict):
    """Metrics by the names under which they are logged, ``<split>/<quantity>``.

    ``train``, ``val`` and ``test`` have ``error``, in percent, and ``val`` and ``test`` also ``balanced_error`` and
    ``auroc``. If images have several labels, all have ``label_error``, and ``val`` and ``test`` have ``present_error``
    and ``present_f1`` instead of those. With any number of labels (0 per image), all have ``error`` and ``label_error``
    of classes that score above 0.5, and ``val`` and ``test`` ``balanced_error`` and ``auroc`` of these. With 0 classes
    (a network that does not classify) there is none of these. The first batch adds the means of the loss terms.
    """

    def __init__(self, num_classes: int = 0, labels_per_image: int = 1) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.labels_per_image = labels_per_image
        if num_classes == 0:
            return
        for split in SPLITS:
            self.add_error(split)
        if labels_per_image != 1:
            for split in SPLITS:
                self[f"{split}/label_error"] = LabelError() if labels_per_image else AnswerError()
        if labels_per_image > 1:
            for split in ("val", "test"):
                self[f"{split}/present_error"] = PresentError(num_classes)
                self[f"{split}/present_f1"] = PresentF1(num_classes)
            return
        for split in ("val", "test"):
            balanced = BalancedError if labels_per_image else BalancedAnswerError
            self[f"{split}/balanced_error"] = balanced(num_classes)
            self[f"{split}/auroc"] = AUROC()

    def add_error(self, split: str, device: torch.device | None = None) -> None:
        """Add an empty ``<split>/error`` for another split, such as a part of the test set."""
        if self.labels_per_image == 1:
            error: Metric = ErrorRate(self.num_classes)
        else:
            error = ExactMatchError() if self.labels_per_image else AnySetError()
        self[f"{split}/error"] = error if device is None else error.to(device)

    def update_errors(self, split: str, scores: Tensor, labels: Tensor) -> None:
        """Count the predictions of one batch."""
        for quantity in ("error", "label_error", "balanced_error"):
            name = f"{split}/{quantity}"
            if name in self:
                self._metric(name).update(scores.detach(), labels)

    def counts_present(self, split: str) -> bool:
        """Whether classes above a threshold are counted: if images have several labels, except in training."""
        return f"{split}/present_error" in self

    def update_present(self, split: str, scores: Tensor, labels: Tensor) -> None:
        """Count the classes above a threshold, from scores in [0, 1] and labels ``(batch, label)``."""
        for name in (f"{split}/present_error", f"{split}/present_f1"):
            self._metric(name).update(scores.detach(), labels)

    def update_ranks(self, split: str, scores: Tensor, labels: Tensor) -> None:
        """Collect scores that rank the images of one batch by class, where ``auroc`` is measured."""
        name = f"{split}/auroc"
        if name in self:
            self._metric(name).update(scores.detach(), labels)

    def update_means(self, split: str, terms: dict[str, Tensor], images: int) -> None:
        """Add the scalar terms of one batch, weighted by its number of images."""
        for name, value in terms.items():
            mean = self._mean(f"{split}/{name}", value.device)
            # repeated, as torchmetrics ignores weight= with nan_strategy="disable"
            mean.update(value.detach().expand(images))

    def sums(self, split: str) -> Tensor:
        """Return this process's sums since the last reset: loss times images, images, wrong and all predictions.

        For a network that does not classify, it returns the first two.
        """
        loss: Any = self[f"{split}/loss"]
        sums = [loss.mean_value, loss.weight]
        if f"{split}/error" in self:
            error: Any = self[f"{split}/error"]
            sums += error.counts()
        return torch.stack([value.float() for value in sums])

    def of_split(self, split: str) -> list[tuple[str, Metric]]:
        """Return the names and metrics of ``split``."""
        return [(name, self._metric(name)) for name in self if name.startswith(f"{split}/")]

    def reset(self, split: str) -> None:
        """Reset the metrics of ``split`` in their memory, which CUDA graphs update."""
        with self.in_place(split):
            for _, metric in self.of_split(split):
                metric.reset()

    @contextmanager
    def in_place(self, split: str) -> Iterator[None]:
        """Keep the states of the metrics of ``split`` in their memory; torchmetrics binds some to new tensors.

        After an error, the states are the tensors from before: in a CUDA graph, new ones have not been computed.
        """
        before = {name: metric.metric_state for name, metric in self.of_split(split)}
        try:
            yield
        except BaseException:
            for name, states in before.items():
                for state, tensor in states.items():
                    setattr(self[name], state, tensor)
            raise
        for name, states in before.items():
            for state, tensor in states.items():
                new = getattr(self[name], state)
                if new is not tensor:
                    assert isinstance(tensor, Tensor)
                    setattr(self[name], state, tensor.copy_(new))

    def mark_updated(self, split: str) -> None:
        """Mark the metrics of ``split`` as updated: a replay changes their states without a call of ``update``."""
        for _, metric in self.of_split(split):
            lightning_internals.mark_updated(metric)

    def state_of(self, split: str) -> dict[str, dict[str, Any]]:
        """Return the state of each metric, for a checkpoint in the middle of an epoch."""
        return {name: dict(metric.metric_state) for name, metric in self.of_split(split)}

    def load_state(self, states: dict[str, dict[str, Any]], device: torch.device) -> None:
        """Restore the states from ``state_of``, which are not part of a ``state_dict``."""
        for name, state in states.items():
            metric = self._metric(name) if name in self else self._mean(name, device)
            for quantity, value in state.items():
                setattr(metric, quantity, value)
            lightning_internals.mark_updated(metric)

    def _metric(self, name: str) -> Metric:
        return cast(Metric, self[name])

    def _mean(self, name: str, device: torch.device) -> Metric:
        if name not in self:
            # NaN stays: NonFiniteGuard stops at it
            self[name] = MeanMetric(nan_strategy="disable").to(device)
        return self._metric(name)
