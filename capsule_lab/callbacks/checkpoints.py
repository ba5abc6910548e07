"""Checkpoints: written whole, carrying their configuration, kept up to date when a signal stops the run."""

from __future__ import annotations

import logging
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback, Checkpoint, ModelCheckpoint
from omegaconf import DictConfig

from capsule_lab.atomic import atomically
from capsule_lab.environment import command_line
from capsule_lab.errors import InterruptError
from capsule_lab.runs.checkpoints import embed
from capsule_lab.runs.results import split_metrics
from capsule_lab.runs.signals import SIGNALS
from capsule_lab.types import DataSpec

log = logging.getLogger(__name__)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its target and renames it; Lightning's own may leave a torn file."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomically(target) as temporary:
            torch.save(checkpoint, temporary)


class EmbedConfig(Callback):
    """Puts the plain configuration, the data's provenance, time and last validation into every checkpoint.

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
        self.started: float | None = None

    @property
    def seconds(self) -> float:
        """Training time so far, over all interruptions."""
        return self.seconds_before + (time.monotonic() - self.started if self.started else 0)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.started = time.monotonic()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.seconds_before, self.started = self.seconds, None

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["capsule_lab"] = embed(self.config, self.provenance, self.spec, self.seconds, self.val)

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn != "fit":
            return  # the weights to test may be older than the training was
        self.seconds_before = checkpoint["capsule_lab"]["seconds"]
        self.val = checkpoint["capsule_lab"]["val"]

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.val = split_metrics(trainer.logged_metrics, "val")


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
        """A run that was moved still knows its best; one that goes on elsewhere starts without."""
        best = Path(str(self.dirpath)) / "best.ckpt"
        if not best.is_file():
            return
        paths = ("best_model_path", "kth_best_model_path", "last_model_path")
        here = {name: str(best) if state_dict.get(name) else "" for name in paths}
        scores = {str(best): score for score in state_dict["best_k_models"].values()}
        super().load_state_dict({**state_dict, **here, "dirpath": self.dirpath, "best_k_models": scores})


class LastCheckpoint(Checkpoint):
    """Keeps ``checkpoints/last.ckpt``, and leaves it up to date when a signal stops the run.

    Ctrl-C, SIGTERM and SIGUSR1 stop after the current step, or after the validation pass that is under way, so that the
    run continues exactly. A second signal stops at once.

    Args:
        every_minutes: how old the checkpoint may become.
    """

    def __init__(self, every_minutes: float = 5.0) -> None:
        self.every_minutes = every_minutes
        self.received: int | None = None
        self.stopping = False
        self.saved_at = 0.0
        self.before: dict[int, Any] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.saved_at = time.monotonic()
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self._note) for number in SIGNALS}

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        between = not trainer.is_last_batch and not _validation_follows(trainer, batch_idx)
        if between and (batch_idx + 1) % trainer.accumulate_grad_batches == 0:  # gradients are not in a checkpoint
            self._save_if_due(trainer, 60 * self.every_minutes)  # 60 s a minute
            self._stop_if_asked(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._save_if_due(trainer, 60 * min(self.every_minutes, 0.5))  # ours: sooner, the epoch is complete

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop_if_asked(trainer)  # not at the end of the epoch, whose metrics are logged only after that hook

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._restore()
        self._save(trainer)
        self._stop_if_asked(trainer)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._restore()

    def _save_if_due(self, trainer: L.Trainer, oldest: float) -> None:
        asked, due = self.received is not None, time.monotonic() - self.saved_at > oldest
        if trainer.world_size > 1:  # all or none
            if not trainer.is_last_batch and trainer.global_step % 10:  # ours: not a conversation at every step
                return
            asked = trainer.strategy.reduce_boolean_decision(asked, all=False)
            due = trainer.strategy.reduce_boolean_decision(due, all=False)
        self.stopping = asked
        if asked or due:
            self._save(trainer)

    def _stop_if_asked(self, trainer: L.Trainer) -> None:
        if self.stopping:
            signum = self.received or signal.SIGTERM
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

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.received is not None:
            self._restore()
            raise InterruptError("stopped at once; train.resume=true continues from the last checkpoint", signum)
        self.received = signum
        log.warning("%s: stopping after this step; once more to stop at once", signal.Signals(signum).name)

    def _restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}


def _validation_follows(trainer: L.Trainer, batch_idx: int) -> bool:
    """A checkpoint written between a step and the validation after it would resume without that validation."""
    index = batch_idx if trainer.check_val_every_n_epoch is not None else trainer.fit_loop.total_batch_idx
    return trainer.enable_validation and (index + 1) % (trainer.val_check_batch or 1) == 0
