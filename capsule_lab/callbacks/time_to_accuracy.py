"""Time that a network takes to reach an accuracy: seconds of training, images and steps."""

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

# their sum is the total time of a run
PHASES = ("start_up", "training", "validation", "checkpoints")

# ours: percent; above float32's error in 100 - 99.5, far below one image of 100,000
_ROUNDING = 1e-4


class TimeToAccuracy(Checkpoint):
    """Records the first validation that reaches each accuracy, and keeps the weights that reached it.

    For each accuracy, it logs ``seconds`` of training, ``wall_seconds`` in total, ``images``, ``step``, and ``error``
    in percent, as ``time_to_accuracy/<threshold>/<quantity>``. Every validation logs ``time_to_accuracy/seconds`` and
    ``time_to_accuracy/images``, so that errors can be plotted over time. The weights are saved as
    ``checkpoints/reached_<threshold>.ckpt``; the run tests them at its end.

    Training time includes the loading of batches. It excludes validations, the writing of checkpoints, and the time
    before the first batch of a command; these are measured separately. Each validation first waits for the
    accelerator. A resumed run continues with the times of its checkpoint: steps that are repeated after it count once.
    Thresholds are percentages of correctly classified validation images; ``monitor`` is the name of the logged error,
    in percent; with ``stop``, the run ends when all thresholds are reached.
    """

    def __init__(
        self,
        thresholds: Sequence[float] = (99.0, 99.5),  # ours: for MNIST, where linear ones reach 92
        monitor: str = "val/error",
        stop: bool = True,
    ) -> None:
        if not thresholds:
            raise ValueError(
                "thresholds is empty; expected percentages of right images, such as [99.0, 99.5]"
            )
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
        """Return the callback of this class in a run, if there is one."""
        callbacks = trainer.checkpoint_callbacks
        return next((callback for callback in callbacks if isinstance(callback, cls)), None)

    @property
    def seconds(self) -> dict[str, float]:
        """Time so far in each of ``PHASES``, summed over interruptions."""
        seconds = dict(self.seconds_before)
        if self.phase:
            seconds[self.phase] += time.monotonic() - self.since
        return seconds

    @property
    def stopping_reason(self) -> EarlyStoppingReason:
        """Same as in Lightning's ``EarlyStopping``, so that a completed run does not train further when it resumes."""
        if self.stop and self.thresholds.keys() <= self.reached.keys():
            return EarlyStoppingReason.STOPPING_THRESHOLD
        return EarlyStoppingReason.NOT_STOPPED

    def results(self) -> dict[str, float | None]:
        """Return numbers such as ``99.5/seconds``, ``None`` if not reached, and the seconds of each phase."""
        results: dict[str, float | None] = {}
        for threshold in self.thresholds:
            reached = self.reached.get(threshold, {})
            for name in ("seconds", "wall_seconds", "images", "step", "error"):
                results[f"{threshold}/{name}"] = reached.get(name)
        for phase, seconds in self.seconds.items():
            results[f"{phase}_seconds"] = round(seconds, 2)
        return results

    def _enter(self, phase: str | None, device: torch.device) -> None:
        if self.phase == "training" and phase != "training" and device.type != "cpu":
            torch.accelerator.synchronize(device)  # queued steps are training, too
        self.seconds_before = self.seconds
        self.since = time.monotonic()
        self.phase = phase

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, _: int
    ) -> None:
        self._enter("training", pl_module.device)
        # counted before other callbacks save at the end of the batch
        self.images += len(batch.labels) * trainer.world_size

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn == "fit":
            self._enter("validation", pl_module.device)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn == "fit":
            pl_module.log("time_to_accuracy/seconds", self.seconds["training"])
            pl_module.log("time_to_accuracy/images", float(self.images))

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
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
        reached = {
            "seconds": round(seconds["training"], 2),
            "wall_seconds": round(sum(seconds.values()), 2),
            "images": self.images,
            "step": trainer.global_step,
            "error": error,
        }
        self.reached[threshold] = reached
        metrics = {f"time_to_accuracy/{threshold}/{name}": value for name, value in reached.items()}
        for logger in trainer.loggers:
            logger.log_metrics(metrics, logged_step(trainer))
        trainer.save_checkpoint(weights_reached(Path(trainer.default_root_dir), threshold))
        log.info(
            "%s %% right after %.0f s of training: step %d, %d images, %s %.2f %%",
            threshold,
            reached["seconds"],
            reached["step"],
            reached["images"],
            self.monitor,
            error,
        )

    def state_dict(self) -> dict[str, Any]:
        return {"reached": self.reached, "images": self.images, "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.reached = state_dict["reached"]
        self.images = state_dict["images"]
        for phase, seconds in state_dict["seconds"].items():
            self.seconds_before[phase] += seconds


def weights_reached(directory: Path, threshold: str) -> Path:
    """Return the path, in the directory of a run, of the checkpoint that reached a threshold."""
    return directory / "checkpoints" / f"reached_{threshold}.ckpt"
