"""Predictions of a test that the training loop keeps, image by image."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from capsule_lab.lit import ClassifierModule
from capsule_lab.lit.classification import BatchOfTest
from capsule_lab.losses import cross_entropy_loss
from capsule_lab.networks import AbstractNetwork
from capsule_lab.types import CapsuleOutput, DataSpec
from tests.helpers.modules import RATE

SPEC = DataSpec((1, 2, 2), 3, factors=("instance", "azimuth"))


class Given(AbstractNetwork):
    """Its scores are the first pixels of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, images: Tensor) -> CapsuleOutput:
        scores = images.flatten(1)[:, :3] * self.weight
        return CapsuleOutput(scores, None, scores)


def predictions_of(
    scores: list[list[float]], labels: list[Any], factors: Any = None, **trainer: Any
) -> dict[str, Any]:
    """Predictions of a module after a test of these images in two batches, of the first and of the second part."""
    labels_per_image = 2 if torch.tensor(labels).ndim > 1 else 1
    spec = SPEC if factors else DataSpec((1, 2, 2), 3, labels_per_image=labels_per_image)
    module = module_of(labels_per_image)
    data = SimpleNamespace(spec=spec, test_parts=trainer.pop("test_parts", ()))
    if "test_clusters" in trainer:
        data.test_clusters = trainer.pop("test_clusters")
    state = SimpleNamespace(fn="test")
    module._trainer = SimpleNamespace(world_size=1, datamodule=data, state=state, **trainer)
    for part, rows in enumerate((slice(0, 2), slice(2, None))):
        pixels = torch.tensor(scores)[rows]
        images = torch.cat([pixels, pixels[:, :1]], 1).view(-1, 1, 2, 2)
        ranking = module.network(images).ranking.detach()
        labels_of_rows = torch.tensor(labels)[rows]
        factors_of_rows = None if factors is None else torch.tensor(factors)[rows]
        batch = BatchOfTest(labels_of_rows, factors_of_rows, ranking, part)
        module._tested.append(batch)
    return module.test_predictions()


def module_of(labels_per_image: int = 1) -> ClassifierModule:
    return ClassifierModule(
        Given(),
        loss=cross_entropy_loss,
        optimizer=torch.optim.SGD,
        schedule=RATE,
        num_classes=3,
        labels_per_image=labels_per_image,
    )


def test_margin_is_negative_where_the_label_is_not_predicted() -> None:
    scores = [[0.5, 0.2, 0.1], [0.1, 0.6, 0.9], [0.3, 0.4, 0.3]]
    found = predictions_of(scores, [0, 1, 1])
    assert found["prediction"].tolist() == [0, 2, 1]
    assert found["margin"].tolist() == pytest.approx([0.3, -0.3, 0.1])
    assert found.keys() == {"label", "prediction", "margin"}


def test_two_labels_are_the_two_highest_scores() -> None:
    scores = [[0.5, 0.2, 0.1], [0.1, 0.6, 0.9], [0.3, 0.4, 0.2]]
    found = predictions_of(scores, [[1, 0], [0, 2], [1, 0]])
    assert found["label"].tolist() == [[0, 1], [0, 2], [0, 1]]
    assert found["prediction"].tolist() == [[0, 1], [1, 2], [0, 1]]
    assert found["margin"].tolist() == pytest.approx([0.1, -0.5, 0.1])


def test_toys_of_all_classes_have_different_clusters_and_parts_are_named() -> None:
    scores = [[1.0, 0.0, 0.0]] * 4
    factors = [[4, 30], [4, 31], [9, 30], [9, 30]]
    parts = ("familiar", "novel")
    found = predictions_of(scores, [0, 1, 1, 1], factors, test_parts=parts)
    clusters = found["cluster"].tolist()
    assert len({*clusters}) == 3
    assert clusters[2] == clusters[3]
    assert found["part"].tolist() == [0, 0, 1, 1]


def test_groups_of_the_data_are_clusters() -> None:
    scores = [[1.0, 0.0, 0.0]] * 4
    groups = np.array([2, 0, 2, 1])
    found = predictions_of(scores, [0, 1, 1, 1], test_clusters=groups)
    assert found["cluster"].tolist() == [2, 0, 2, 1]


def test_one_of_several_processes_keeps_none() -> None:
    module = module_of()
    module._trainer = SimpleNamespace(world_size=2)
    batch = BatchOfTest(torch.tensor([0]), None, torch.zeros(1, 3), 0)
    module._tested.append(batch)
    assert module.test_predictions() == {}
