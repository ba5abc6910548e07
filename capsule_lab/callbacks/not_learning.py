"""A warning, while there is time, that a network learns nothing."""

from __future__ import annotations

import logging
import math
from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from capsule_lab.types import Batch

log = logging.getLogger(__name__)

_ROOM = 1024  # ours: steps; where it is too little, it doubles


class NotLearning(Callback):
    """Warns once, after an epoch in which the learning rate was 0, or the network has not learned to classify.

    It has not if the errors are those of always predicting the most frequent class, and the classification loss has not
    fallen. Nothing is read from the device before the epoch has ended, and no process waits for another. Losses are
    kept in one tensor: the memory of a process on a CPU grows by megabytes per step if each leaves a tensor of its own.

    Args:
        min_steps: of shorter epochs, several are looked at together.
    """

    def __init__(self, min_steps: int = 50) -> None:  # ours: of fewer losses the mean is not exact enough
        self.min_steps = min_steps
        self.warned = False
        self._reset()

    def _reset(self) -> None:
        self.highest_rate = 0.0
        self.steps = 0
        self.losses: Tensor | None = None  # of the steps so far, then room for more
        self.labels: Tensor | None = None  # how many of each class there were

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._reset()

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, _: int) -> None:
        self.highest_rate = max(self.highest_rate, _learning_rate(trainer))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, *_: Any
    ) -> None:
        if self.warned or not trainer.is_global_zero:
            return
        term = next((name for name in outputs if name != "loss"), "loss")  # a decoder may learn while classes do not
        loss, labels = outputs[term].detach(), batch.classes.flatten()
        if self.losses is None or self.labels is None:
            self.losses = loss.new_empty(_ROOM)
            self.labels = labels.new_zeros(cast(Any, trainer).datamodule.spec.num_classes)
        if self.steps == len(self.losses):
            self.losses = torch.cat([self.losses, torch.empty_like(self.losses)])
        self.losses[self.steps] = loss
        self.labels.index_add_(0, labels, torch.ones_like(labels))
        self.steps += 1

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check(trainer)  # of the epoch before, whose errors are logged only now

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check(trainer)

    def _check(self, trainer: L.Trainer) -> None:
        steps = self.steps
        if steps and self.highest_rate == 0:
            self._warn("not learning: the learning rate of the last %d steps was 0; see schedule.learning_rate", steps)
        elif steps and steps >= self.min_steps:
            self._check_error(trainer)
            self._reset()

    def _check_error(self, trainer: L.Trainer) -> None:
        metrics, data = trainer.callback_metrics, cast(Any, trainer).datamodule
        errors = [float(metrics[name]) for name in ("train/error", "val/error") if name in metrics]
        assert self.losses is not None and self.labels is not None  # noqa: PT018
        several = 1 if getattr(data, "same_class", "never") == "only" else data.spec.labels_per_image
        chance = error_at_chance(self.labels, several)
        losses, quarter = self.losses[: self.steps].double().cpu(), self.steps // 4
        first, last = losses[:quarter], losses[-quarter:]
        if errors and min(errors) >= 0.97 * chance > 0 and not has_fallen(first, last):  # ours: 3 % for what is chance
            self._warn(
                "not learning: after step %d the error is %.1f %% (always predicting the most frequent class: "
                "%.1f %%), and the classification loss has not fallen (%.4g, now %.4g); likely causes: a learning rate "
                "that is too high or too low (schedule.learning_rate, now %.2g), the margins of the loss, labels that "
                "do not belong to their images",
                *(trainer.global_step, min(errors), chance, first.mean(), last.mean(), _learning_rate(trainer)),
            )

    def _warn(self, message: str, *facts: Any) -> None:
        log.warning(message, *facts)
        self.warned = True
        self._reset()


def error_at_chance(labels: Tensor, labels_per_image: int = 1) -> float:
    """Error in percent of always predicting the most frequent class; of several labels, of guessing a set of them.

    Args:
        labels: how many of each class there are.
        labels_per_image: of the data.
    """
    if labels_per_image > 1:
        return 100 * (1 - 1 / math.comb(len(labels), labels_per_image))
    return 100 * (1 - labels.max().item() / labels.sum().item())


def has_fallen(first: Tensor, last: Tensor) -> bool:
    """Whether the mean of ``last`` is lower than that of ``first`` by more than chance."""
    standard_error = (first.var() / len(first) + last.var() / len(last)).sqrt()
    return bool(first.mean() - last.mean() > 2 * standard_error)  # ours: 2 of 100 times by chance alone


def _learning_rate(trainer: L.Trainer) -> float:
    return max(float(group["lr"]) for optimizer in trainer.optimizers for group in optimizer.param_groups)
