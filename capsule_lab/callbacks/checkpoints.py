"""Checkpoints: written atomically, with their configuration, and up to date when a signal stops the run."""

from __future__ import annotations

import dataclasses
import logging
import math
import signal
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback, Checkpoint, ModelCheckpoint
from omegaconf import DictConfig

from capsule_lab.callbacks.csv_logger import MetricsTable
from capsule_lab.config.composition import to_container
from capsule_lab.errors import ConfigError, InterruptError, PauseError, check_number
from capsule_lab.lit.lightning_internals import epoch_metrics, next_batch_follows, relocated_state
from capsule_lab.runs.checkpoints import FORMAT
from capsule_lab.runs.directories import directory_of
from capsule_lab.runs.files import writing
from capsule_lab.runs.results import split_metrics
from capsule_lab.system import environment
from capsule_lab.system.environment import command_line, package_version
from capsule_lab.system.files import atomically
from capsule_lab.system.signals import StopRequest
from capsule_lab.types import DataSpec

log = logging.getLogger(__name__)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint completely or not at all; Lightning's writer may leave a truncated file."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        with writing(Path(path)), atomically(Path(path)) as temporary:
            try:
                torch.save(checkpoint, temporary)
            except RuntimeError as error:  # from torch's writer, which gives no reason
                raise OSError(
                    "torch's writer failed, possibly due to a full disk or a limit of file sizes"
                ) from error


class EmbedConfig(Callback):
    """Adds configuration, provenance, input form, time, precision, last validation and curves to every checkpoint.

    Attributes:
        start_from: record of the initial weights, see ``runs.initial_weights``; ``None`` if they are random.
        trained_with: the device, the hardware, the precision and the commit of every process start that made a step,
            each without repetitions: a run may continue on another machine.
    """

    def __init__(
        self,
        config: DictConfig,
        provenance: dict[str, Any],
        spec: DataSpec,
        input_form: dict[str, Any],
        class_counts: list[int],
        start_from: dict[str, Any] | None = None,
    ) -> None:
        self.config = config
        self.provenance = provenance
        self.spec = spec
        self.input_form = input_form
        self.class_counts = class_counts
        self.start_from = start_from
        self.seconds_before = 0.0
        self.cpu_seconds_before = 0.0
        self.steps_before = 0
        self.val: dict[str, float] = {}
        self.val_step: int | None = None
        self.epoch_ends = False
        self.start_time: float | None = None
        self.cpu_start_time = 0.0
        self.threads = torch.get_num_threads()
        self.trained_with: dict[str, list[Any]] = {}
        self.is_recorded = False

    @property
    def seconds(self) -> float:
        """Training time so far, summed over interruptions."""
        if self.start_time is None:
            return self.seconds_before
        return self.seconds_before + time.monotonic() - self.start_time

    @property
    def cpu_seconds(self) -> float:
        """CPU time so far, summed over threads and interruptions; other work on the machine hardly affects it."""
        if self.start_time is None:
            return self.cpu_seconds_before
        return self.cpu_seconds_before + time.process_time() - self.cpu_start_time

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.start_time = time.monotonic()
        self.cpu_start_time = time.process_time()

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        if self.is_recorded:
            return
        self.is_recorded = True
        for name, value in environment.facts_of_trainer(trainer).items():
            known = self.trained_with.setdefault(name, [])
            if value not in known:
                known.append(value)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.seconds_before = self.seconds
        self.cpu_seconds_before = self.cpu_seconds
        self.start_time = None
        self.epoch_ends = False

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.epoch_ends = False

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # set before other callbacks save: Lightning logs the epoch after this hook
        self.epoch_ends = True

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["capsule_lab"] = self.record(trainer)

    def record(self, trainer: L.Trainer) -> dict[str, Any]:
        """Return what a checkpoint of this moment contains, in plain containers."""
        following = epoch_metrics(trainer) if self.epoch_ends else None
        return {  # precision: the value of auto here; threads: at the start of training
            "format": FORMAT,
            "version": package_version(),
            "config": to_container(self.config),
            "provenance": self.provenance,
            "spec": dataclasses.asdict(self.spec),
            "input_form": self.input_form,
            "class_counts": self.class_counts,
            "start_from": self.start_from,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "val": self.val,
            "val_step": self.val_step,
            "curves": "".join(table.content(following) for table in _tables(trainer)),
            "precision": trainer.precision,
            "threads": self.threads,
            "trained_with": self.trained_with,
        }

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if trainer.state.fn != "fit":
            return  # in a test, the weights may be older than the end of training
        record = checkpoint["capsule_lab"]
        self.seconds_before = record["seconds"]
        self.cpu_seconds_before = record["cpu_seconds"]
        self.steps_before = checkpoint["global_step"]
        # older records have neither
        self.start_from = record.get("start_from")
        trained_with = record.get("trained_with", {})
        self.trained_with = {name: [*values] for name, values in trained_with.items()}
        self.val = record["val"]
        self.val_step = record["val_step"]
        self._restore_threads(record["threads"], trainer)
        for table in _tables(trainer):
            if _continues_in_its_directory(trainer):  # otherwise new tables begin there
                table.restore(record["curves"])

    def _restore_threads(self, threads: int, trainer: L.Trainer) -> None:
        current = self.threads
        self.threads = threads
        if current != threads and trainer.strategy.root_device.type == "cpu":
            log.warning(
                "training began on %s threads and continues on %s, which rounds sums differently: results differ in "
                "their last bits; set OMP_NUM_THREADS=%s to continue exactly",
                threads,
                current,
                threads,
            )

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.val = split_metrics(trainer.logged_metrics, "val")
        self.val_step = trainer.global_step


def _continues_in_its_directory(trainer: L.Trainer) -> bool:
    checkpoint = Path(str(trainer.ckpt_path))
    return directory_of(checkpoint) == Path(trainer.default_root_dir).absolute()


def _tables(trainer: L.Trainer) -> list[MetricsTable]:
    return [logger for logger in trainer.loggers if isinstance(logger, MetricsTable)]


class BestCheckpoint(ModelCheckpoint):
    """Keeps ``checkpoints/best.ckpt``, from the validation with the lowest or highest ``monitor``."""

    def __init__(self, monitor: str = "val/error", mode: str = "min") -> None:
        super().__init__(filename="best", monitor=monitor, mode=mode, enable_version_counter=False)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.dirpath = str(Path(trainer.default_root_dir) / "checkpoints")
        super().setup(trainer, pl_module, stage)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save unless there is no validation, after which Lightning would warn that ``monitor`` is missing."""
        if self.monitor in trainer.callback_metrics or any(trainer.num_val_batches):
            super().on_train_epoch_end(trainer, pl_module)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best score, also after the run was moved, but not if it continues in another directory."""
        best = Path(str(self.dirpath)) / "best.ckpt"
        if best.is_file():
            super().load_state_dict(relocated_state(state_dict, str(best), str(self.dirpath)))


class LastCheckpoint(Checkpoint):
    """Saves ``checkpoints/last.ckpt`` every few minutes, and before a signal or the time limit ends the run.

    A run that resumes from this file continues exactly. The file is therefore saved only where nothing is half done:
    between two optimizer steps, after any epoch but the last, and at the end of the run. It is not saved while
    gradients are accumulated, between a step and its validation, or between the last step and the end of the run.

    When a signal arrives or the time is over, the run goes on to the next of these places, saves, and raises
    ``InterruptError`` or ``PauseError``. At the end of an epoch, the error is raised only before the next epoch,
    because Lightning logs the metrics of an epoch after the hook at its end.

    Args:
        every_minutes: save again when the file is older than this.

    Attributes:
        deadline: when the time is over, in seconds of ``time.monotonic``; see ``pause_at``.
        completes_test: whether a test continues after the deadline; otherwise it ends without a result.
    """

    def __init__(self, every_minutes: float = 5.0) -> None:
        check_number("every_minutes", every_minutes, 0)
        self.every_minutes = every_minutes
        self.signals = StopRequest()
        self.stopping = False
        self.pausing = False
        self.saved_at = 0.0
        self.save_seconds = 0.0
        self.deadline = math.inf
        self.completes_test = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.saved_at = time.monotonic()
        self.signals.install()
        if _any_rank(trainer, self._time_is_over()):  # without changing the checkpoint
            raise PauseError

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches or not next_batch_follows(trainer):
            return
        # ours: several processes ask each other only every ten steps, because each waits for the slowest
        if trainer.world_size > 1 and trainer.global_step % 10:
            return
        if self._is_due(trainer, 60 * self.every_minutes):
            self._save(trainer)
        self._stop_if_requested(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        max_epochs = trainer.max_epochs or -1
        is_last = trainer.should_stop or 0 < max_epochs <= trainer.current_epoch + 1
        minutes = min(self.every_minutes, 0.5)  # ours: sooner than within an epoch
        # after the last epoch, `on_train_end` saves: a run would not resume from here to its end
        if self._is_due(trainer, 60 * minutes) and not is_last:
            self._save(trainer)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop_if_requested(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._is_due(trainer, 0)
        self._save(trainer)
        self.signals.restore()
        if self.completes_test:
            self.pausing = False  # training is complete
        self._stop_if_requested(trainer)

    def on_test_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        several = trainer.world_size > 1  # their numbers of batches may differ
        if self._time_is_over() and not self.completes_test and not several:
            raise PauseError

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        self.signals.restore()

    def _is_due(self, trainer: L.Trainer, seconds: float) -> bool:
        """Whether the run must end, or the last checkpoint is older than ``seconds``; equal in all processes.

        In most cases neither is true; then a single reduction, in which processes wait for each other, suffices.
        """
        requested = self.signals.received is not None
        over = self._time_is_over()
        is_old = time.monotonic() - self.saved_at > seconds
        is_due = _any_rank(trainer, requested or over or is_old)
        self.stopping = is_due and _any_rank(trainer, requested)
        self.pausing = is_due and _any_rank(trainer, over)
        return is_due

    def _time_is_over(self) -> bool:
        """Whether the time that is left is only enough for a save."""
        return self.deadline < math.inf and time.monotonic() + self.save_seconds >= self.deadline

    def _stop_if_requested(self, trainer: L.Trainer) -> None:
        if self.stopping:
            signum = self.signals.received or signal.SIGTERM  # another process may have received it
            raise InterruptError(
                f"stopped by {signal.Signals(signum).name} at step {trainer.global_step}, saved in "
                f"{_path(trainer)}; to continue exactly: {command_line('train.resume=true')}",
                signum,
            )
        if self.pausing:
            raise PauseError

    def _save(self, trainer: L.Trainer) -> None:
        start_time = time.monotonic()
        trainer.save_checkpoint(_path(trainer))
        self.saved_at = time.monotonic()
        self.save_seconds = self.saved_at - start_time


def pause_at(trainer: L.Trainer, deadline: float, *, completes_test: bool = False) -> None:
    """Make the run save and raise ``PauseError`` before ``deadline``, in seconds of ``time.monotonic``.

    This happens after the last step that leaves enough time for a save. The current step, and a validation that follows
    it, are completed; with ``completes_test`` also a test.
    """
    callbacks = trainer.checkpoint_callbacks
    savers = [callback for callback in callbacks if isinstance(callback, LastCheckpoint)]
    if not savers:
        raise ConfigError(
            "trainer.max_time is set, but no callback saves the run at this time; expected callbacks.last"
        )
    for saver in savers:
        saver.deadline = deadline
        saver.completes_test = completes_test


def _path(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "checkpoints" / "last.ckpt"


def _any_rank(trainer: L.Trainer, value: bool) -> bool:
    """Return whether ``value`` is true in any process of the run."""
    if trainer.world_size == 1:
        return value
    return trainer.strategy.reduce_boolean_decision(value, all=False)
