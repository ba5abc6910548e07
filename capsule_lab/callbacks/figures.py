"""Figures drawn during training, for ``figures/`` of the run and for every logger that shows images."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import lightning as L
import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from matplotlib.figure import Figure
from torchmetrics.classification import MulticlassConfusionMatrix

from capsule_lab.analysis.plotting import add_heading, image_rows, name_of_class
from capsule_lab.analysis.reconstructions import (
    prediction_figure,
    reconstruction_sheet,
    select_images,
)
from capsule_lab.analysis.segmentation import segmentation_sheet
from capsule_lab.errors import InterruptError, PauseError, check_number
from capsule_lab.networks import Reconstructs, reconstructs
from capsule_lab.runs.files import save_figure
from capsule_lab.runs.results import short_name
from capsule_lab.types import Batch, CapsuleOutput

_SHARE = 0.05  # ours: of the time, for each figure


class ValidationFigures(Callback):
    """Draws figures of validations: the first, the last, and others in ``_SHARE`` of the time.

    Each figure replaces the one before, and to draw one takes longer than an epoch of a few steps.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, Callable[[], None]] = {}
        self.next_time: dict[str, float] = {}  # of time.monotonic

    def show(self, trainer: L.Trainer, name: str, draw: Callable[[], Figure]) -> None:
        """Show what ``draw`` returns, now or later; of several calls that wait, the last counts."""
        step = trainer.global_step
        self.waiting[name] = lambda: show_figure(trainer, name, draw(), step)
        if trainer.state.fn != "fit" or time.monotonic() >= self.next_time.get(name, 0.0):
            self._draw_waiting(name)

    def _draw_waiting(self, name: str) -> None:
        draw = self.waiting.pop(name)
        start = time.monotonic()
        draw()
        end = time.monotonic()
        self.next_time[name] = start + (end - start) / _SHARE

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for name in [*self.waiting]:
            self._draw_waiting(name)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        if isinstance(
            exception, InterruptError | PauseError
        ):  # of any other, drawing may fail, too
            self.on_train_end(trainer, pl_module)


class Reconstructions(ValidationFigures):
    """Draws the first ``images`` of the first validation set above their reconstructions.

    Both reconstructions of an image with two digits are drawn, in red and green. For networks without a decoder, and
    for images with several labels, it draws a sheet of predictions, see ``prediction_figure``.
    """

    def __init__(self, images: int = 16) -> None:
        check_number("images", images, 1)
        super().__init__()
        self.images = images

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        number: int,
        loader: int = 0,
    ) -> None:
        network = pl_module.network
        if number or loader or trainer.sanity_checking or not trainer.is_global_zero:
            return
        names = cast(Any, trainer).datamodule.spec.classes  # an attribute that fit sets
        if reconstructs(network):
            output = cast(Any, pl_module).network(batch.images[: self.images])
            draw = first_reconstructions(network, output, batch, self.images, names)
            self.show(trainer, "val/reconstructions", draw)
        ranking = getattr(outputs["output"], "ranking", None)
        has_any_number = batch.labels.dtype == torch.bool
        if ranking is None or has_any_number:
            return
        if batch.labels.ndim > 1 or not reconstructs(network):
            draw = partial(prediction_figure, ranking, batch.images, batch.labels, names=names)
            self.show(trainer, "val/predictions", draw)


def first_reconstructions(
    network: Reconstructs,
    output: CapsuleOutput,
    batch: Batch,
    images: int,
    names: Sequence[str] = (),
) -> Callable[[], Figure]:
    """Return what draws the first images of a batch above the reconstructions from their predictions.

    For two digits, both are drawn.
    """
    batch_images, labels = batch.images[:images], batch.labels[:images]
    first = select_images(output, labels.new_tensor(range(len(labels))))
    if batch.parts is not None:
        return segmentation_sheet(network, first, batch_images, labels)
    return reconstruction_sheet(network, first, batch_images, labels, names=names)


class DrawnPairs(Reconstructions):
    """Draws the first validation pairs: the first image, the network's output, and the second image."""

    needs_pairs = True

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        number: int,
        loader: int = 0,
    ) -> None:
        drawn = getattr(outputs["output"], "images", None)
        if drawn is None or number or loader:
            return
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        assert batch.targets is not None  # pairs have two images
        rows = {
            "first image": batch.images[: self.images],
            "drawn": drawn[: self.images],
            "second image": batch.targets[: self.images],
        }
        self.show(trainer, "val/pairs", partial(image_rows, rows))


class ConfusionMatrix(ValidationFigures):
    """Draws the confusion matrix of each validation and test; of several validation sets, it uses the first.

    There is no matrix for networks on pairs of images, nor for images with two labels, whose wrong predictions cannot
    be assigned to one of the labels.
    """

    def __init__(self) -> None:
        super().__init__()
        self.matrix: MulticlassConfusionMatrix | None = None

    def _update(self, pl_module: L.LightningModule, outputs: Any, batch: Batch) -> None:
        ranking = getattr(outputs["output"], "ranking", None)
        if batch.labels.ndim > 1 or ranking is None:
            return
        if self.matrix is None:
            self.matrix = MulticlassConfusionMatrix(ranking.shape[1], validate_args=False)
        self.matrix.to(pl_module.device).update(ranking, batch.labels)

    def _draw(self, trainer: L.Trainer, split: str) -> None:
        if self.matrix is None:
            return
        counts = self.matrix.compute()  # every process takes part
        if trainer.is_global_zero and not trainer.sanity_checking:
            classes = cast(Any, trainer).datamodule.spec.classes  # an attribute that fit sets
            draw = partial(confusion_figure, counts.cpu().numpy(), classes)
            self.show(trainer, f"{split}/confusion", draw)
        self.matrix.reset()

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        number: int,
        loader: int = 0,
    ) -> None:
        if not loader:
            self._update(pl_module, outputs, batch)

    def on_test_batch_end(
        self, _: Any, pl_module: L.LightningModule, outputs: Any, batch: Batch, *more: Any
    ) -> None:
        self._update(pl_module, outputs, batch)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._draw(trainer, "val")

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._draw(trainer, "test")


def confusion_figure(counts: npt.NDArray[np.int64], classes: Sequence[str]) -> Figure:
    """Draw a confusion matrix, rows by true class. scikit-learn's drawing needs an import of 0.7 seconds."""
    figure = Figure(figsize=(6, 6), layout="constrained")  # inches
    axis = figure.add_subplot()
    axis.imshow(counts, cmap="Blues")
    for (row, column), count in np.ndenumerate(counts):
        if count:
            is_dark = 2 * count > counts.max()
            colour = "white" if is_dark else "black"
            axis.text(column, row, str(count), ha="center", va="center", color=colour)
    names = [name_of_class(classes, label) for label in range(len(counts))]
    axis.set(xlabel="Predicted label", ylabel="True label")
    axis.set_xticks(range(len(names)), names)
    axis.set_yticks(range(len(names)), names)
    return figure


def show_figure(trainer: L.Trainer, name: str, figure: Figure, step: int) -> None:
    """Add a heading with run, split and data, and call ``keep_figure``.

    ``name`` is ``<split>/<what>``, and ``step`` the number of steps of the weights.
    """
    directory = Path(trainer.default_root_dir)
    data = short_name(cast(Any, trainer).datamodule.provenance)
    heading = f"{directory.name}: test images of {data}"
    if name.startswith("val/"):
        heading = (
            f"{directory.name}: validation images of {data}, drawn while training, at step {step}"
        )
    add_heading(figure, heading)
    steps_since = trainer.global_step - step
    keep_figure(directory, trainer.loggers, name, figure, logged_step(trainer) - steps_since)


def logged_step(trainer: L.Trainer) -> int:
    """Return the step at which Lightning logs the current quantities: in training, it counts steps from 0."""
    return trainer.global_step - (trainer.state.fn == "fit")


def keep_figure(run: Path, loggers: Iterable[Any], name: str, figure: Figure, step: int) -> Path:
    """Write a figure to ``figures/`` of a run and to every logger that shows images; return the file."""
    path = run / "figures" / f"{name.replace('/', '_')}.png"
    save_figure(figure, path)
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            logger.log_image(name, [str(path)], step)
        elif isinstance(logger, TensorBoardLogger):
            logger.experiment.add_figure(name, figure, step)
        elif isinstance(logger, MLFlowLogger):
            logger.experiment.log_artifact(logger.run_id, str(path), "figures")
    return path
