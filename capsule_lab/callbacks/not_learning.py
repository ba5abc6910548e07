"""An early warning that a network does not learn."""

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


class NotLearning(Callback):
    """Warns once, after an epoch in which the learning rate was 0, or the network has not learned to classify.

    The second warning requires errors as high as those of always predicting the most frequent class, and a
    classification loss that has not fallen. Epochs with fewer than ``min_steps`` steps are checked together. Nothing is
    read from the device before the end of the epoch. One tensor stores all losses: with one tensor per loss, the memory
    of a process on a CPU would grow by megabytes per step.
    """

    def __init__(self, min_steps: int = 50) -> None:  # ours: with fewer losses the mean is not exact enough
        self.min_steps = min_steps
        self.warned = False
        self._reset()

    def _reset(self) -> None:
        self.highest_rate = 0.0
        self.steps = 0
        self.losses: Tensor | None = None  # losses so far, in a buffer that doubles when full
        self.labels: Tensor | None = None  # number of labels per class

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, _: int) -> None:
        self.highest_rate = max(self.highest_rate, _learning_rate(trainer))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, *_: Any
    ) -> None:
        if self.warned or not trainer.is_global_zero:
            return
        term = next((name for name in outputs if name != "loss"), "loss")  # a decoder may learn on its own
        loss, labels = outputs[term].detach(), batch.classes.flatten()
        if self.losses is None or self.labels is None:
            self.losses = loss.new_empty(1024)
            self.labels = labels.new_zeros(cast(Any, trainer).datamodule.spec.num_classes)
        if self.steps == len(self.losses):
            self.losses = torch.cat([self.losses, torch.empty_like(self.losses)])
        self.losses[self.steps] = loss
        self.labels.index_add_(0, labels, torch.ones_like(labels))
        self.steps += 1

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check(trainer)  # the previous epoch, whose errors are logged only now

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check(trainer)

    def _check(self, trainer: L.Trainer) -> None:
        steps = self.steps
        if steps and self.highest_rate == 0:
            self._warn("not learning: the learning rate of the last %d steps was 0; see schedule.learning_rate", steps)
        elif steps >= max(self.min_steps, 1):
            self._check_error(trainer)
            self._reset()

    def _check_error(self, trainer: L.Trainer) -> None:
        metrics, data = trainer.callback_metrics, cast(Any, trainer).datamodule
        errors = [float(metrics[name]) for name in ("train/error", "val/error") if name in metrics]
        assert self.losses is not None and self.labels is not None  # noqa: PT018
        several = 1 if getattr(data, "same_class", "never") == "only" else data.spec.labels_per_image
        if several > 1:  # guessing a set of labels
            chance = 100 * (1 - 1 / math.comb(len(self.labels), several))
        else:
            chance = 100 * (1 - self.labels.max().item() / self.labels.sum().item())
        losses, quarter = self.losses[: self.steps].double().cpu(), self.steps // 4
        first, last = losses[:quarter], losses[-quarter:]
        standard_error = (first.var() / len(first) + last.var() / len(last)).sqrt()
        has_fallen = first.mean() - last.mean() > 2 * standard_error  # ours: by chance in 2 of 100 cases
        if errors and min(errors) >= 0.97 * chance > 0 and not has_fallen:  # ours: 3 % for chance
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


def _learning_rate(trainer: L.Trainer) -> float:
    return max(float(group["lr"]) for optimizer in trainer.optimizers for group in optimizer.param_groups)
