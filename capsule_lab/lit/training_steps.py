"""The parts of a training step, which Lightning calls between its hooks, without CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor
from torch.optim import Optimizer

from capsule_lab.lit.lightning_internals import LightningModule
from capsule_lab.types import Batch

UseGraphs = bool | Literal["auto"]


class TrainingStep:
    """A training step that runs as it is: its parts are those of Lightning.

    Args:
        module: the ``AbstractModule`` that trains; its ``step_values`` are those of the schedules in this step.
    """

    def __init__(self, module: Any) -> None:
        self.module = module

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Compute and measure the terms of the loss; return them with their sum ``loss``."""
        terms, _ = self.module.measured_terms(batch, "train")
        return terms

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute the gradients of the parameters."""
        LightningModule.backward(self.module, loss, *args, **kwargs)

    def zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        """Set the gradients of the parameters to ``None``."""
        LightningModule.optimizer_zero_grad(self.module, epoch, batch_idx, optimizer)

    def clip(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        """Clip the gradients, if the Trainer has a limit."""
        if self.module.trainer.gradient_clip_val is not None:
            LightningModule.configure_gradient_clipping(self.module, optimizer, *args, **kwargs)

    def update(
        self, epoch: int, batch_idx: int, optimizer: Any, closure: Callable[[], Any]
    ) -> None:
        """Run Lightning's closure, which calls hooks and the other parts, then step the optimizer."""
        LightningModule.optimizer_step(self.module, epoch, batch_idx, optimizer, closure)


class TrainingSteps:
    """Chooses how each training step of a module runs: here, all of them as they are.

    Args:
        module: the ``AbstractModule`` that trains.

    Attributes:
        step: the step that runs now.
        enabled: whether steps may be replayed as CUDA graphs, in a ``fit``; see ``captured_step.StepGraphs``.
    """

    def __init__(self, module: Any) -> None:
        self.step = TrainingStep(module)
        self.enabled = False

    def check(self, trainer: L.Trainer) -> None:
        """Raise a ``ConfigError`` if steps cannot run as required with this Trainer."""

    def start(self, trainer: L.Trainer) -> None:
        """Begin a ``fit``."""

    def stop(self, device: torch.device) -> None:
        """End a ``fit`` on this device."""

    def prepare(self, batch: Batch) -> None:
        """Choose ``step`` for the next training batch, before its forward pass."""
