"""Progress of a run: one line per epoch, and a bar below the lines on a terminal."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO, cast

import lightning as L
from lightning.pytorch.callbacks import Callback, Timer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
from rich.table import Column

from capsule_lab.errors import RunError
from capsule_lab.lit import AbstractModule
from capsule_lab.runs import results

log = logging.getLogger(__name__)

_HEARTBEAT_SECONDS = 10  # ours: a sixth of what ``list`` waits for
_WARM_UP = 2  # ours: steps that compile kernels, and allocate memory and the optimizer's state


class _TimeLeft:
    """Remaining time of the whole run, from the speed after the first steps, limited by ``Timer`` callbacks."""

    def start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.first, self.total = trainer.global_step, cast(AbstractModule, pl_module).total_steps
        self.warm: tuple[int, float] | None = None  # step and time

    def count(self, trainer: L.Trainer) -> None:
        """Count a step; call this after each one."""
        if self.warm is None and trainer.global_step >= self.first + _WARM_UP:
            self.warm = trainer.global_step, time.monotonic()

    def seconds(self, trainer: L.Trainer) -> float | None:
        """Return the remaining seconds; ``None`` while this is unknown."""
        if self.warm is None or trainer.global_step == self.warm[0]:
            return None
        step, since = self.warm
        seconds = (
            (time.monotonic() - since)
            / (trainer.global_step - step)
            * (self.total - trainer.global_step)
        )
        callbacks = cast(Any, trainer).callbacks  # an attribute that the Trainer sets
        limits = [
            callback.time_remaining() for callback in callbacks if isinstance(callback, Timer)
        ]
        return max(min([seconds, *(limit for limit in limits if limit is not None)]), 0)

    def text(self, trainer: L.Trainer) -> str:
        """Return ``left 0:12:30``, or an empty string while this is unknown."""
        seconds = self.seconds(trainer)
        return "" if seconds is None else f"left {timedelta(seconds=round(seconds))}"


class ProgressLines(Callback):
    """Logs one line per epoch with its metrics and the remaining time; epochs are counted from 1.
    An epoch that takes longer than ``seconds`` has additional lines at this interval, the first after ten seconds.
    Every ten seconds it also writes the heartbeat of the run, which ``list`` shows.
    """

    def __init__(
        self, seconds: float = 60.0
    ) -> None:  # ours: a longer pause in the log looks like a crash
        self.seconds = seconds
        self.left = _TimeLeft()
        self.last = 0.0
        self.interval = min(10, seconds)  # ours
        self.beat_at = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.left.start(trainer, pl_module)
        self.last = time.monotonic()
        self._beat(trainer)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *_: Any
    ) -> None:
        self.left.count(trainer)
        self._beat(trainer)
        if time.monotonic() - self.last > self.interval:
            self.interval = self.seconds
            self._line(trainer, trainer.current_epoch + 1, {"train/loss": float(outputs["loss"])})

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any, **__: Any
    ) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._beat(trainer)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._line(
            trainer, trainer.current_epoch, trainer.logged_metrics
        )  # the previous epoch, complete only now

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._line(trainer, trainer.current_epoch, trainer.logged_metrics)
        self._end(trainer)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        self._end(trainer)

    def _beat(self, trainer: L.Trainer) -> None:
        if trainer.is_global_zero and time.monotonic() - self.beat_at > _HEARTBEAT_SECONDS:
            self.beat_at = time.monotonic()
            directory, left = Path(trainer.default_root_dir), self.left.seconds(trainer)
            with suppress(RunError):  # a full disk must not end the training; checkpoints report it
                results.write_heartbeat(directory, trainer.global_step, self.left.total, left)

    def _end(self, trainer: L.Trainer) -> None:
        if trainer.is_global_zero:
            with suppress(OSError):
                (Path(trainer.default_root_dir) / results.HEARTBEAT).unlink(missing_ok=True)

    def _line(self, trainer: L.Trainer, epoch: int, metrics: Mapping[str, Any]) -> None:
        self.last = time.monotonic()
        shown = format_metrics(metrics)
        if trainer.is_global_zero and trainer.global_step and shown:
            step = f"{trainer.global_step}/{self.left.total}"
            log.info(
                "%s", f"epoch {epoch}  step {step}  {shown}  {self.left.text(trainer)}".rstrip()
            )


def format_metrics(metrics: Mapping[str, Any]) -> str:
    """Format the training loss, training error and validation error: ``loss 0.25  error 12.50 %, val 13.10 %``.

    For a network that does not classify, the validation loss replaces the errors.
    """
    losses = [f"loss {float(metrics['train/loss']):.4g}"] if "train/loss" in metrics else []
    if losses and "val/loss" in metrics and "val/error" not in metrics:
        losses[0] += f", val {float(metrics['val/loss']):.4g}"
    splits = {"train/error": "", "val/error": "val "}
    errors = [
        f"{split}{float(metrics[name]):.2f} %" for name, split in splits.items() if name in metrics
    ]
    return "  ".join([*losses, *([f"error {', '.join(errors)}"] if errors else [])])


class ProgressBar(ProgressLines):
    """The lines of ``ProgressLines``, and below them a bar over the steps of the run, which is removed at the end.

    The bar takes one line at any width: below 60 columns it shows only steps and remaining time. A test has a separate
    bar. Lightning's bars instead cover the batches and the remaining time of one epoch.
    """

    def __init__(self) -> None:
        super().__init__(seconds=math.inf)
        self.interval = math.inf  # the bar replaces lines within an epoch
        self.progress: Progress | None = None
        self.streams: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []
        self.drawn_at = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._start(trainer)

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._start(trainer)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *_: Any
    ) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs)
        step, total = trainer.global_step, self.left.total
        if self._is_due() or (self.progress is not None and step == total):
            val, loss = (trainer.logged_metrics.get(name) for name in ("val/error", "val/loss"))
            error = "" if loss is None else f"val loss {float(loss):.4g}"
            error = error if val is None else f"val error {float(val):.2f} %"
            of = f"/{trainer.max_epochs}" if (trainer.max_epochs or -1) > 0 else ""
            metrics = f"loss {float(outputs['loss']):.4g}  {error}".strip()
            self._draw(
                f"epoch {trainer.current_epoch + 1}{of}",
                step,
                total,
                metrics,
                self.left.text(trainer),
            )

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        number: int,
        loader: int = 0,
    ) -> None:
        super().on_validation_batch_end(trainer, pl_module)
        if not trainer.sanity_checking and self._is_due():
            batches = f"{number + 1}/{trainer.num_val_batches[loader]}"
            self._draw(
                f"validation {batches}",
                trainer.global_step,
                self.left.total,
                "",
                self.left.text(trainer),
            )

    def on_test_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        number: int,
        loader: int = 0,
    ) -> None:
        if self._is_due():
            self._draw("test", number + 1, trainer.num_test_batches[loader])

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        self._stop()

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        super().on_exception(trainer, pl_module, exception)
        self._stop()

    def _start(self, trainer: L.Trainer) -> None:
        if not trainer.is_global_zero:
            return
        console = Console()
        what, left = TextColumn("{task.description}"), TextColumn("{task.fields[left]}")
        columns: list[ProgressColumn] = [
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            left,
        ]
        if console.width >= 60:  # ours: width of epoch, steps, metrics and remaining time
            columns = [
                what,
                BarColumn(bar_width=None),
                columns[0],
                TextColumn("{task.fields[metrics]}"),
                left,
            ]
        self.progress = Progress(*columns, console=console, auto_refresh=False, transient=True)
        self.progress.expand = len(columns) > 2
        self.progress.add_task("", metrics="", left="", total=None)
        before = {
            id(stream): name for name in ("stdout", "stderr") for stream in [getattr(sys, name)]
        }
        self.progress.start()  # redirects sys.stdout and sys.stderr to write above the bar, but not those of handlers
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and id(handler.stream) in before:
                self.streams.append((handler, handler.stream))
                handler.setStream(getattr(sys, before[id(handler.stream)]))
        self.drawn_at = 0.0

    def _is_due(self) -> bool:
        """Whether to redraw: at most twice a second (ours), since reading the loss waits for the device."""
        return self.progress is not None and time.monotonic() - self.drawn_at > 0.5

    def _draw(
        self, description: str, done: int, total: float, metrics: str = "", left: str = ""
    ) -> None:
        assert self.progress is not None
        (task,) = self.progress.task_ids
        self.progress.update(
            task, description=description, completed=done, total=total, metrics=metrics, left=left
        )
        self.progress.refresh()
        self.drawn_at = time.monotonic()

    def _stop(self) -> None:
        if self.progress is not None:
            self.progress.stop()
        for handler, stream in self.streams:
            handler.setStream(stream)
        self.progress, self.streams = None, []


def progress_callback() -> Callback:
    """Return ``ProgressBar`` on a terminal and in a notebook with ipywidgets, else ``ProgressLines``."""
    in_notebook = (
        Console().is_jupyter and find_spec("ipywidgets") is not None
    )  # without, rich prints a warning instead
    return ProgressBar() if sys.stdout.isatty() or in_notebook else ProgressLines()
