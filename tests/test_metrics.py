from __future__ import annotations

import math

import pytest
import torch

from capsule_lab.metrics import (
    CouplingEntropy,
    DeadCapsuleRate,
    ErrorRate,
    ExactMatchError,
    LabelError,
    PresentError,
    PresentF1,
)

SCORES = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.3, 0.3, 0.4], [0.6, 0.3, 0.1]])


@pytest.mark.parametrize(
    ("labels", "percent"), [([0, 1, 2, 0], 0.0), ([0, 1, 2, 1], 25.0), ([1, 0, 0, 2], 100.0), ([0, 0, 0, 0], 50.0)]
)
def test_error_rate_is_the_share_of_wrong_images_in_percent(labels: list[int], percent: float) -> None:
    metric = ErrorRate(num_classes=3)
    metric.update(SCORES[:3], torch.tensor(labels[:3]))
    metric.update(SCORES[3:], torch.tensor(labels[3:]))
    assert metric.compute().item() == pytest.approx(percent)


def test_one_wrong_image_of_ten_thousand_is_a_hundredth_of_a_percent() -> None:
    labels = torch.arange(10_000) % 10
    scores = torch.nn.functional.one_hot(labels, 10).float()
    scores[0] = scores[0].roll(1)
    metric = ErrorRate(10)
    metric.update(scores, labels)
    assert metric.compute().item() == pytest.approx(0.01, abs=1e-4)


def test_less_is_better() -> None:
    errors = ErrorRate(3), DeadCapsuleRate(), ExactMatchError(), LabelError(), PresentError(3)
    assert [metric.higher_is_better for metric in errors] == [False] * 5


# --------------------------------------------------------------------------------------- coupling entropy


@pytest.mark.parametrize(
    ("shares", "entropy"),
    [
        ([0.25, 0.25, 0.25, 0.25], 1.0),
        ([1.0, 0.0, 0.0, 0.0], 0.0),
        ([0.5, 0.5, 0.0, 0.0], 0.5),
        ([0.1, 0.1, 0.1, 0.1], 1.0),  # leaky: a child keeps the rest for itself
        ([0.7, 0.3, 0.0, 0.0], -(0.7 * math.log(0.7) + 0.3 * math.log(0.3)) / math.log(4)),
    ],
)
def test_coupling_entropy_of_a_child(shares: list[float], entropy: float) -> None:
    metric = CouplingEntropy()
    metric.update(torch.tensor(shares).expand(2, 3, 4))
    assert metric.compute().item() == pytest.approx(entropy, abs=1e-6)


def test_coupling_entropy_is_averaged_over_children_of_all_batches() -> None:
    metric = CouplingEntropy()
    metric.update(torch.full((1, 1, 2), 0.5))
    metric.update(torch.tensor([1.0, 0.0]).expand(1, 3, 2))
    assert metric.compute().item() == pytest.approx(0.25)
    metric.reset()
    metric.update(torch.tensor([[[1.0, 0.0]]]))
    assert metric.compute().item() == 0


# ------------------------------------------------------------------------------------------ dead capsules


def test_a_capsule_is_dead_if_no_image_of_any_batch_activates_it() -> None:
    metric = DeadCapsuleRate()
    metric.update(torch.tensor([[0.5, 0.0, 0.0, 0.0], [0.0, 0.0, 0.005, 0.0]]))
    metric.update(torch.tensor([[0.0, 0.0, 0.0, 0.2]]))
    assert metric.compute().item() == 50


@pytest.mark.parametrize(("threshold", "percent"), [(0.01, 0.0), (0.3, 50.0), (0.7, 100.0)])
def test_dead_capsule_threshold(threshold: float, percent: float) -> None:
    metric = DeadCapsuleRate(threshold)
    metric.update(torch.tensor([[0.2, 0.6]]))
    assert metric.compute().item() == percent


# --------------------------------------------------------------------------------- several labels per image

PAIR_SCORES = torch.tensor([[0.9, 0.8, 0.1, 0.0], [0.1, 0.7, 0.6, 0.2], [0.5, 0.1, 0.4, 0.3], [0.2, 0.3, 0.4, 0.6]])


@pytest.mark.parametrize(
    ("labels", "pairs", "single"),
    [
        ([[0, 1], [2, 1], [2, 0], [3, 2]], 0.0, 0.0),
        ([[1, 0], [1, 2], [0, 2], [2, 3]], 0.0, 0.0),
        ([[0, 2], [2, 1], [2, 0], [3, 2]], 25.0, 12.5),
        ([[0, 2], [0, 1], [3, 0], [3, 1]], 100.0, 50.0),
        ([[2, 3], [0, 3], [1, 3], [0, 1]], 100.0, 100.0),
    ],
)
def test_a_pair_is_right_if_both_labels_are(labels: list[list[int]], pairs: float, single: float) -> None:
    found = []
    for metric in (ExactMatchError(), LabelError()):
        metric.update(PAIR_SCORES[:3], torch.tensor(labels[:3]))
        metric.update(PAIR_SCORES[3:], torch.tensor(labels[3:]))
        found.append(metric.compute().item())
    assert found == pytest.approx([pairs, single])


@pytest.mark.parametrize(("scores", "wrong"), [([0.9, 0.8, 0.1], 0.0), ([0.8, 0.9, 0.1], 100.0)])
def test_two_of_one_class_are_one_label(scores: list[float], wrong: float) -> None:
    """The second highest score is of a class that is not there, however low."""
    for metric in (ExactMatchError(), LabelError()):
        metric.update(torch.tensor([scores]), torch.tensor([[0, 0]]))
        assert metric.compute().item() == wrong


def test_present_classes_are_those_above_nine_tenths() -> None:
    scores = torch.tensor([[0.95, 0.92, 0.1], [0.95, 0.89, 0.1], [0.95, 0.92, 0.91], [1 + 1e-6, 0.5, 0.5]])
    labels = torch.tensor([[0, 1], [0, 1], [0, 1], [0, 0]])
    error, f1 = PresentError(3), PresentF1(3)
    for metric in (error, f1):
        metric.update(scores[:2], labels[:2])
        metric.update(scores[2:], labels[2:])
    assert error.compute().item() == pytest.approx(50.0)  # one missed, one too many
    assert f1.compute().item() == pytest.approx(2 * 6 / (2 * 6 + 1 + 1))
