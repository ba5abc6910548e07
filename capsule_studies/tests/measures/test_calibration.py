"""Calibration errors compared with sums computed by hand, and with torchmetrics where its bins are the same."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from capsule_studies.measures.calibration import (
    BINS,
    brier_score,
    reliability,
    reliability_figure,
)

CONFIDENCES = [0.95, 0.95, 0.9, 0.6, 0.61, 0.4]
RIGHT = [True, True, False, True, False, False]
"""With 5 bins, (0.2, 0.4], (0.4, 0.6], (0.6, 0.8] have an image each and (0.8, 1] has three."""


def expected_calibration_error(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> float:
    return reliability(probabilities, labels, bins=bins).expected_error


def rows(confidences: list[float]) -> Tensor:
    """Return probabilities of four classes; the first is the most probable."""
    probabilities = []
    for confidence in confidences:
        rest = (1 - confidence) / 3
        probabilities.append([confidence, rest, rest, rest])
    return torch.tensor(probabilities, dtype=torch.float64)


PROBABILITIES = rows(CONFIDENCES)
LABELS = torch.tensor([0 if right else 1 for right in RIGHT])


def test_bins_by_hand() -> None:
    nan = float("nan")
    confidences = [nan, 0.4, 0.6, 0.61, 2.8 / 3]
    accuracies = [nan, 0, 1, 0, 2 / 3]
    images, confidence, accuracy = reliability(PROBABILITIES, LABELS, bins=5)
    assert images.tolist() == [0, 1, 1, 1, 3]
    np.testing.assert_allclose(confidence, confidences, atol=1e-14)
    np.testing.assert_allclose(accuracy, accuracies, atol=1e-14)
    # |0 - 0.4| + |1 - 0.6| + |0 - 0.61| + |2 - 2.8|, over 6 images
    error = expected_calibration_error(PROBABILITIES, LABELS, 5)
    assert error == pytest.approx(2.21 / 6, abs=1e-14)
    # all in one bin: |3 - 4.41| / 6
    error = expected_calibration_error(PROBABILITIES, LABELS, 1)
    assert error == pytest.approx(1.41 / 6, abs=1e-14)


def test_15_bins_have_their_upper_edge() -> None:
    edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float64).tolist()
    # with 4 classes, a maximum is at least 0.25
    probabilities = rows(edges[5:])
    labels = torch.zeros(11, dtype=torch.int64)
    images, _, _ = reliability(probabilities, labels)
    assert images.tolist() == [0] * 4 + [1] * 11


def test_errors_are_those_of_torchmetrics() -> None:
    """Labels are drawn with the probabilities of the logits at temperature 1, where the error is smallest."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(20_000, 10, generator=generator, dtype=torch.float64)
    drawn = torch.multinomial(logits.softmax(1), 1, generator=generator)
    labels = drawn.squeeze(1)
    for bins, temperature in itertools.product([1, 10, 15], [0.5, 1.0, 2.0]):
        probabilities = (logits / temperature).softmax(1)
        theirs = multiclass_calibration_error(probabilities, labels, num_classes=10, n_bins=bins)
        error = expected_calibration_error(probabilities, labels, bins)
        assert error == pytest.approx(float(theirs), abs=1e-5), "theirs are of float32"
        is_calibrated = error < 0.01
        assert is_calibrated == (temperature == 1)


def test_brier_score_by_hand() -> None:
    probabilities = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]], dtype=torch.float64)
    labels = torch.tensor([0, 0])
    first = 0.3**2 + 0.2**2 + 0.1**2
    second = 0.9**2 + 0.1**2 + 0.8**2
    expected = (first + second) / 2
    assert brier_score(probabilities, labels) == pytest.approx(expected, abs=1e-14)


def test_brier_score_of_certain_predictions_is_2_or_0() -> None:
    certain = torch.eye(3)
    right = torch.arange(3)
    wrong = torch.tensor([1, 2, 0])
    assert brier_score(certain, wrong) == 2
    assert brier_score(certain, right) == 0


def test_sums_are_of_float64() -> None:
    """Float32 would lose half of the images: 2^24 + 1 is 2^24."""
    images = 3_000_000
    probabilities = torch.tensor([[0.75, 0.25]]).expand(images, 2)
    is_fourth = torch.arange(images) % 4 == 0
    assert expected_calibration_error(probabilities, is_fourth.long()) < 1e-12


def test_figure_shows_bins_with_images_and_how_many() -> None:
    result = reliability(PROBABILITIES, LABELS, bins=5)
    upper, lower = reliability_figure({"one": result}).axes
    points = [[0.4, 0], [0.6, 1], [0.61, 0], [2.8 / 3, 2 / 3]]
    curve = upper.lines[1]
    np.testing.assert_allclose(curve.get_xydata(), points)
    texts = [text.get_text() for text in upper.get_legend().get_texts()]
    assert texts == ["calibrated", "one, ECE 36.83 %"]
    sixth = 100 / 6
    percentages = lower.patches[0].get_data().values
    np.testing.assert_allclose(percentages, [0, sixth, sixth, sixth, 50])
