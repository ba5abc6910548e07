"""Worst test images and histograms of capsules, as a logger receives them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import WandbLogger

from capsule_lab.callbacks import CapsuleHistograms, WorstImages
from capsule_lab.networks import BaselineCNN, CapsNet
from capsule_lab.types import Batch, CapsuleOutput


class Recorded(WandbLogger):
    """W&B's logger without a run: it keeps what it is given."""

    def __init__(self) -> None:
        self.tables: dict[str, Any] = {}
        self.metrics: dict[str, Any] = {}

    def log_table(self, key: str, columns: Any = None, data: Any = None, **_: Any) -> None:
        self.tables[key] = []
        for row in data:
            named = dict(zip(columns, row, strict=True))
            self.tables[key].append(named)

    def log_metrics(self, metrics: Any, step: Any = None) -> None:
        self.metrics |= metrics


def trainer_of(*loggers: Any) -> Any:
    return SimpleNamespace(
        is_global_zero=True,
        loggers=[*loggers],
        datamodule=SimpleNamespace(spec=SimpleNamespace(classes=())),
        global_step=5,
        state=SimpleNamespace(fn="test"),
    )


def batch_of(scores: list[list[float]], labels: Any, *, crops: int = 0) -> tuple[Any, Batch]:
    size = len(scores)
    shades = torch.arange(size) / size
    images = shades.view(-1, 1, 1, 1).expand(size, 1, 8, 8)
    if crops:
        images = images[:, None].expand(-1, crops, -1, -1, -1)
    outputs = {"output": CapsuleOutput(torch.tensor(scores))}
    batch = Batch(images, torch.tensor(labels), torch.arange(size))
    return outputs, batch


NETWORK = BaselineCNN((1, 8, 8), num_classes=3, channels=[2], hidden=[2])
CNN = SimpleNamespace(network=NETWORK)
CONFIDENT = [
    [0.9, 0.1, 0.0],
    [0.1, 0.5, 0.4],
    [0.2, 0.3, 0.1],
]


def rows_of(callback: WorstImages, *batches: tuple[Any, Batch]) -> list[dict[str, Any]]:
    logger = Recorded()
    trainer = trainer_of(logger)
    callback.on_test_start(trainer, CNN)
    for number, (outputs, batch) in enumerate(batches):
        callback.on_test_batch_end(trainer, CNN, outputs, batch, number)
        callback.on_test_batch_end(trainer, CNN, outputs, batch, number, 1)
    callback.on_test_epoch_end(trainer, CNN)
    return logger.tables["test/worst_images"]


@pytest.mark.parametrize("crops", [0, 2])
def test_smallest_margins_of_all_batches_come_first(crops: int) -> None:
    first = batch_of(CONFIDENT, [0, 1, 1], crops=crops)
    second = batch_of(CONFIDENT, [1, 2, 1], crops=crops)
    rows = rows_of(WorstImages(3), first, second)
    assert [row["number"] for row in rows] == [3, 4, 1]
    worst = rows[0]
    assert (worst["label"], worst["prediction"]) == ("1", "0")
    assert (worst["score"], worst["margin"]) == pytest.approx((0.9, -0.8))
    assert "reconstruction" not in worst


def test_any_number_of_labels_is_left_out() -> None:
    logger = Recorded()
    outputs, batch = batch_of(CONFIDENT, [[True, False, True]] * 3)
    callback = WorstImages()
    callback.on_test_start(trainer_of(logger), CNN)
    callback.on_test_batch_end(trainer_of(logger), CNN, outputs, batch, 0)
    callback.on_test_epoch_end(trainer_of(logger), CNN)
    assert not logger.tables


def test_several_labels_have_several_predictions() -> None:
    batch = batch_of([[0.9, 0.2, 0.5]], [[0, 1]])
    (row,) = rows_of(WorstImages(1), batch)
    assert (row["label"], row["prediction"]) == ("0, 1", "0, 2")
    assert (row["score"], row["margin"]) == pytest.approx((0.5, -0.3))


def test_picture_is_dark_on_white() -> None:
    batch = batch_of(CONFIDENT, [0, 1, 1])
    shades = {}
    for row in rows_of(WorstImages(3), batch):
        pixels = np.asarray(row["image"].image)
        shades[row["number"]] = pixels.max()
    assert shades == {0: 255, 1: 170, 2: 85}


def test_nothing_is_kept_without_such_a_logger() -> None:
    callback = WorstImages()
    outputs, batch = batch_of(CONFIDENT, [0, 1, 1])
    callback.on_test_batch_end(trainer_of(), CNN, outputs, batch, 0)
    assert callback.worst is None


def test_histograms_have_activations_and_the_couplings_of_each_iteration() -> None:
    network = CapsNet((1, 28, 28), num_classes=3, channels=2, decoder=None).eval()
    logger = Recorded()
    batch = Batch(
        images=torch.rand(4, 1, 28, 28),
        labels=torch.tensor([0, 1, 2, 0]),
        key=torch.arange(4),
    )
    module = SimpleNamespace(network=network)
    callback = CapsuleHistograms(2)
    callback.on_test_batch_end(trainer_of(logger), module, {}, batch, 0)
    counts = {key: sum(each.histogram) for key, each in logger.metrics.items()}
    couplings = 2 * (6 * 6 * 32) * 3  # of two images
    assert counts == {
        "test/activations/digits": 2 * 3,
        "test/couplings/digits/iteration_1": couplings,
        "test/couplings/digits/iteration_2": couplings,
        "test/couplings/digits/iteration_3": couplings,
    }
