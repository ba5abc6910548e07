"""Monitoring of training: a guard against losses that are not finite, and statistics of the capsules."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torchmetrics import Metric

from capsule_lab.errors import CapsuleLabError
from capsule_lab.metrics import ActivationStatistics, CouplingEntropy, DeadCapsuleRate
from capsule_lab.networks import AbstractCapsuleNetwork
from capsule_lab.types import Batch, Capsules, RoutingTrace


class NonFiniteError(CapsuleLabError, ArithmeticError):
    """A term of the loss is not finite."""


class NonFiniteGuard(Callback):
    """Stops training when a term of the loss is not finite, naming the term and the step.

    Args:
        every_n_steps: how often to check; ``None`` is every step on a CPU and every 50 steps on an accelerator, where
            a check waits for the device. Every step before a checkpoint is checked before it is written.
    """

    def __init__(self, every_n_steps: int | None = None) -> None:
        self.every_n_steps = every_n_steps
        self.pending: list[tuple[int, dict[str, Tensor]]] = []

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        self.pending.append((trainer.global_step, {name: value.detach() for name, value in outputs.items()}))
        every = self.every_n_steps or (1 if pl_module.device.type == "cpu" else 50)  # ours: as often as Lightning logs
        if len(self.pending) >= every:
            self._check()

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        self._check()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check()

    def _check(self) -> None:
        pending, self.pending = self.pending, []
        if not pending or torch.stack([t for _, terms in pending for t in terms.values()]).isfinite().all():
            return
        step, terms = next((s, t) for s, t in pending if not torch.stack(list(t.values())).isfinite().all())
        names = [name for name, value in terms.items() if not value.isfinite()]
        name = next((name for name in names if name != "loss"), "loss")
        raise NonFiniteError(
            f"the {name} term of the loss is {terms[name].item()} at step {step}; try a smaller learning rate "
            "(schedule.learning_rate.…) or trainer.precision=32-true; the last checkpoint before it is untouched: if "
            "training fails at once from there, too, go back to the best with ckpt=…/checkpoints/best.ckpt"
        )


class RoutingStats(Callback):
    """Logs statistics of the capsules in validation, on the first of several sets.

    Of all images: ``val/dead_capsules``, percent of the class capsules that none activates. Of the first few:
    ``val/coupling_entropy`` of the last routing iteration of the class capsules, and for every layer of capsules
    ``val/activation_<layer>``, the mean, ``val/activation_std_<layer>``, and ``val/dead_<layer>``, percent of the
    layer's capsules that none of them activates.

    Args:
        images: how many the first few are.
    """

    def __init__(self, images: int = 64) -> None:  # ours: enough for a mean, few beside a validation set
        if images < 1:
            raise ValueError(f"RoutingStats.images is {images}; expected 1 or more")
        self.images = images
        self.dead = DeadCapsuleRate()
        self.statistics: dict[str, Tensor] = {}

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if dataloader_idx:
            return
        capsules = outputs["output"].capsules
        if capsules is not None:
            self.dead.to(pl_module.device).update(capsules.activations)
        if batch_idx == 0 and isinstance(pl_module.network, AbstractCapsuleNetwork):
            images = batch.images[: max(self.images // trainer.world_size, 1)]  # each process has a share
            self.statistics = layer_statistics(pl_module.network, images)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.dead.update_called:
            pl_module.log("val/dead_capsules", self.dead.compute())
            self.dead.reset()
        for name, value in self.statistics.items():
            pl_module.log(f"val/{name}", value)
        self.statistics = {}


def layer_statistics(network: AbstractCapsuleNetwork, images: Tensor) -> dict[str, Tensor]:
    """Coupling entropy of the class capsules; of every layer the mean, spread and dead share of its activations."""
    traces: list[RoutingTrace] = []
    layers: dict[str, Capsules] = {}
    names = {layer: name for name, layer in network.capsule_layers().items()}

    def keep(layer: nn.Module, _: Any, output: Capsules) -> None:
        layers[names[layer]] = output

    hooks = [layer.register_forward_hook(keep) for layer in names]
    try:
        network.forward(images, on_iteration=traces.append)  # not the compiled call, which runs no hooks
    finally:
        for hook in hooks:
            hook.remove()
    statistics = {"coupling_entropy": compute(CouplingEntropy(), traces[-1].couplings)}
    for name, capsules in layers.items():
        statistics[f"activation_{name}"], statistics[f"activation_std_{name}"] = compute(
            ActivationStatistics(), capsules.activations
        )
        statistics[f"dead_{name}"] = compute(DeadCapsuleRate(), capsules.activations)
    return statistics


def compute(metric: Metric, values: Tensor) -> Any:
    """The metric of ``values``, those of the other processes included."""
    metric.to(values.device).update(values)
    return metric.compute()
