"""What happens around training: checkpoints, progress, guards, pictures."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback, Checkpoint, ModelCheckpoint, RichProgressBar
from lightning.pytorch.callbacks.progress.rich_progress import RichProgressBarTheme
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from matplotlib.figure import Figure
from omegaconf import DictConfig
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix

from capsule_lab.analysis.reconstructions import reconstruction_sheet
from capsule_lab.build import Interrupted
from capsule_lab.lit import AbstractCapsuleModule
from capsule_lab.metrics import CouplingEntropy, DeadCapsuleRate
from capsule_lab.networks import CapsNet
from capsule_lab.runs import embed
from capsule_lab.types import Batch, DataSpec, RoutingTrace

log = logging.getLogger(__name__)


class NonFiniteError(ArithmeticError):
    """A term of the loss is not a number."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its target and renames it; Lightning's own may leave a torn file."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            torch.save(checkpoint, partial)
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)


class EmbedConfig(Callback):
    """Puts the plain configuration, the provenance of the data and the time spent into every checkpoint.

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
        checkpoint["capsule_lab"] = embed(self.config, self.provenance, self.spec, self.seconds)

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        self.seconds_before = checkpoint["capsule_lab"]["seconds"]


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

    def _ModelCheckpoint__warn_if_dir_not_empty(self, dirpath: Any) -> None:
        """A run that goes on finds its own checkpoints."""


class LastCheckpoint(Checkpoint):
    """Keeps ``checkpoints/last.ckpt``, and leaves it up to date when a signal stops the run.

    Ctrl-C and SIGTERM stop after the current step, or after the validation pass that is under way, so that the
    run continues exactly. A second signal stops at once.

    Args:
        every_minutes: how old the checkpoint may become.
    """

    signals = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, every_minutes: float = 5.0) -> None:
        self.every_minutes = every_minutes
        self.received: int | None = None
        self.saved_at = 0.0
        self.before: dict[int, Any] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.saved_at = time.monotonic()
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self._note) for number in self.signals}

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        together = trainer.world_size > 1
        if together and trainer.global_step % 10:  # ours: processes agree on a stop every 10 steps
            return
        stop = self.received is not None
        due = time.monotonic() - self.saved_at > 60 * self.every_minutes  # 60 s a minute
        if together:
            stop = trainer.strategy.reduce_boolean_decision(stop, all=False)
            due = trainer.strategy.reduce_boolean_decision(due, all=False)
        self._save_if(trainer, due, stop)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        due = time.monotonic() - self.saved_at > 60 * min(self.every_minutes, 0.5)  # ours: a cheap moment
        stop = self.received is not None
        if trainer.world_size > 1:
            stop = trainer.strategy.reduce_boolean_decision(stop, all=False)
            due = trainer.strategy.reduce_boolean_decision(due, all=False)
        self._save_if(trainer, due, stop)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._restore()
        self._save_if(trainer, True, False)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._restore()

    def _save_if(self, trainer: L.Trainer, due: bool, stop: bool) -> None:
        if not due and not stop:
            return
        path = Path(trainer.default_root_dir) / "checkpoints" / "last.ckpt"
        trainer.save_checkpoint(path)
        self.saved_at = time.monotonic()
        if stop:
            signum = self.received or signal.SIGTERM
            raise Interrupted(
                f"stopped by {signal.Signals(signum).name} at step {trainer.global_step}; the same command with "
                f"train.resume=true continues exactly from {path}",
                signum,
            )

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.received is not None:
            self._restore()
            raise KeyboardInterrupt
        self.received = signum
        log.warning("%s: stopping after this step; once more to stop at once", signal.Signals(signum).name)

    def _restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}


class NonFiniteGuard(Callback):
    """Stops training when a term of the loss is not finite, naming the term and the step.

    Args:
        every_n_steps: how often to look; ``None`` looks at every step on a CPU and every 50 steps on an
            accelerator, where looking waits for it. Nothing is saved in between unseen.
    """

    def __init__(self, every_n_steps: int | None = None) -> None:
        self.every_n_steps = every_n_steps
        self.pending: list[tuple[int, dict[str, Tensor]]] = []

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        self.pending.append((trainer.global_step, {name: value.detach() for name, value in outputs.items()}))
        every = self.every_n_steps or (1 if pl_module.device.type == "cpu" else 50)  # ours: as rarely as logging
        if len(self.pending) >= every:
            self._look()

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        self._look()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._look()

    def _look(self) -> None:
        pending, self.pending = self.pending, []
        if not pending or torch.stack([t for _, terms in pending for t in terms.values()]).isfinite().all():
            return
        step, terms = next((s, t) for s, t in pending if not torch.stack(list(t.values())).isfinite().all())
        names = [name for name, value in terms.items() if not value.isfinite()]
        name = next((name for name in names if name != "loss"), "loss")
        raise NonFiniteError(
            f"the {name} term of the loss is {terms[name].item()} at step {step}; try a smaller "
            "schedule.learning_rate.initial, or trainer.precision=32-true; the last checkpoint before it is untouched"
        )


class RoutingStats(Callback):
    """Logs how decided the routing is and how many class capsules no validation image activates."""

    def __init__(self) -> None:
        self.entropy = CouplingEntropy()
        self.dead = DeadCapsuleRate()

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int, *_: Any
    ) -> None:
        capsules = outputs["output"].capsules
        if capsules is None:
            return
        self.dead.to(pl_module.device).update(capsules.activations)
        if batch_idx == 0 and isinstance(pl_module.network, CapsNet):
            traces: list[RoutingTrace] = []
            pl_module.network(batch.images[:16], on_iteration=traces.append)  # ours: enough for an average
            self.entropy.to(pl_module.device).update(traces[-1].couplings)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for name, metric in (("coupling_entropy", self.entropy), ("dead_capsules", self.dead)):
            if metric.update_called:
                pl_module.log(f"val/{name}", metric.compute())
                metric.reset()


class Reconstructions(Callback):
    """Draws validation images over their reconstructions, to ``figures/`` and to the loggers.

    Args:
        images: number of images.
    """

    def __init__(self, images: int = 16) -> None:
        self.images = images

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int, *_: Any
    ) -> None:
        network = pl_module.network
        if batch_idx or not isinstance(network, CapsNet) or network.decoder is None or trainer.sanity_checking:
            return
        if trainer.is_global_zero:
            first = Batch(*(part[: self.images] for part in batch))
            figure = reconstruction_sheet(network, first.images, first.labels)
            show_figure(trainer, "val/reconstructions", figure)


class ConfusionMatrix(Callback):
    """Draws the confusion matrix of each validation and test, to ``figures/`` and to the loggers."""

    def __init__(self) -> None:
        self.matrix: MulticlassConfusionMatrix | None = None

    def _update(self, pl_module: L.LightningModule, outputs: Any, batch: Batch) -> None:
        scores = outputs["output"].scores
        if self.matrix is None:
            self.matrix = MulticlassConfusionMatrix(scores.shape[1], validate_args=False)
        self.matrix.to(pl_module.device).update(scores, batch.labels)

    def _draw(self, trainer: L.Trainer, split: str) -> None:
        if self.matrix is None:
            return
        self.matrix.compute()  # every process takes part
        if trainer.is_global_zero and not trainer.sanity_checking:
            figure = Figure(figsize=(6, 6), layout="constrained")  # inches
            self.matrix.plot(ax=figure.add_subplot(), cmap="Blues")
            show_figure(trainer, f"{split}/confusion", figure)
        self.matrix.reset()

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, *_: Any
    ) -> None:
        self._update(pl_module, outputs, batch)

    def on_test_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, *_: Any
    ) -> None:
        self._update(pl_module, outputs, batch)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._draw(trainer, "val")

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._draw(trainer, "test")


def show_figure(trainer: L.Trainer, name: str, figure: Figure) -> None:
    """Write ``figure`` to ``figures/<name>.png`` of the run and to every logger that shows pictures."""
    path = Path(trainer.default_root_dir) / "figures" / f"{name.replace('/', '_')}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.png")
    figure.savefig(partial, dpi=120)  # dots per inch
    os.replace(partial, path)
    for logger in trainer.loggers:
        if isinstance(logger, WandbLogger):
            logger.log_image(name, [str(path)])
        elif isinstance(logger, TensorBoardLogger):
            logger.experiment.add_figure(name, figure, trainer.global_step)


class _TimeLeft:
    """Remaining time of the whole run, from the pace of this one."""

    def start(self, trainer: L.Trainer) -> None:
        self.began, self.first = time.monotonic(), trainer.global_step

    def __call__(self, trainer: L.Trainer) -> str:
        done = trainer.global_step - self.first
        if not done:
            return "?"
        total = trainer.estimated_stepping_batches
        seconds = (time.monotonic() - self.began) / done * (total - trainer.global_step)
        return str(timedelta(seconds=round(max(seconds, 0))))


class ProgressBar(RichProgressBar):
    """Lightning's bar with the remaining time of the whole run."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=10, theme=RichProgressBarTheme(metrics_format=".3f"))
        self.left = _TimeLeft()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self.left.start(trainer)

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        return {**metrics, "run ends in": self.left(trainer)} if trainer.training else dict(metrics)


class ProgressLines(Callback):
    """One line per epoch with its metrics and the remaining time, where the output is no terminal."""

    def __init__(self) -> None:
        self.left = _TimeLeft()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.left.start(trainer)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._line(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._line(trainer)

    def _line(self, trainer: L.Trainer) -> None:
        wanted = ("train/loss", "train/error", "val/loss", "val/error")
        metrics = {name: float(value) for name, value in trainer.logged_metrics.items() if name in wanted}
        if trainer.is_global_zero and trainer.global_step and metrics:
            shown = "  ".join(f"{name} {metrics[name]:.4g}" for name in wanted if name in metrics)
            log.info(
                "epoch %d  step %d/%s  %s  time left %s",
                trainer.current_epoch, trainer.global_step, trainer.estimated_stepping_batches, shown,
                self.left(trainer),
            )  # fmt: skip


def progress() -> Callback:
    """The bar on a terminal, lines elsewhere."""
    return ProgressBar() if sys.stdout.isatty() else ProgressLines()


__all__ = [
    "AbstractCapsuleModule", "AtomicCheckpointIO", "BestCheckpoint", "ConfusionMatrix", "EmbedConfig",
    "LastCheckpoint", "NonFiniteError", "NonFiniteGuard", "ProgressBar", "ProgressLines", "Reconstructions",
    "RoutingStats", "progress", "show_figure",
]  # fmt: skip
