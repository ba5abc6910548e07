"""Histograms of capsules in the test, for the dashboards of W&B and TensorBoard."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import WandbLogger
from torch import Tensor

from capsule_lab.analysis.trace import LayerTrace, trace
from capsule_lab.callbacks.figures import logged_step
from capsule_lab.callbacks.worst_images import dashboards, first_crop
from capsule_lab.errors import check_number
from capsule_lab.networks import AbstractCapsuleNetwork
from capsule_lab.types import Batch

log = logging.getLogger(__name__)

_BINS = 64  # W&B's default


class CapsuleHistograms(Callback):
    """Logs histograms of activations and couplings for the first ``images`` of the test.

    Each layer with routing has ``test/activations/<layer>`` and, for each iteration, ``test/couplings/<layer>``: W&B
    adds ``/iteration_<number>``, TensorBoard shows iterations as steps. Couplings of absent children, such as the
    padding of a convolutional layer, are left out. Without such a logger it does nothing.
    """

    def __init__(
        self,
        images: int = 8,  # ours: votes of a convolutional layer take 20 MB per image
    ) -> None:
        check_number("images", images, 1)
        self.images = images

    def on_test_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        network = pl_module.network
        if batch_idx or dataloader_idx or not isinstance(network, AbstractCapsuleNetwork):
            return
        loggers = dashboards(trainer)
        if not loggers:
            return
        try:
            _, layers = trace(network, first_crop(batch)[: self.images])
        except ValueError as error:  # a routing that does not call on_iteration
            log.warning("histograms of capsules are not logged: %s", error)
            return
        step = logged_step(trainer)
        for logger in loggers:
            for name, layer in layers.items():
                if isinstance(logger, WandbLogger):
                    logger.log_metrics(_of_wandb(name, layer), step)
                else:
                    _log_to_tensorboard(logger.experiment, name, layer, step)


def _of_wandb(name: str, layer: LayerTrace) -> Mapping[str, Any]:
    """Return W&B's histograms of a layer by key."""
    found = {f"test/activations/{name}": _histogram(layer.parents.activations)}
    for number, couplings in enumerate(_couplings(layer), 1):
        found[f"test/couplings/{name}/iteration_{number}"] = _histogram(couplings)
    return found


def _histogram(values: Tensor) -> Any:
    from wandb import Histogram

    counted = np.histogram(values.float().cpu(), bins=_BINS)
    return Histogram(np_histogram=counted)


def _log_to_tensorboard(writer: Any, name: str, layer: LayerTrace, step: int) -> None:
    writer.add_histogram(f"test/activations/{name}", layer.parents.activations.float(), step)
    for number, couplings in enumerate(_couplings(layer), 1):
        writer.add_histogram(f"test/couplings/{name}", couplings.float(), number)


def _couplings(layer: LayerTrace) -> list[Tensor]:
    """Return the couplings of each iteration, ``(child, parent)``, over all images and positions."""
    is_present = layer.present > 0
    return [each.couplings[is_present] for each in layer.iterations]
