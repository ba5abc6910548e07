"""Progress of a run on the terminal: steps, metrics, remaining time."""

from __future__ import annotations

import logging
import sys
import time
from datetime import timedelta
from typing import Any, cast

import lightning as L
from lightning.pytorch.callbacks import Callback, RichProgressBar, Timer
from lightning.pytorch.callbacks.progress.rich_progress import RichProgressBarTheme

from capsule_lab.lit import AbstractCapsuleModule

log = logging.getLogger(__name__)


class _TimeLeft:
    """Remaining time of the whole run, from the speed so far, or what trainer.max_time leaves."""

    def start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, AbstractCapsuleModule)
        self.began, self.first, self.total = time.monotonic(), trainer.global_step, pl_module.total_steps

    def __call__(self, trainer: L.Trainer) -> str:
        done = trainer.global_step - self.first
        if not done:
            return "?"
        seconds = (time.monotonic() - self.began) / done * (self.total - trainer.global_step)
        callbacks = cast(Any, trainer).callbacks  # the Trainer's own attribute, which its class does not declare
        limits = [callback.time_remaining() for callback in callbacks if isinstance(callback, Timer)]
        seconds = min([seconds, *(limit for limit in limits if limit is not None)])
        return str(timedelta(seconds=round(max(seconds, 0))))


class ProgressBar(RichProgressBar):
    """Lightning's bar with the remaining time of the whole run."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=10, theme=RichProgressBarTheme(metrics_format=".3f"))
        self.left = _TimeLeft()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self.left.start(trainer, pl_module)

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        return {**metrics, "run ends in": self.left(trainer)} if trainer.training else dict(metrics)


class ProgressLines(Callback):
    """One line per epoch with its metrics and the remaining time, where the output is no terminal.

    Args:
        seconds: within an epoch that takes longer, a line at this interval.
    """

    def __init__(self, seconds: float = 60.0) -> None:  # ours: a log without a line for longer looks like a crash
        self.seconds = seconds
        self.left = _TimeLeft()
        self.last = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.left.start(trainer, pl_module)
        self.last = time.monotonic()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if time.monotonic() - self.last > self.seconds:
            self._line(trainer, {"loss": float(outputs["loss"])})

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._line(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._line(trainer)

    def _line(self, trainer: L.Trainer, metrics: dict[str, float] | None = None) -> None:
        wanted = ("loss", "train/loss", "train/error", "val/loss", "val/error")
        if metrics is None:
            metrics = {name: float(value) for name, value in trainer.logged_metrics.items() if name in wanted}
        self.last = time.monotonic()
        if trainer.is_global_zero and trainer.global_step and metrics:
            shown = "  ".join(f"{name} {metrics[name]:.4g}" for name in wanted if name in metrics)
            log.info(
                "epoch %d  step %d/%s  %s  time left %s",
                trainer.current_epoch, trainer.global_step, self.left.total, shown,
                self.left(trainer),
            )  # fmt: skip


def progress_callback() -> Callback:
    """The bar on a terminal, lines elsewhere."""
    return ProgressBar() if sys.stdout.isatty() else ProgressLines()
