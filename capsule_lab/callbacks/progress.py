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

_WARM_UP = 2  # ours: steps in which kernels are compiled, and memory and the optimizer's state are allocated


class _TimeLeft:
    """Remaining time of the whole run, from the speed after the first steps, or what a ``Timer`` leaves."""

    def start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.first, self.total = trainer.global_step, cast(AbstractModule, pl_module).total_steps
        self.warm: tuple[int, float] | None = None  # step and time

    def count(self, trainer: L.Trainer) -> None:
        """To be called after each step."""
        if self.warm is None and trainer.global_step >= self.first + _WARM_UP:
            self.warm = trainer.global_step, time.monotonic()

    def text(self, trainer: L.Trainer) -> str:
        """``left 0:12:30``, or nothing while that is not known."""
        if self.warm is None or trainer.global_step == self.warm[0]:
            return ""
        step, since = self.warm
        seconds = (time.monotonic() - since) / (trainer.global_step - step) * (self.total - trainer.global_step)
        callbacks = cast(Any, trainer).callbacks  # the Trainer's own attribute, which its class does not declare
        limits = [callback.time_remaining() for callback in callbacks if isinstance(callback, Timer)]
        left = max(min([seconds, *(limit for limit in limits if limit is not None)]), 0)
        return f"left {timedelta(seconds=round(left))}"


class ProgressLines(Callback):
    """Logs one line per epoch with its metrics and the remaining time; epochs are counted from 1.
    In an epoch that takes longer than ``seconds``, there is a line at this interval, the first one after ten seconds.
    """

    def __init__(self, seconds: float = 60.0) -> None:  # ours: a log without a line for longer looks like a crash
        self.seconds = seconds
        self.left = _TimeLeft()
        self.last = 0.0
        self.interval = min(10, seconds)  # ours

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.left.start(trainer, pl_module)
        self.last = time.monotonic()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *_: Any) -> None:
        self.left.count(trainer)
        if time.monotonic() - self.last > self.interval:
            self.interval = self.seconds
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
            log.info("%s", f"epoch {epoch}  step {step}  {shown}  {self.left.text(trainer)}".rstrip())


def format_metrics(metrics: Mapping[str, Any]) -> str:
    """Loss and error of training, and the validation error: ``loss 0.25  error 12.50 %, val 13.10 %``.

    For a network that does not classify, the validation loss.
    """
    losses = [f"loss {float(metrics['train/loss']):.4g}"] if "train/loss" in metrics else []
    if losses and "val/loss" in metrics and "val/error" not in metrics:
        losses[0] += f", val {float(metrics['val/loss']):.4g}"
    splits = {"train/error": "", "val/error": "val "}
    errors = [f"{split}{float(metrics[name]):.2f} %" for name, split in splits.items() if name in metrics]
    return "  ".join([*losses, *([f"error {', '.join(errors)}"] if errors else [])])


class ProgressBar(ProgressLines):
    """The lines of ``ProgressLines``, and below them a bar over the steps of the run, which vanishes at the end.

    The bar is one line at any width: below 60 columns it is steps and remaining time only. A test has one of its own.
    Lightning's bars are over the batches of an epoch, with the time that is left of that.
    """

    def __init__(self) -> None:
        super().__init__(seconds=math.inf)
        self.interval = math.inf  # the bar shows what is between epochs
        self.progress: Progress | None = None
        self.streams: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []
        self.drawn_at = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._start(trainer)

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._start(trainer)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *_: Any) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs)
        step, total = trainer.global_step, self.left.total
        if self._is_due() or (self.progress is not None and step == total):
            val, loss = (trainer.logged_metrics.get(name) for name in ("val/error", "val/loss"))
            error = "" if loss is None else f"val loss {float(loss):.4g}"
            error = error if val is None else f"val error {float(val):.2f} %"
            of = f"/{trainer.max_epochs}" if (trainer.max_epochs or -1) > 0 else ""
            metrics = f"loss {float(outputs['loss']):.4g}  {error}".strip()
            self._draw(f"epoch {trainer.current_epoch + 1}{of}", step, total, metrics, self.left.text(trainer))

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, number: int, loader: int = 0
    ) -> None:
        if not trainer.sanity_checking and self._is_due():
            batches = f"{number + 1}/{trainer.num_val_batches[loader]}"
            self._draw(f"validation {batches}", trainer.global_step, self.left.total, "", self.left.text(trainer))

    def on_test_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, number: int, loader: int = 0
    ) -> None:
        if self._is_due():
            self._draw("test", number + 1, trainer.num_test_batches[loader])

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        self._stop()

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._stop()

    def _start(self, trainer: L.Trainer) -> None:
        if not trainer.is_global_zero:
            return
        console = Console()
        what, left = TextColumn("{task.description}"), TextColumn("{task.fields[left]}")
        columns: list[ProgressColumn] = [MofNCompleteColumn(table_column=Column(no_wrap=True)), left]
        if console.width >= 60:  # ours: what epoch, steps, metrics and remaining time take
            columns = [what, BarColumn(bar_width=None), columns[0], TextColumn("{task.fields[metrics]}"), left]
        self.progress = Progress(*columns, console=console, auto_refresh=False, transient=True)
        self.progress.expand = len(columns) > 2
        self.progress.add_task("", metrics="", left="", total=None)
        before = {id(stream): name for name in ("stdout", "stderr") for stream in [getattr(sys, name)]}
        self.progress.start()  # replaces sys.stdout and sys.stderr by what writes above the bar; handlers keep theirs
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and id(handler.stream) in before:
                self.streams.append((handler, handler.stream))
                handler.setStream(getattr(sys, before[id(handler.stream)]))
        self.drawn_at = 0.0

    def _is_due(self) -> bool:
        """Twice a second, ours: reading the loss waits for the device."""
        return self.progress is not None and time.monotonic() - self.drawn_at > 0.5

    def _draw(self, description: str, done: int, total: float, metrics: str = "", left: str = "") -> None:
        assert self.progress is not None
        (task,) = self.progress.task_ids
        self.progress.update(task, description=description, completed=done, total=total, metrics=metrics, left=left)
        self.progress.refresh()
        self.drawn_at = time.monotonic()

    def _stop(self) -> None:
        if self.progress is not None:
            self.progress.stop()
        for handler, stream in self.streams:
            handler.setStream(stream)
        self.progress, self.streams = None, []


def progress_callback() -> Callback:
    """Lines, and a bar below them on a terminal."""
    return ProgressBar() if sys.stdout.isatty() else ProgressLines()
