"""How long a network takes to reach an accuracy: seconds of training, images and steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint

from capsule_lab.callbacks.figures import logged_step
from capsule_lab.errors import check_number
from capsule_lab.lit.lightning_internals import EarlyStoppingReason
from capsule_lab.types import Batch

log = logging.getLogger(__name__)

PHASES = ("start_up", "training", "validation", "checkpoints")  # together they are all the time of a run

_ROUNDING = 1e-4  # ours: percent; above what float32 makes of 100 - 99.5, far below one image of 100,000


class TimeToAccuracy(Checkpoint):
    """Records the first validation at which each accuracy is reached, and keeps the weights that reached it.

    For each accuracy: ``seconds`` of training, ``wall_seconds`` in total, ``images`` shown, ``step``, and ``error`` in
    percent. They are logged as ``time_to_accuracy/<threshold>/<quantity>``, and with every validation
    ``time_to_accuracy/seconds`` and ``time_to_accuracy/images``, so that errors can be drawn over time. The weights are
    ``checkpoints/reached_<threshold>.ckpt``; the run tests them when it has ended.

    The clock of training runs from batch to batch, their loading included. It stands still in validations, while
    checkpoints are written, and until the first batch of a command; these seconds are counted apart. An accelerator is
    waited for at each validation. A run that resumes goes on with the times of its checkpoint: what was done after it,
    and is done again, counts once.
    Thresholds are percent of the validation images that are right, ``monitor`` names the logged error, in percent;
    with ``stop`` the run ends once all are reached.
    """

    def __init__(  # the thresholds are ours: of MNIST, where a linear classifier has 92
        self, thresholds: Sequence[float] = (99.0, 99.5), monitor: str = "val/error", stop: bool = True
    ) -> None:
        if not thresholds:
            raise ValueError("thresholds is empty; expected percentages of right images, such as [99.0, 99.5]")
        for threshold in thresholds:
            check_number("thresholds", threshold, 0, 100)
        self.thresholds = {f"{threshold:g}": float(threshold) for threshold in sorted(thresholds)}
        self.monitor = monitor
        self.stop = stop
        self.reached: dict[str, dict[str, float]] = {}
        self.images = 0
        self.seconds_before = dict.fromkeys(PHASES, 0.0)
        self.phase: str | None = "start_up"
        self.since = time.monotonic()

    @classmethod
    def of(cls, trainer: L.Trainer) -> TimeToAccuracy | None:
        """The one among the callbacks of a run."""
        return next((callback for callback in trainer.checkpoint_callbacks if isinstance(callback, cls)), None)

    @property
    def seconds(self) -> dict[str, float]:
        """Time so far of each of ``PHASES``, over all interruptions."""
        seconds = dict(self.seconds_before)
        if self.phase:
            seconds[self.phase] += time.monotonic() - self.since
        return seconds

    @property
    def stopping_reason(self) -> EarlyStoppingReason:
        """As of Lightning's ``EarlyStopping``, so that a run that has ended is not trained on when it resumes."""
        reached = self.stop and self.thresholds.keys() <= self.reached.keys()
        return EarlyStoppingReason.STOPPING_THRESHOLD if reached else EarlyStoppingReason.NOT_STOPPED

    def results(self) -> dict[str, float | None]:
        """Plain numbers by name: ``99.5/seconds`` and the like, ``None`` if it was not reached; and of each phase."""
        names = ("seconds", "wall_seconds", "images", "step", "error")
        found = {f"{each}/{name}": self.reached.get(each, {}).get(name) for each in self.thresholds for name in names}
        return {**found, **{f"{phase}_seconds": round(value, 2) for phase, value in self.seconds.items()}}

    def _enter(self, phase: str | None, device: torch.device) -> None:
        if self.phase == "training" and phase != "training" and device.type != "cpu":
            torch.accelerator.synchronize(device)  # steps that are queued are training, too
        self.seconds_before, self.since, self.phase = self.seconds, time.monotonic(), phase

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, _: int) -> None:
        self._enter("training", pl_module.device)
        self.images += len(batch.labels) * trainer.world_size  # before other callbacks save at the end of the batch

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn == "fit":
            self._enter("validation", pl_module.device)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn == "fit":
            pl_module.log("time_to_accuracy/seconds", self.seconds["training"])
            pl_module.log("time_to_accuracy/images", float(self.images))

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if self.phase is not None:
            self._enter("checkpoints", pl_module.device)  # until the next batch

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._enter(None, pl_module.device)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        self._enter("checkpoints", pl_module.device)
        error = float(trainer.callback_metrics[self.monitor])
        for threshold, accuracy in self.thresholds.items():
            if threshold not in self.reached and error <= 100 - accuracy + _ROUNDING:
                self._record(trainer, threshold, error)
        if self.stopping_reason == EarlyStoppingReason.STOPPING_THRESHOLD:
            trainer.should_stop = True

    def _record(self, trainer: L.Trainer, threshold: str, error: float) -> None:
        seconds = self.seconds
        found = {
            "seconds": round(seconds["training"], 2),
            "wall_seconds": round(sum(seconds.values()), 2),
            "images": self.images,
            "step": trainer.global_step,
            "error": error,
        }
        self.reached[threshold] = found
        metrics = {f"time_to_accuracy/{threshold}/{name}": value for name, value in found.items()}
        for logger in trainer.loggers:
            logger.log_metrics(metrics, logged_step(trainer))
        trainer.save_checkpoint(weights_reached(Path(trainer.default_root_dir), threshold))
        log.info(
            "%s %% right after %.0f s of training: step %d, %d images, %s %.2f %%",
            *(threshold, found["seconds"], found["step"], found["images"], self.monitor, error),
        )

    def state_dict(self) -> dict[str, Any]:
        return {"reached": self.reached, "images": self.images, "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.reached, self.images = state_dict["reached"], state_dict["images"]
        for phase, seconds in state_dict["seconds"].items():
            self.seconds_before[phase] += seconds


def weights_reached(directory: Path, threshold: str) -> Path:
    """The checkpoint in the directory of a run with the weights that reached a threshold."""
    return directory / "checkpoints" / f"reached_{threshold}.ckpt"
