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
        trained_with: the device, the hardware, the precision and the commit of every process start that made a step,
            each without repetitions: a run may continue on another machine.
    """

    def __init__(
        self,
        config: DictConfig,
        provenance: dict[str, Any],
        spec: DataSpec,
        input_form: dict[str, Any],
    ) -> None:
        self.config = config
        self.provenance = provenance
        self.spec = spec
        self.input_form = input_form
        self.seconds_before = self.cpu_seconds_before = 0.0
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
        return self.seconds_before + (time.monotonic() - self.start_time if self.start_time else 0)

    @property
    def cpu_seconds(self) -> float:
        """CPU time so far, summed over threads and interruptions; other work on the machine hardly affects it."""
        return self.cpu_seconds_before + (
            time.process_time() - self.cpu_start_time if self.start_time else 0
        )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.start_time, self.cpu_start_time = time.monotonic(), time.process_time()

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        if self.is_recorded:
            return
        self.is_recorded = True
        for name, value in environment.facts_of_trainer(trainer).items():
            known = self.trained_with.get(name, [])
            self.trained_with[name] = known if value in known else [*known, value]

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.seconds_before, self.cpu_seconds_before = self.seconds, self.cpu_seconds
        self.start_time, self.epoch_ends = None, False

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.epoch_ends = False

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.epoch_ends = (
            True  # before other callbacks save: Lightning logs the epoch after this hook
        )

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
        self.seconds_before, self.cpu_seconds_before = record["seconds"], record["cpu_seconds"]
        self.steps_before = checkpoint["global_step"]
        self.trained_with = dict(record.get("trained_with", {}))  # older records have none
        self.val, self.val_step = record["val"], record["val_step"]
        current, self.threads = self.threads, record["threads"]
        if current != self.threads and trainer.strategy.root_device.type == "cpu":
            log.warning(
                "training began on %s threads and continues on %s, which rounds sums differently: results differ in "
                "their last bits; set OMP_NUM_THREADS=%s to continue exactly", self.threads, current, self.threads,
            )  # fmt: skip
        for table in _tables(
            trainer
        ):  # a run that continues in another directory begins new tables
            if (
                directory_of(Path(str(trainer.ckpt_path)))
                == Path(trainer.default_root_dir).absolute()
            ):
                table.restore(record["curves"])

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.val, self.val_step = split_metrics(trainer.logged_metrics, "val"), trainer.global_step


def _tables(trainer: L.Trainer) -> list[MetricsTable]:
    return [logger for logger in trainer.loggers if isinstance(logger, MetricsTable)]


class BestCheckpoint(ModelCheckpoint):
    """Keeps ``checkpoints/best.ckpt``, from the validation with the lowest or highest ``monitor``."""

    def __init__(self, monitor: str = "val/error", mode: str = "min") -> None:
        super().__init__(filename="best", monitor=monitor, mode=mode, enable_version_counter=False)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.dirpath = str(Path(trainer.default_root_dir) / "checkpoints")
        super().setup(trainer, pl_module, stage)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best score, also after the run was moved, but not if it continues in another directory."""
        best = Path(str(self.dirpath)) / "best.ckpt"
        if best.is_file():
            super().load_state_dict(relocated_state(state_dict, str(best), str(self.dirpath)))


class LastCheckpoint(Checkpoint):
    """Keeps ``checkpoints/last.ckpt``, and updates it when a signal stops the run or its time is over.

    A run that resumes from it continues exactly. A checkpoint is therefore saved only where resuming skips nothing:
    between two optimizer steps, after an epoch except the last, and at the end of the run; not while gradients are
    accumulated, nor between a step and its validation, nor between the last step and the end of the run. A signal
    (``InterruptError``) and the time limit (``PauseError``, see ``pause_at``) take effect at the next such point. The
    error is raised after a step or before the next epoch, because Lightning logs the metrics of an epoch only after the
    hook at its end. At the time limit, a test ends without a result, unless ``completes_test`` is set.
    A new checkpoint is saved if the last one is older than ``every_minutes``.
    """

    def __init__(self, every_minutes: float = 5.0) -> None:
        check_number("every_minutes", every_minutes, 0)
        self.every_minutes = every_minutes
        self.signals = StopRequest()
        self.stopping = self.pausing = False
        self.saved_at = self.save_seconds = 0.0
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
        is_between = (batch_idx + 1) % trainer.accumulate_grad_batches == 0 and next_batch_follows(
            trainer
        )
        in_turn = (
            trainer.world_size == 1 or trainer.global_step % 10 == 0
        )  # ours: rare communication
        if is_between and in_turn:
            if self._is_due(trainer, 60 * self.every_minutes):
                self._save(trainer)
            self._stop_if_requested(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # not after the last epoch, from which a run would not resume to its end: `on_train_end` saves
        is_last = trainer.should_stop or 0 < (trainer.max_epochs or -1) <= trainer.current_epoch + 1
        if (
            self._is_due(trainer, 60 * min(self.every_minutes, 0.5)) and not is_last
        ):  # ours: sooner after an epoch
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
        if (
            self.completes_test or trainer.world_size > 1
        ):  # several ranks may have different numbers of batches
            return
        if self._time_is_over():
            raise PauseError

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        self.signals.restore()

    def _is_due(self, trainer: L.Trainer, seconds: float) -> bool:
        """Whether the run must end, or the last checkpoint is older than ``seconds``; equal in all processes.

        In most cases neither is true; then a single reduction, in which processes wait for each other, suffices.
        """
        requested, over = self.signals.received is not None, self._time_is_over()
        is_due = _any_rank(trainer, requested or over or time.monotonic() - self.saved_at > seconds)
        self.stopping = is_due and _any_rank(trainer, requested)
        self.pausing = is_due and _any_rank(trainer, over)
        return is_due

    def _time_is_over(self) -> bool:
        """Whether this process only has time left for a save."""
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
    """Let the run save and end with ``PauseError`` as late before ``deadline`` (``time.monotonic``) as steps allow.

    The current step, and a validation that follows it, are completed; with ``completes_test`` also a test.
    """
    savers = [
        callback
        for callback in trainer.checkpoint_callbacks
        if isinstance(callback, LastCheckpoint)
    ]
    if not savers:
        raise ConfigError(
            "trainer.max_time is set, but no callback saves the run at this time; expected callbacks.last"
        )
    for saver in savers:
        saver.deadline, saver.completes_test = deadline, completes_test


def _path(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "checkpoints" / "last.ckpt"


def _any_rank(trainer: L.Trainer, value: bool) -> bool:
    """Return whether ``value`` is true in any process of the run."""
    return (
        value
        if trainer.world_size == 1
        else trainer.strategy.reduce_boolean_decision(value, all=False)
    )
