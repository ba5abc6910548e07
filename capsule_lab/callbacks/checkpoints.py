"""Checkpoints: written atomically, with their configuration inside, up to date when a signal stops the run."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback, Checkpoint, ModelCheckpoint
from omegaconf import DictConfig

from capsule_lab.atomic import atomically
from capsule_lab.callbacks.csv_logger import MetricsTable
from capsule_lab.callbacks.stop_signals import StopSignals
from capsule_lab.environment import command_line
from capsule_lab.errors import InterruptError, check_number
from capsule_lab.lightning_internals import epoch_metrics, next_batch_follows, relocated_state
from capsule_lab.runs.checkpoints import embed, not_readable, verify
from capsule_lab.runs.directories import directory_of
from capsule_lab.runs.files import writing
from capsule_lab.runs.results import split_metrics
from capsule_lab.types import DataSpec


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint whole or not at all, and compares one with its checksums before it is loaded.

    Lightning's own may leave a truncated file, and loads a damaged one.

    Raises:
        RunError: if a checkpoint cannot be written, or is damaged.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        with writing(Path(path)), atomically(Path(path)) as temporary:
            try:
                torch.save(checkpoint, temporary)
            except RuntimeError as error:  # of torch's writer, which does not say why
                raise OSError("torch's writer failed, as on a full disk or beyond a limit of file sizes") from error

    def load_checkpoint(self, path: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        verify(Path(path))
        try:
            return super().load_checkpoint(path, *arguments, **options)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # of pickle and of torch's reader
            raise not_readable(Path(path), type(error).__name__) from error


class EmbedConfig(Callback):
    """Puts the plain configuration, the data's provenance, time, last validation and curves into every checkpoint.

    Args:
        config: the whole configuration.
        provenance: of the data, as the DataModule holds it.
        spec: facts of the data that the network was built from.
    """

    def __init__(self, config: DictConfig, provenance: dict[str, Any], spec: DataSpec) -> None:
        self.config = config
        self.provenance = provenance
        self.spec = spec
        self.seconds_before = 0.0
        self.val: dict[str, float] = {}
        self.val_step: int | None = None
        self.epoch_ends = False
        self.started: float | None = None

    @property
    def seconds(self) -> float:
        """Training time so far, over all interruptions."""
        return self.seconds_before + (time.monotonic() - self.started if self.started else 0)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.started = time.monotonic()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.seconds_before, self.started, self.epoch_ends = self.seconds, None, False

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.epoch_ends = False

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.epoch_ends = True  # before any callback that saves: Lightning logs the epoch after this hook

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        following = epoch_metrics(trainer) if self.epoch_ends else None
        curves = "".join(table.content(following) for table in _tables(trainer))
        checkpoint["capsule_lab"] = embed(
            self.config, self.provenance, self.spec, self.seconds, self.val, self.val_step, curves
        )

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn != "fit":
            return  # of a test, whose weights may be older than the end of training
        record = checkpoint["capsule_lab"]
        self.seconds_before = record["seconds"]
        self.val, self.val_step = record["val"], record.get("val_step")
        for table in _tables(trainer):  # those of a run that continues in another directory begin there
            if directory_of(Path(str(trainer.ckpt_path))) == Path(trainer.default_root_dir).absolute():
                table.restore(record.get("curves", ""))

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.val, self.val_step = split_metrics(trainer.logged_metrics, "val"), trainer.global_step


def _tables(trainer: L.Trainer) -> list[MetricsTable]:
    return [logger for logger in trainer.loggers if isinstance(logger, MetricsTable)]


class BestCheckpoint(ModelCheckpoint):
    """Keeps ``checkpoints/best.ckpt``: lowest ``monitor`` of all validations.

    Args:
        monitor: a logged quantity.
        mode: ``"min"`` or ``"max"``.
    """

    def __init__(self, monitor: str = "val/error", mode: str = "min") -> None:
        super().__init__(filename="best", monitor=monitor, mode=mode, enable_version_counter=False)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.dirpath = str(Path(trainer.default_root_dir) / "checkpoints")
        super().setup(trainer, pl_module, stage)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """A run that was moved still knows its best; one that continues in another directory starts without."""
        best = Path(str(self.dirpath)) / "best.ckpt"
        if best.is_file():
            super().load_state_dict(relocated_state(state_dict, str(best), str(self.dirpath)))


class LastCheckpoint(Checkpoint):
    """Keeps ``checkpoints/last.ckpt``, and leaves it up to date when a signal stops the run.

    A run that resumes from it continues exactly. A checkpoint is therefore saved between two optimizer steps with
    nothing else between them, behind an epoch that is not the last, and at the end of the run: not where gradients
    are accumulated, as they are not in a checkpoint, and neither between a step and its validation nor between the
    last step and the end of the run, which a resumed run would leave out. A signal waits until then.
    ``InterruptError`` is raised after a step or before the next epoch, not at the end of one, as Lightning logs its
    metrics after that hook.

    Args:
        every_minutes: how old the checkpoint may become.

    Raises:
        ValueError: for a negative ``every_minutes``.
    """

    def __init__(self, every_minutes: float = 5.0) -> None:
        check_number("every_minutes", every_minutes, 0)
        self.every_minutes = every_minutes
        self.signals = StopSignals()
        self.stopping = False
        self.saved_at = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.saved_at = time.monotonic()
        self.signals.install()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        is_between = (batch_idx + 1) % trainer.accumulate_grad_batches == 0 and next_batch_follows(trainer)
        in_turn = trainer.world_size == 1 or trainer.global_step % 10 == 0  # ours: processes ask each other seldom
        if is_between and in_turn:
            if self._is_due(trainer, 60 * self.every_minutes):
                self._save(trainer)
            self._stop_if_requested(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # from the last epoch's a run would not resume to its end: `on_train_end` saves
        is_last = trainer.should_stop or 0 < (trainer.max_epochs or -1) <= trainer.current_epoch + 1
        if self._is_due(trainer, 60 * min(self.every_minutes, 0.5)) and not is_last:  # ours: sooner, it is complete
            self._save(trainer)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop_if_requested(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._is_due(trainer, 0)
        self._save(trainer)
        self.signals.restore()
        self._stop_if_requested(trainer)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self.signals.restore()

    def _is_due(self, trainer: L.Trainer, seconds: float) -> bool:
        """Whether a signal came, which is noted, or the last checkpoint is older; the same in all processes."""
        requested, due = self.signals.received is not None, time.monotonic() - self.saved_at > seconds
        if trainer.world_size > 1:
            requested = trainer.strategy.reduce_boolean_decision(requested, all=False)
            due = trainer.strategy.reduce_boolean_decision(due, all=False)
        self.stopping = requested
        return requested or due

    def _stop_if_requested(self, trainer: L.Trainer) -> None:
        if self.stopping:
            signum = self.signals.received or signal.SIGTERM  # another process may have got it
            raise InterruptError(
                f"stopped by {signal.Signals(signum).name} at step {trainer.global_step}, saved in "
                f"{self._path(trainer)}; to continue exactly: {command_line('train.resume=true')}",
                signum,
            )

    def _save(self, trainer: L.Trainer) -> None:
        trainer.save_checkpoint(self._path(trainer))
        self.saved_at = time.monotonic()

    def _path(self, trainer: L.Trainer) -> Path:
        return Path(trainer.default_root_dir) / "checkpoints" / "last.ckpt"
