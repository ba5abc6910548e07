import importlib
from typing import Any

import pytest
import torch

from capsule_lab.networks import TransformingAutoencoder
from capsule_studies.measures.factor_analysers import FactorAnalysers
from capsule_studies.questions.few_labels import few_labels
from capsule_studies.tests.subjects import small_network, subject

few = importlib.import_module("capsule_studies.questions.few_labels")
FEW: dict[str, Any] = {
    "training_images": 24,
    "components": 4,
    "factors": 1,
    "labels": 8,
    "draws": 2,
    "restarts": 2,
    "steps": 10,
    "principal": 4,
}
WAYS = ("asked", "drawn", "drawn_2_per_class", "drawn_3_per_class", "nearest")


@pytest.mark.parametrize(
    ("features", "dimensions"),
    [
        ("capsules", 15),
        ("presences", 5),
        ("poses", 10),
        ("pixels", 4),
    ],
)
def test_numbers_of_every_kind_of_feature(
    features: str, dimensions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few, "_LEAST_VARIANCE", 0.0)  # untrained capsules hardly vary
    torch.manual_seed(0)
    asked = subject(TransformingAutoencoder((1, 24, 24), capsules=5))
    numbers = few_labels(asked, features=features, **FEW).numbers
    expected = ["log_likelihood", "dimensions", "probe/error"]
    for way in WAYS:
        expected += [f"{way}/error", f"{way}/deviation"]
    assert sorted(numbers) == sorted(expected)
    assert numbers["dimensions"] == dimensions
    other = few_labels(asked, features=features, seed=1, **FEW).numbers
    assert other["log_likelihood"] != numbers["log_likelihood"]


def test_classes_that_are_apart_are_all_right() -> None:
    """The squares of four classes are in four corners, and move little."""
    options = {**FEW, "training_images": 80}
    numbers = few_labels(subject(small_network(), images=80), features="pixels", **options).numbers
    assert numbers["probe/error"] == 0
    assert numbers["nearest/error"] <= 15
    assert numbers["asked/error"] <= 15


def test_components_are_named_by_the_labels_that_they_are_responsible_for() -> None:
    """A component without a labelled image gets the class of the nearest component with one."""
    shares = torch.tensor([[0.9, 0.05, 0.05], [0.8, 0.15, 0.05], [0.1, 0.85, 0.05]])
    labels = torch.tensor([2, 2, 1])
    means = torch.tensor([[0.0], [10.0], [8.0]])
    mixture = FactorAnalysers(torch.ones(3) / 3, means, torch.zeros(3, 1, 1), torch.ones(3, 1))
    named = few._named(shares, labels, mixture, 3)
    assert named.tolist() == [2, 1, 1]


def test_standardised_by_training_images() -> None:
    fitted = torch.tensor([[0.0, 5.0], [2.0, 5.0]])
    first, second = few._standardised(fitted, torch.tensor([[4.0, 5.0]]))
    assert first.tolist() == [[-1.0], [1.0]]
    assert second.tolist() == [[3.0]]
    with pytest.raises(ValueError, match="no feature varies over the training images"):
        few._standardised(torch.ones(3, 2), torch.ones(1, 2))


def test_an_image_has_the_class_of_the_largest_sum_of_shares() -> None:
    """Of three components 0.4 are of class 0, and 0.35 and 0.25 of class 1."""
    shares = torch.tensor([[0.4, 0.35, 0.25]])
    named = torch.tensor([0, 1, 1])
    assert few._strongest(shares, named, 3).tolist() == [1]
