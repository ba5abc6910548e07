"""An average of the weights over training; validation, tests and checkpoints use it instead of the last weights."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import lightning as L
import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from capsule_lab.errors import check_number
from capsule_lab.lit import AbstractModule
from capsule_lab.schedules import Duration, duration_in_steps
from capsule_lab.system import torch_internals

if TYPE_CHECKING:
    from capsule_lab.system.cuda_graphs import Replayed


class AveragedWeights(WeightAveraging):
    """Averages weights after every step, exponentially (Polyak and Juditsky 1992) or equally (Izmailov et al. 2018).

    Validation and the ``state_dict`` of checkpoints use the average, and therefore tests and ``runs.open``, too;
    checkpoints also contain the training weights, so that a run resumes exactly. Statistics of batch normalisation are
    averaged like weights, so that no additional pass over the training images is needed. Averages of frozen modules
    (``train.freeze``) equal them up to rounding. The callback has no effect until the average begins. All processes of
    a run have the same weights, and each computes its own average.

    It differs from Lightning's class in three cases. Before its average begins, Lightning's class validates and saves
    the initial weights; it replaces the weights before the last checkpoint of training; and in a test after ``fit``, it
    loads the training weights.

    Args:
        decay: share of the old average in every update; early updates use ``(1 + n) / (10 + n)`` after n steps, as in
            TensorFlow, because the initial weights would dominate a short run. ``None`` gives the mean of all weights
            since ``start``.
        start: when the average begins, such as ``"3/4 run"``; ``None`` means the first step.
    """

    def __init__(
        self,
        decay: float | None = 0.999,  # torch's default
        start: Duration | None = None,
    ) -> None:
        check_number("decay", 0 if decay is None else decay, 0, below=1)
        if start is not None:
            duration_in_steps(start, steps_per_epoch=1, total_steps=1)
        average = _equal if decay is None else functools.partial(_exponential, decay)
        super().__init__(multi_avg_fn=average)
        self.start = start
        self.first_step = 0.0
        self.has_average = False
        self._update: Replayed | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        module = cast(AbstractModule, pl_module)
        if self.start is not None:
            lengths = {"steps_per_epoch": module.steps_per_epoch, "total_steps": module.total_steps}
            self.first_step = duration_in_steps(self.start, **lengths)

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return step_idx is not None and step_idx >= self.first_step

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *step: Any
    ) -> None:
        if self.has_average and cast(AbstractModule, pl_module).step_graphs.enabled:
            self._replay(trainer, pl_module)
            return
        super().on_train_batch_end(trainer, pl_module, *step)
        self.has_average = self.has_average or self.should_update(trainer.global_step - 1)

    def _replay(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Update the average with a CUDA graph, if this batch ended a step."""
        if trainer.global_step <= self._latest_update_step:
            return
        if self._update is None:
            # optional: the average works without this file
            from capsule_lab.system.cuda_graphs import Replayed

            assert self._average_model is not None
            update = functools.partial(
                _update, self._average_model, pl_module, self._kwargs["multi_avg_fn"]
            )
            self._update = Replayed("the average of the weights", update)
        self._update(())
        self._latest_update_step = trainer.global_step

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.has_average:
            super().on_validation_epoch_start(trainer, pl_module)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.has_average:
            super().on_validation_epoch_end(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Do nothing: the last checkpoint, which contains both weights, is written later."""

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.has_average:
            super().on_train_end(trainer, pl_module)
        self.has_average = False
        self._update = None

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self.has_average:
            super().on_save_checkpoint(trainer, pl_module, checkpoint)

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restore the average in ``fit``, if the checkpoint has one; a test uses the weights in ``state_dict``."""
        if trainer.state.fn == "fit" and "averaging_state" in checkpoint:
            super().on_load_checkpoint(trainer, pl_module, checkpoint)
            self.has_average = True


def _update(
    average: AveragedModel, module: nn.Module, function: Callable[..., None], _: tuple[()]
) -> tuple[()]:
    """Do what ``AveragedModel.update_parameters`` does after its first call, which reads a number of the device."""
    averages = [*average.module.parameters(), *average.module.buffers()]
    weights = [*module.parameters(), *module.buffers()]
    with torch.no_grad():
        for dtype in dict.fromkeys(weight.dtype for weight in weights):
            of_average = [tensor.detach() for tensor in averages if tensor.dtype == dtype]
            of_module = [tensor.detach() for tensor in weights if tensor.dtype == dtype]
            function(of_average, of_module, average.n_averaged)
        average.n_averaged += 1
    return ()


def _equal(averages: list[Tensor], weights: list[Tensor], steps: Tensor) -> None:
    """Update averages as ``torch.optim.swa_utils.get_swa_avg_fn`` does; its function for lists rounds differently."""
    for average, weight in zip(averages, weights, strict=True):
        average.copy_(average + (weight - average) / (steps + 1))


def _exponential(
    decay: float, averages: list[Tensor], weights: list[Tensor], steps: Tensor
) -> None:
    """Update all averages of one type at once, which takes an eighth of the time of one after another."""
    stays = ((1 + steps) / (10 + steps)).clamp(max=decay)  # on tensors: does not wait for a GPU
    if averages[0].is_floating_point():
        torch_internals.average_lists_(averages, weights, stays)
    else:  # counters of batch normalisation
        for average, weight in zip(averages, weights, strict=True):
            average.copy_(weight)
