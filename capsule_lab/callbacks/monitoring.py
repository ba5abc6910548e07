"""Monitoring of training: a check for non-finite losses, metrics of single steps, and statistics of the capsules."""

from __future__ import annotations

import logging
import math
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.optim import Optimizer
from torchmetrics import Metric

from capsule_lab.callbacks.figures import logged_step
from capsule_lab.callbacks.host_copy import HostCopies
from capsule_lab.errors import CapsuleLabError, check_number
from capsule_lab.lit import AbstractModule
from capsule_lab.metrics import ActivationStatistics, DeadCapsuleRate, coupling_entropy_of
from capsule_lab.networks import AbstractCapsuleNetwork
from capsule_lab.types import Batch, Capsules, RoutingTrace

log = logging.getLogger(__name__)


class NonFiniteError(CapsuleLabError, ArithmeticError):
    """Raised if a term of the loss is not finite."""


class NonFiniteGuard(Callback):
    """Stops training when a term of the loss is not finite; the error names the term and the step.

    Terms are copied to the host asynchronously and checked on arrival, so that nothing waits for an accelerator; a run
    therefore continues for some steps after the failed one. All steps are checked before a checkpoint is written.
    Terms are copied ``every_n_steps``; ``None`` means every step on a CPU and every 50 steps elsewhere.
    """

    def __init__(self, every_n_steps: int | None = None) -> None:
        check_number("every_n_steps", 1 if every_n_steps is None else every_n_steps, 1)
        self.every_n_steps = every_n_steps
        self.pending: list[tuple[int, dict[str, Tensor]]] = []
        self.copies = HostCopies()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *_: Any
    ) -> None:
        terms = {name: value.detach() for name, value in outputs.items()}
        self.pending.append((trainer.global_step, terms))
        every = self.every_n_steps
        if every is None:
            every = 1 if pl_module.device.type == "cpu" else 50  # ours: as often as Lightning logs
        if len(self.pending) >= every:
            self._copy()
        self._check(wait=False)

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._check(wait=True)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check(wait=True)

    def _copy(self) -> None:
        names: list[tuple[int, str]] = []
        values: list[Tensor] = []
        for step, terms in self.pending:
            names += [(step, name) for name in terms]
            values += terms.values()
        if values:
            self.copies.add(names, torch.stack(values))
        self.pending = []

    def _check(self, *, wait: bool) -> None:
        if wait:
            self._copy()
        for names, values in self.copies.read(wait=wait):
            wrong = []
            for (step, name), value in zip(names, values, strict=True):
                if not math.isfinite(value):
                    # of one step, a term comes before the loss, which is the sum of the terms
                    wrong.append((step, name == "loss", name, value))
            if wrong:
                self.pending = []
                self.copies = HostCopies()
                step, _, name, value = min(wrong, key=lambda each: each[:2])
                raise NonFiniteError(
                    f"the {name} term of the loss is {value} at step {step}; try a smaller learning rate "
                    "(schedule.learning_rate.…) or trainer.precision=32-true; no checkpoint was written after this "
                    "step; checkpoints/best.ckpt has the best weights before it, if there was a validation"
                )


class StepMetrics(Callback):
    """Logs loss, error, gradient and schedules every ``trainer.log_every_n_steps`` steps, in addition to each epoch.

    ``train/loss_step`` and ``train/error_step`` are means over the images since the last logged step, also across the
    end of an epoch or a resumption; with several processes, over the images of the first one. They are differences of
    the sums for ``train/loss`` and ``train/error``. ``train/gradient_norm`` is the norm of the gradient at this step,
    before clipping; ``schedule/<name>`` is the value for the next step. All are logged when their copies have arrived
    on the host, at the latest before an epoch is logged or a checkpoint is written.
    """

    def __init__(self) -> None:
        self.norm: Tensor | None = None
        self.before: list[float] = []  # the sums of the epoch at the last logged step
        self.copies = HostCopies()

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer
    ) -> None:
        every = cast(Any, trainer).log_every_n_steps  # an attribute that the Trainer sets
        if not trainer.loggers or not trainer.is_global_zero or not every:
            return
        if (trainer.global_step + 1) % every == 0:
            gradients = [parameter.grad for parameter in pl_module.parameters()]
            self.norm = nn.utils.get_total_norm(
                [gradient for gradient in gradients if gradient is not None]
            )

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        if self.norm is not None:
            module = cast(AbstractModule, pl_module)
            known = {"epoch": float(trainer.current_epoch)}
            for name, value in module.schedule_values().items():
                known[f"schedule/{name}"] = value
            values = torch.cat([self.norm.float().reshape(1), module.metrics.sums("train")])
            self.copies.add((logged_step(trainer), known), values)
            self.norm = None
        self._log(trainer, wait=False)

    def _log(self, trainer: L.Trainer, *, wait: bool) -> None:
        for (step, known), (norm, *sums) in self.copies.read(wait=wait):
            loss, images, *errors = self._since_last_logged(sums)
            self.before = sums
            metrics = {**known, "train/gradient_norm": norm, "train/loss_step": loss / images}
            if errors:
                metrics["train/error_step"] = 100 * errors[0] / errors[1]
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step)

    def _since_last_logged(self, sums: list[float]) -> list[float]:
        before = self.before or [0.0] * len(sums)
        return [now - earlier for now, earlier in zip(sums, before, strict=True)]

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._log(trainer, wait=True)

    on_train_end = on_validation_epoch_end

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._log(trainer, wait=True)
        if trainer.is_global_zero:
            # the sums restart: carry the remainder over to the next logged step
            sums = cast(AbstractModule, pl_module).metrics.sums("train")
            self.before = [-value for value in self._since_last_logged(sums.tolist())]

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._log(trainer, wait=True)  # before EmbedConfig saves the curves
        # `state_dict` was called before the log changed the sums
        checkpoint["callbacks"][self.state_key] = {"before": self.before}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.before = state_dict["before"]


class RoutingStats(Callback):
    """Logs statistics of the capsules in validation; of several validation sets, it uses the first.

    From all images: ``val/dead_capsules``, percent of the class capsules that no image activates. From the first
    ``images``: ``val/coupling_entropy`` in the last routing iteration of the class capsules, and for every layer of
    capsules ``val/activation_<layer>``, the mean, ``val/activation_std_<layer>``, and ``val/dead_<layer>``, percent of
    the layer's capsules that none of these images activates.
    """

    def __init__(
        self,
        images: int = 64,  # ours: enough for a mean, few compared with a validation set
    ) -> None:
        check_number("images", images, 1)
        self.images = images
        self.dead = DeadCapsuleRate()
        self.warned = False
        self.statistics: dict[str, Tensor] = {}

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        number: int,
        loader: int = 0,
    ) -> None:
        if loader:
            return
        # None for a network on pairs of images
        capsules = getattr(outputs["output"], "capsules", None)
        if capsules is not None:
            self.dead.to(pl_module.device).update(capsules.activations)
        if number == 0 and isinstance(pl_module.network, AbstractCapsuleNetwork):
            share = max(self.images // trainer.world_size, 1)  # of this process
            self.statistics = layer_statistics(pl_module.network, batch.images[:share])
            has_entropy = "coupling_entropy" in self.statistics
            if not has_entropy and trainer.is_global_zero and not self.warned:
                log.warning(
                    "val/coupling_entropy is not logged: the routing of the class capsules does not call on_iteration"
                )
                self.warned = True

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.dead.update_called:
            pl_module.log("val/dead_capsules", self.dead.compute())
            self.dead.reset()
        for name, value in self.statistics.items():
            pl_module.log(f"val/{name}", value)
        self.statistics = {}


def layer_statistics(network: AbstractCapsuleNetwork, images: Tensor) -> dict[str, Tensor]:
    """Compute the coupling entropy of the class capsules, and for every layer the mean, spread and dead share.

    There is no coupling entropy if the routing does not call ``on_iteration``.
    """
    traces: list[RoutingTrace] = []
    layers: dict[str, Capsules] = {}

    def keep(name: str, _: nn.Module, _inputs: Any, output: Capsules) -> None:
        layers[name] = output

    with ExitStack() as stack:
        for name, layer in network.capsule_layers().items():
            stack.callback(layer.register_forward_hook(partial(keep, name)).remove)
        network.forward(images, on_iteration=traces.append)  # the compiled call does not run hooks
    statistics = {}
    if traces:
        statistics["coupling_entropy"] = coupling_entropy_of(traces[-1])
    for name, (_, activations, *_) in layers.items():
        mean, spread = _compute(ActivationStatistics(), activations)
        statistics |= {f"activation_{name}": mean, f"activation_std_{name}": spread}
        statistics[f"dead_{name}"] = _compute(DeadCapsuleRate(), activations)
    return statistics


def _compute(metric: Metric, values: Tensor) -> Any:
    """Compute the metric of ``values`` over all processes."""
    metric.to(values.device).update(values)
    return metric.compute()
