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
        self.first_step = trainer.global_step
        self.total = cast(AbstractModule, pl_module).total_steps
        self.warm: tuple[int, float] | None = None  # step and time

    def count(self, trainer: L.Trainer) -> None:
        """Count a step; call this after each one."""
        if self.warm is None and trainer.global_step >= self.first_step + _WARM_UP:
            self.warm = trainer.global_step, time.monotonic()

    def seconds(self, trainer: L.Trainer) -> float | None:
        """Return the remaining seconds; ``None`` while this is unknown."""
        if self.warm is None or trainer.global_step == self.warm[0]:
            return None
        step, since = self.warm
        seconds_per_step = (time.monotonic() - since) / (trainer.global_step - step)
        seconds = seconds_per_step * (self.total - trainer.global_step)
        for callback in cast(Any, trainer).callbacks:  # an attribute that the Trainer sets
            limit = callback.time_remaining() if isinstance(callback, Timer) else None
            if limit is not None:
                seconds = min(seconds, limit)
        return max(seconds, 0)

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
        self,
        seconds: float = 60.0,  # ours: a longer pause in the log looks like a crash
    ) -> None:
        self.seconds = seconds
        self.left = _TimeLeft()
        self.last = 0.0
        self.interval = min(10, seconds)  # ours
        self.beat_at = 0.0
        self.validated = False  # since the last line of an epoch

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

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.validated = True

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # the previous epoch, whose metrics are complete only now
        self._line_of_epoch(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._line_of_epoch(trainer)
        self._end(trainer)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        self._end(trainer)

    def _beat(self, trainer: L.Trainer) -> None:
        is_due = time.monotonic() - self.beat_at > _HEARTBEAT_SECONDS
        if not is_due or not trainer.is_global_zero:
            return
        self.beat_at = time.monotonic()
        directory = Path(trainer.default_root_dir)
        left = self.left.seconds(trainer)
        with suppress(RunError):  # a full disk must not end the training; checkpoints report it
            results.write_heartbeat(directory, trainer.global_step, self.left.total, left)

    def _end(self, trainer: L.Trainer) -> None:
        if trainer.is_global_zero:
            with suppress(OSError):
                (Path(trainer.default_root_dir) / results.HEARTBEAT).unlink(missing_ok=True)

    def _line_of_epoch(self, trainer: L.Trainer) -> None:
        """Log a line with the metrics of the epoch; the Trainer also keeps those of an earlier validation."""
        metrics = dict(trainer.logged_metrics)
        if not self.validated:
            for name in trainer.logged_metrics:
                if name.startswith("val/"):
                    del metrics[name]
        self.validated = False
        self._line(trainer, trainer.current_epoch, metrics)

    def _line(self, trainer: L.Trainer, epoch: int, metrics: Mapping[str, Any]) -> None:
        self.last = time.monotonic()
        shown = format_metrics(metrics)
        if trainer.is_global_zero and trainer.global_step and shown:
            step, total = trainer.global_step, self.left.total
            done = f"step {step}/{total} ({_percent(step, total)})"
            line = f"epoch {epoch}  {done}  {shown}  {self.left.text(trainer)}"
            log.info("%s", line.rstrip())


def _percent(done: int, total: float) -> str:
    """Return the finished share, rounded down, so that 100 % means the end."""
    return f"{int(100 * done / total)} %"


def format_metrics(metrics: Mapping[str, Any]) -> str:
    """Format the training loss, training error and validation error: ``loss 0.25  error 12.50 %, val 13.10 %``.

    For a network that does not classify, the validation loss replaces the errors.
    """
    parts = []
    if "train/loss" in metrics:
        loss = f"loss {float(metrics['train/loss']):.4g}"
        if "val/loss" in metrics and "val/error" not in metrics:
            loss += f", val {float(metrics['val/loss']):.4g}"
        parts.append(loss)
    errors = []
    if "train/error" in metrics:
        errors.append(f"{float(metrics['train/error']):.2f} %")
    if "val/error" in metrics:
        errors.append(f"val {float(metrics['val/error']):.2f} %")
    if errors:
        parts.append(f"error {', '.join(errors)}")
    return "  ".join(parts)


class ProgressBar(ProgressLines):
    """The lines of ``ProgressLines``, and below them a bar over the steps of the run, which is removed at the end.

    The bar takes one line at any width: below 65 columns it shows only steps and remaining time. A test has a separate
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
        is_end = self.progress is not None and step == total
        if not is_end and not self._is_due():
            return
        epoch = f"epoch {trainer.current_epoch + 1}"
        if trainer.max_epochs is not None and trainer.max_epochs > 0:
            epoch += f"/{trainer.max_epochs}"
        metrics = f"loss {float(outputs['loss']):.4g}"
        logged = trainer.logged_metrics
        if "val/error" in logged:
            metrics += f"  val error {float(logged['val/error']):.2f} %"
        elif "val/loss" in logged:
            metrics += f"  val loss {float(logged['val/loss']):.4g}"
        self._draw(epoch, step, total, metrics, self.left.text(trainer))

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
            description = f"validation {number + 1}/{trainer.num_val_batches[loader]}"
            step, left = trainer.global_step, self.left.text(trainer)
            self._draw(description, step, self.left.total, left=left)

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
        steps = MofNCompleteColumn(table_column=Column(no_wrap=True))
        percent = TextColumn("{task.fields[percent]}", table_column=Column(no_wrap=True))
        left = TextColumn("{task.fields[left]}")
        columns: list[ProgressColumn] = [steps, left]
        if console.width >= 65:  # ours: width of epoch, steps, percent, metrics and remaining time
            description = TextColumn("{task.description}")
            metrics = TextColumn("{task.fields[metrics]}")
            columns = [description, BarColumn(bar_width=None), steps, percent, metrics, left]
        self.progress = Progress(*columns, console=console, auto_refresh=False, transient=True)
        self.progress.expand = len(columns) > 2
        self.progress.add_task("", percent="", metrics="", left="", total=None)
        stdout, stderr = sys.stdout, sys.stderr
        self.progress.start()  # replaces both, to write above the bar, but not those of handlers
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler):
                self._redirect(handler, stdout, sys.stdout)
                self._redirect(handler, stderr, sys.stderr)
        self.drawn_at = 0.0

    def _redirect(
        self, handler: logging.StreamHandler[TextIO], stream: TextIO, replacement: TextIO
    ) -> None:
        if handler.stream is stream:
            self.streams.append((handler, stream))
            handler.setStream(replacement)

    def _is_due(self) -> bool:
        """Whether to redraw: at most twice a second (ours), since reading the loss waits for the device."""
        return self.progress is not None and time.monotonic() - self.drawn_at > 0.5

    def _draw(
        self, description: str, done: int, total: float, metrics: str = "", left: str = ""
    ) -> None:
        assert self.progress is not None
        (task,) = self.progress.task_ids
        self.progress.update(
            task,
            description=description,
            completed=done,
            total=total,
            percent=_percent(done, total),
            metrics=metrics,
            left=left,
        )
        self.progress.refresh()
        self.drawn_at = time.monotonic()

    def _stop(self) -> None:
        if self.progress is not None:
            self.progress.stop()
        for handler, stream in self.streams:
            handler.setStream(stream)
        self.progress = None
        self.streams = []


def progress_callback() -> Callback:
    """Return ``ProgressBar`` on a terminal and in a notebook with ipywidgets, else ``ProgressLines``."""
    # without ipywidgets, rich would print a warning instead of a bar
    in_notebook = Console().is_jupyter and find_spec("ipywidgets") is not None
    return ProgressBar() if sys.stdout.isatty() or in_notebook else ProgressLines()
