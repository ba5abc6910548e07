"""Progress of a run: a line for each epoch, and on a terminal a bar below the lines."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TextIO, cast

import lightning as L
from lightning.pytorch.callbacks import Callback, Timer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
from rich.table import Column

from capsule_lab.lit import AbstractModule

log = logging.getLogger(__name__)


class _TimeLeft:
    """Remaining time of the whole run, from the speed so far, or what a ``Timer`` leaves."""

    def start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, AbstractModule)
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


class ProgressLines(Callback):
    """Logs one line per epoch with its metrics and the remaining time; epochs are counted from 1.

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
            self._line(trainer, trainer.current_epoch + 1, {"train/loss": float(outputs["loss"])})

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._line(trainer, trainer.current_epoch, trainer.logged_metrics)  # of the epoch before, complete only now

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._line(trainer, trainer.current_epoch, trainer.logged_metrics)

    def _line(self, trainer: L.Trainer, epoch: int, metrics: Mapping[str, Any]) -> None:
        self.last = time.monotonic()
        shown = format_metrics(metrics)
        if trainer.is_global_zero and trainer.global_step and shown:
            step = f"{trainer.global_step}/{self.left.total}"
            log.info("epoch %d  step %s  %s  left %s", epoch, step, shown, self.left(trainer))


def format_metrics(metrics: Mapping[str, Any]) -> str:
    """Loss and error of training, and the validation error: ``loss 0.25  error 12.50 %, val 13.10 %``.

    Of a network that does not classify, the validation loss.
    """
    losses = [f"loss {float(metrics['train/loss']):.4g}"] if "train/loss" in metrics else []
    if losses and "val/loss" in metrics and "val/error" not in metrics:
        losses[0] += f", val {float(metrics['val/loss']):.4g}"
    splits = {"train/error": "", "val/error": "val "}
    errors = [f"{split}{float(metrics[name]):.2f} %" for name, split in splits.items() if name in metrics]
    return "  ".join([*losses, *([f"error {', '.join(errors)}"] if errors else [])])


class ProgressBar(ProgressLines):
    """The lines of ``ProgressLines``, and below them a bar, which vanishes when training ends.

    The bar is one line at any width: below 60 columns it is without bar and metrics.

    Args:
        every_seconds: how often it is drawn; reading the loss waits for the device.
    """

    def __init__(self, every_seconds: float = 0.5) -> None:  # ours
        super().__init__(seconds=math.inf)
        self.every_seconds = every_seconds
        self.progress: Progress | None = None
        self.streams: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []
        self.drawn = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._start(trainer, f"epoch {self._epoch(trainer)}")

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._start(trainer, "test")

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._is_due():
            val, loss = (trainer.logged_metrics.get(name) for name in ("val/error", "val/loss"))
            error = "" if loss is None else f"val loss {float(loss):.4g}"
            error = error if val is None else f"val error {float(val):.2f} %"
            self._draw(
                f"epoch {self._epoch(trainer)}", batch_idx + 1, trainer.num_training_batches,
                metrics=f"loss {float(outputs['loss']):.4g}  {error}".strip(), left=f"left {self.left(trainer)}",
            )  # fmt: skip

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if not trainer.sanity_checking and self._is_due():
            self._draw("validation", batch_idx + 1, trainer.num_val_batches[dataloader_idx])

    def on_test_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self._is_due():
            self._draw("test", batch_idx + 1, trainer.num_test_batches[dataloader_idx])

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        self._stop()

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._stop()

    @staticmethod
    def _epoch(trainer: L.Trainer) -> str:
        of = f"/{trainer.max_epochs}" if (trainer.max_epochs or -1) > 0 else ""
        return f"{trainer.current_epoch + 1}{of}"

    def _start(self, trainer: L.Trainer, description: str) -> None:
        if not trainer.is_global_zero:
            return
        console = Console()
        self.progress = Progress(*_columns(console.width), console=console, auto_refresh=False, transient=True)
        self.progress.expand = console.width >= _NARROW
        self.progress.add_task(description, metrics="", left="", total=None)
        before = {id(stream): name for name in ("stdout", "stderr") for stream in [getattr(sys, name)]}
        self.progress.start()  # replaces sys.stdout and sys.stderr by what writes above the bar; handlers keep theirs
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and id(handler.stream) in before:
                self.streams.append((handler, handler.stream))
                handler.setStream(getattr(sys, before[id(handler.stream)]))
        self.drawn = 0.0

    def _is_due(self) -> bool:
        return self.progress is not None and time.monotonic() - self.drawn > self.every_seconds

    def _draw(self, description: str, done: int, total: float, *, metrics: str = "", left: str = "") -> None:
        assert self.progress is not None
        (task,) = self.progress.task_ids
        self.progress.update(task, description=description, completed=done, total=total, metrics=metrics, left=left)
        self.progress.refresh()
        self.drawn = time.monotonic()

    def _stop(self) -> None:
        if self.progress is None:
            return
        self.progress.stop()
        for handler, stream in self.streams:
            handler.setStream(stream)
        self.progress, self.streams = None, []


_NARROW = 60  # columns, ours: what epoch, steps, metrics and remaining time take


def _columns(width: int) -> list[ProgressColumn]:
    what, left = TextColumn("{task.description}"), TextColumn("{task.fields[left]}")
    count = MofNCompleteColumn(table_column=Column(no_wrap=True))
    if width < _NARROW:
        return [what, count, left]
    return [what, BarColumn(bar_width=None), count, TextColumn("{task.fields[metrics]}"), left]


def progress_callback() -> Callback:
    """Lines, and a bar below them on a terminal."""
    return ProgressBar() if sys.stdout.isatty() else ProgressLines()
