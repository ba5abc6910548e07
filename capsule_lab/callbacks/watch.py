"""Watching the training: a guard against losses that are no numbers, and what the routing does."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from capsule_lab.metrics import CouplingEntropy, DeadCapsuleRate
from capsule_lab.networks import CapsNet
from capsule_lab.types import Batch, RoutingTrace


class NonFiniteError(ArithmeticError):
    """A term of the loss is not a number."""


class NonFiniteGuard(Callback):
    """Stops training when a term of the loss is not finite, naming the term and the step.

    Args:
        every_n_steps: how often to look; ``None`` looks at every step on a CPU and every 50 steps on an
            accelerator, where looking waits for it. Nothing is saved in between unseen.
    """

    def __init__(self, every_n_steps: int | None = None) -> None:
        self.every_n_steps = every_n_steps
        self.pending: list[tuple[int, dict[str, Tensor]]] = []

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        self.pending.append((trainer.global_step, {name: value.detach() for name, value in outputs.items()}))
        every = self.every_n_steps or (1 if pl_module.device.type == "cpu" else 50)  # ours: as rarely as logging
        if len(self.pending) >= every:
            self._look()

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        self._look()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._look()

    def _look(self) -> None:
        pending, self.pending = self.pending, []
        if not pending or torch.stack([t for _, terms in pending for t in terms.values()]).isfinite().all():
            return
        step, terms = next((s, t) for s, t in pending if not torch.stack(list(t.values())).isfinite().all())
        names = [name for name, value in terms.items() if not value.isfinite()]
        name = next((name for name in names if name != "loss"), "loss")
        raise NonFiniteError(
            f"the {name} term of the loss is {terms[name].item()} at step {step}; try a smaller learning rate "
            "(schedule.learning_rate.…) or trainer.precision=32-true; the last checkpoint before it is untouched"
        )


class RoutingStats(Callback):
    """Logs how decided the routing is and how many class capsules no validation image activates."""

    def __init__(self) -> None:
        self.entropy = CouplingEntropy()
        self.dead = DeadCapsuleRate()

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int, *_: Any
    ) -> None:
        capsules = outputs["output"].capsules
        if capsules is None:
            return
        self.dead.to(pl_module.device).update(capsules.activations)
        if batch_idx == 0 and isinstance(pl_module.network, CapsNet):
            traces: list[RoutingTrace] = []
            pl_module.network(batch.images[:16], on_iteration=traces.append)  # ours: enough for an average
            self.entropy.to(pl_module.device).update(traces[-1].couplings)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for name, metric in (("coupling_entropy", self.entropy), ("dead_capsules", self.dead)):
            if metric.update_called:
                pl_module.log(f"val/{name}", metric.compute())
                metric.reset()
