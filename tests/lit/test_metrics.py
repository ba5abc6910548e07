"""Means and errors by split, and their state in a checkpoint."""

from __future__ import annotations

import warnings

import pytest
import torch
from torchmetrics import MeanMetric

from capsule_lab.lit.metrics import SplitMetrics, load_metric_state

SCORES = torch.tensor([[0.9, 0.1, 0.2], [0.1, 0.9, 0.2], [0.1, 0.2, 0.9], [0.1, 0.2, 0.9]])
CPU = torch.device("cpu")


@pytest.mark.parametrize(("labels_per_image", "quantities"), [(1, {"error"}), (2, {"error", "label_error"})])
def test_errors_of_every_split(labels_per_image: int, quantities: set[str]) -> None:
    metrics = SplitMetrics(3, labels_per_image)
    present = {f"{split}/present_{name}" for split in ("val", "test") for name in ("error", "f1")}
    expected = {f"{split}/{name}" for split in ("train", "val", "test") for name in quantities}
    assert set(metrics) == expected | (present if labels_per_image > 1 else set())


def test_present_classes_are_counted_by_a_threshold() -> None:
    metrics = SplitMetrics(3, 2)
    metrics.update_present("val", torch.tensor([[0.95, 0.92, 0.1], [0.95, 0.5, 0.1]]), torch.tensor([[0, 1], [0, 1]]))
    assert dict(metrics.of_split("val"))["val/present_error"].compute().item() == 50.0


def test_errors_are_in_percent_of_their_split() -> None:
    metrics = SplitMetrics(3, 1)
    metrics.add_error("novel")
    metrics.update_errors("val", SCORES, torch.tensor([0, 1, 2, 0]))
    metrics.update_errors("novel", SCORES, torch.tensor([0, 0, 0, 0]))
    found = {name: metric.compute().item() for split in ("val", "novel") for name, metric in metrics.of_split(split)}
    assert found == {"val/error": 25.0, "novel/error": 75.0}


def test_means_weigh_every_image_the_same() -> None:
    metrics = SplitMetrics(3, 1)
    metrics.update_means("train", {"loss": torch.tensor(1.0)}, images=3)
    metrics.update_means("train", {"loss": torch.tensor(5.0)}, images=1)
    assert dict(metrics.of_split("train"))["train/loss"].compute().item() == 2.0


def test_state_goes_on_where_it_was() -> None:
    first, second = SplitMetrics(3, 1), SplitMetrics(3, 1)
    for metrics in (first, second):
        metrics.update_errors("train", SCORES, torch.tensor([0, 1, 2, 0]))
        metrics.update_means("train", {"loss": torch.tensor(1.0)}, images=4)
    resumed = SplitMetrics(3, 1)
    resumed.load_state(first.state_of("train"), CPU)
    for metrics in (second, resumed):
        metrics.update_errors("train", SCORES, torch.tensor([0, 1, 2, 2]))
        metrics.update_means("train", {"loss": torch.tensor(3.0)}, images=4)
    found, expected = (
        {name: metric.compute().item() for name, metric in metrics.of_split("train")} for metrics in (resumed, second)
    )
    assert found == expected == {"train/error": 12.5, "train/loss": 2.0}


def test_loaded_state_counts_as_updated() -> None:
    """Of torchmetrics' private ``_update_count``: without it ``compute`` warns."""
    metric = MeanMetric()
    load_metric_state(metric, {"mean_value": torch.tensor(6.0), "weight": torch.tensor(3.0)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert metric.compute().item() == 2.0
    assert metric.update_called
