"""The test images that a network gets most wrong, for the dashboards of W&B and TensorBoard."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import lightning as L
import numpy as np
import torch
from jaxtyping import Float, Int64
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from torch import Tensor

from capsule_lab.analysis.plotting import as_rgb, names_of_classes
from capsule_lab.analysis.reconstructions import prediction_figure
from capsule_lab.callbacks.figures import logged_step
from capsule_lab.errors import check_number
from capsule_lab.functional import in_unit_range, predictions_by_label
from capsule_lab.lit.classification import margins
from capsule_lab.networks import AbstractNetwork, reconstructs
from capsule_lab.types import Batch

_SIDE = 4  # ours: images in a row of TensorBoard's picture


def dashboards(trainer: L.Trainer) -> list[WandbLogger | TensorBoardLogger]:
    """Return the loggers that show images and histograms in their own form; none in later processes."""
    if not trainer.is_global_zero:
        return []
    kinds = (WandbLogger, TensorBoardLogger)
    return [logger for logger in trainer.loggers if isinstance(logger, kinds)]


class _Tested(NamedTuple):
    """Test images with their predictions; ``number`` counts the images of the test from 0."""

    number: Int64[Tensor, " image"]
    images: Float[Tensor, "image channel height width"]
    labels: Int64[Tensor, "image label"]
    scores: Float[Tensor, "image class"]
    ranking: Float[Tensor, "image class"]
    margin: Float[Tensor, " image"]

    def chosen(self, chosen: Any) -> _Tested:
        return _Tested(*(values[chosen] for values in self))


class WorstImages(Callback):
    """Logs the ``images`` with the smallest margins, the most confident mistakes first; see ``runs.predictions``.

    W&B receives the table ``test/worst_images``, TensorBoard a picture of the first 16. The images are those of the
    first test set and, in a run with several processes, of the first process. Without such a logger, or if images have
    any number of labels, it does nothing.
    """

    def __init__(self, images: int = 32) -> None:
        check_number("images", images, 1)
        self.images = images
        self.count = 0
        self.worst: _Tested | None = None

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.count = 0
        self.worst = None

    def on_test_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        output = outputs["output"]
        ranking = getattr(output, "ranking", None)
        has_any_number = batch.labels.dtype == torch.bool
        if dataloader_idx or ranking is None or has_any_number or not dashboards(trainer):
            return
        size = len(batch.labels)
        labels = batch.classes.reshape(size, -1)
        number = torch.arange(self.count, self.count + size, device=labels.device)
        images = first_crop(batch)
        margin = margins(ranking, labels)
        tested = _Tested(number, images, labels, output.scores, ranking, margin)
        self.count += size
        if self.worst is not None:
            pairs = zip(self.worst, tested, strict=True)
            tested = _Tested(*(torch.cat(pair) for pair in pairs))
        order = tested.margin.argsort(stable=True)
        self.worst = tested.chosen(order[: self.images])

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.worst is None:
            return
        worst = self.worst
        decoded = _decoded(cast(Any, pl_module).network, worst)
        worst = worst._replace(images=in_unit_range(worst.images))
        names = cast(Any, trainer).datamodule.spec.classes  # an attribute that test sets
        step = logged_step(trainer)
        for logger in dashboards(trainer):
            if isinstance(logger, WandbLogger):
                columns, rows = _table(worst, decoded, names)
                logger.log_table("test/worst_images", columns, rows, step=step)
            else:
                first = worst.chosen(slice(_SIDE**2))
                pictures = first.images
                if decoded is not None:
                    pictures = torch.cat([pictures, decoded[: _SIDE**2]], 3)
                labels = first.labels
                figure = prediction_figure(first.ranking, pictures, labels, names=names, side=_SIDE)
                logger.experiment.add_figure("test/worst_images", figure, step)


def first_crop(batch: Batch) -> Float[Tensor, "batch channel height width"]:
    """Return the images of a batch, of several crops the first."""
    images = batch.images
    return images[:, 0] if images.ndim == 5 else images


def _decoded(network: AbstractNetwork, worst: _Tested) -> Tensor | None:
    """Return the reconstructions from the predicted classes; ``None`` without a decoder, or with several labels."""
    if not reconstructs(network) or worst.labels.shape[1] > 1:
        return None
    output = cast(Any, network)(worst.images)
    return network.reconstruct(output, worst.ranking.argmax(1))


def _table(worst: _Tested, decoded: Tensor | None, names: Any) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and the rows of a W&B table."""
    predicted = predictions_by_label(worst.ranking, worst.labels)
    scores = worst.scores.gather(1, predicted).amin(1)
    columns = ["number", "image", "reconstruction", "label", "prediction", "score", "margin"]
    if decoded is None:
        columns.remove("reconstruction")
    rows = []
    for index, number in enumerate(worst.number.tolist()):
        row = {
            "number": number,
            "image": _image(worst.images[index]),
            "label": names_of_classes(names, worst.labels[index].tolist()),
            "prediction": names_of_classes(names, predicted[index].tolist()),
            "score": float(scores[index]),
            "margin": float(worst.margin[index]),
        }
        if decoded is not None:
            row["reconstruction"] = _image(decoded[index])
        rows.append([row[column] for column in columns])
    return columns, rows


def _image(picture: Tensor) -> Any:
    from wandb import Image

    levels = (255 * as_rgb(picture)).round()
    return Image(levels.astype(np.uint8))  # it would draw floats black
