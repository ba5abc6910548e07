"""Diagnostics for networks that do not learn: measurements during training, and a warning before it."""

from __future__ import annotations

import csv
import io
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.optim import Optimizer

from capsule_lab.analysis import learning as measures
from capsule_lab.callbacks.figures import logged_step
from capsule_lab.errors import check_number
from capsule_lab.functional import HALF
from capsule_lab.networks import AbstractCapsuleNetwork, AbstractNetwork
from capsule_lab.routing import AbstractRouting
from capsule_lab.runs.files import write_text
from capsule_lab.types import Batch

log = logging.getLogger(__name__)


class LearningDiagnostics(Callback):
    """Measures the gradient, the capsules and the steps of the optimizer, see ``capsule_lab.analysis.learning``.

    It measures at the first step and then every ``every_n_steps``, on the first ``images`` of the batch. Each
    measurement is logged as ``learning/<quantity>`` and added to ``learning.csv`` of the run. It uses a copy of the
    network, in float32, and does not affect training. With several processes, each measures its part of the batch, and
    the first one writes the results.
    ``relative_change`` and ``changes`` are arguments of ``measure_gradient``.
    """

    def __init__(
        self,
        every_n_steps: int = 20,  # ours: five measurements of the hundred steps of debug=learning
        images: int = 32,  # ours: enough to find the chaotic gradient of EM routing
        relative_change: float = 0.01,  # ours: see measure_gradient
        changes: int = 4,  # ours: see measure_gradient
    ) -> None:
        check_number("every_n_steps", every_n_steps, 1)
        check_number("images", images, 2)
        check_number("relative_change", relative_change, above=0)
        check_number("changes", changes, 1)
        self.every_n_steps = every_n_steps
        self.images = images
        self.relative_change = relative_change
        self.changes = changes
        self.rows: list[dict[str, float]] = []
        self.step: int | None = None  # the step being measured
        self.found: dict[str, float] = {}  # measured before the step
        self.before: dict[str, Tensor] = {}

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, _: int
    ) -> None:
        is_same_step = self.step is not None  # of another batch, whose gradient is added
        if is_same_step or trainer.global_step % self.every_n_steps:
            return
        batch = first_images(batch, self.images)
        network = cast(Any, pl_module).network
        gradient = measures.measure_gradient(
            network,
            _loss_on(pl_module, batch),
            relative_change=self.relative_change,
            changes=self.changes,
        )
        layers = {}
        if isinstance(network, AbstractCapsuleNetwork):
            layers = measures.measure_layers(network, batch.images)
        self.step = trainer.global_step
        self.found = measures.quantities(gradient, layers)

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer
    ) -> None:
        if self.step is not None and trainer.is_global_zero:
            weights = _weights(pl_module)
            self.before = {name: weight.clone() for name, weight in weights.items()}

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        if self.step is None or trainer.global_step == self.step:
            return
        if trainer.is_global_zero:
            found = dict(self.found)
            for name, size in measures.relative_steps(self.before, _weights(pl_module)).items():
                found[f"relative_step_{name}"] = size
            self.rows.append({"step": self.step, **found})
            self._write(trainer)
            logged = {f"learning/{name}": value for name, value in found.items()}
            for logger in trainer.loggers:
                logger.log_metrics(logged, logged_step(trainer))
        self.step = None
        self.before = {}

    def _write(self, trainer: L.Trainer) -> None:
        write_text(_table(trainer), _as_csv(self.rows))

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.rows and trainer.is_global_zero:
            log.info(
                "%d measurements are in %s; docs/guides/not_learning.md explains them",
                len(self.rows),
                _table(trainer),
            )

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = state_dict["rows"]


def _table(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "learning.csv"


def _weights(module: L.LightningModule) -> dict[str, Tensor]:
    parameters = cast(Any, module).network.named_parameters()
    return {name: parameter.detach() for name, parameter in parameters}


def _as_csv(rows: Sequence[Mapping[str, float]]) -> str:
    """Return a row for each measurement; a field without a number is empty."""
    names: dict[str, None] = {}  # in the order of the first measurement
    for row in rows:
        names |= dict.fromkeys(row)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(names), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        numbers = {name: value for name, value in row.items() if not math.isnan(value)}
        writer.writerow(numbers)
    return text.getvalue()


class VarianceFloor(Callback):
    """Warns once, before the first step, about layers whose variance floor is far from the variance of their votes.

    If the floor is far below, EM routing's gradient is chaotic; if far above, activations hardly depend on votes: see
    ``capsule_lab.analysis.learning.floor_warnings``. If the network has such a floor, this takes one pass of the first
    ``images`` through a copy of the network; it does not affect training.
    """

    def __init__(
        self,
        images: int = 8,  # ours: a tenth of a second; all capsules contribute to the median
    ) -> None:
        check_number("images", images, 2)
        self.images = images
        self.checked = False

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, _: int
    ) -> None:
        if self.checked or trainer.global_step:
            return
        self.checked = True
        network = cast(Any, pl_module).network
        if not isinstance(network, AbstractCapsuleNetwork):
            return
        routings = [module for module in network.modules() if isinstance(module, AbstractRouting)]
        if not any(measures.min_variance(routing) for routing in routings):
            return
        # in all processes: layers may communicate
        layers = measures.measure_layers(network, batch.images[: self.images])
        if trainer.is_global_zero:
            for warning in measures.floor_warnings(layers):
                log.warning("%s", warning)


def first_images(batch: Batch, images: int) -> Batch:
    """Return the first images of a batch with their other fields; half precision is converted to float32."""
    fields: dict[str, Any] = batch._asdict()
    for name, values in fields.items():
        if values is not None:
            first = values[:images]
            fields[name] = first.float() if first.dtype in HALF else first
    return Batch(**fields)


def _loss_on(module: Any, batch: Batch) -> Callable[[AbstractNetwork], Tensor]:
    """Return the training loss of ``module`` on one batch, as a function of the network."""

    def loss(network: AbstractNetwork) -> Tensor:
        original = module.network
        module.network = network
        try:
            output = network.forward(*module.inputs_of(batch))  # not the compiled call
            terms = module.loss_terms(batch, output, module.schedule_values())
            terms |= module.penalty()
        finally:
            module.network = original
        return torch.stack([*terms.values()]).sum()

    return loss
