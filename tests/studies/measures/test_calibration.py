"""Calibration errors against sums worked out by hand, and against torchmetrics where its bins are the same."""

from __future__ import annotations

import itertools
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from capsule_lab.studies.measures.calibration import BINS, brier_score, reliability, reliability_figure

CONFIDENCES = [0.95, 0.95, 0.9, 0.6, 0.61, 0.4]
RIGHT = [True, True, False, True, False, False]
"""With 5 bins, (0.2, 0.4], (0.4, 0.6], (0.6, 0.8] have an image each and (0.8, 1] has three."""


def expected_calibration_error(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> float:
    return reliability(probabilities, labels, bins=bins).expected_error


def rows(confidences: list[float]) -> Tensor:
    """Of four classes, the first of which is the most probable."""
    rest = [[(1 - confidence) / 3] * 3 for confidence in confidences]
    return torch.tensor(
        [[first, *others] for first, others in zip(confidences, rest, strict=True)], dtype=torch.float64
    )


PROBABILITIES = rows(CONFIDENCES)
LABELS = torch.tensor([0 if right else 1 for right in RIGHT])


def test_bins_by_hand() -> None:
    images, confidence, accuracy = reliability(PROBABILITIES, LABELS, bins=5)
    assert images.tolist() == [0, 1, 1, 1, 3]
    nan = float("nan")
    np.testing.assert_allclose(confidence, [nan, 0.4, 0.6, 0.61, 2.8 / 3], atol=1e-14)
    np.testing.assert_allclose(accuracy, [nan, 0, 1, 0, 2 / 3], atol=1e-14)


def test_errors_by_hand() -> None:
    # |0 - 0.4| + |1 - 0.6| + |0 - 0.61| + |2 - 2.8|, over 6 images
    assert expected_calibration_error(PROBABILITIES, LABELS, 5) == pytest.approx(2.21 / 6, abs=1e-14)
    # all in one bin: |3 - 4.41| / 6
    assert expected_calibration_error(PROBABILITIES, LABELS, 1) == pytest.approx(1.41 / 6, abs=1e-14)


def test_there_are_15_bins_which_have_their_upper_edge() -> None:
    assert BINS == 15
    edges = torch.linspace(0, 1, 16, dtype=torch.float64)[5:]  # with 4 classes, a maximum is at least 0.25
    images, _, _ = reliability(rows(edges.tolist()), torch.zeros(11, dtype=torch.int64))
    assert images.tolist() == [0] * 4 + [1] * 11
    images, _, _ = reliability(rows((edges[:-1] + 1e-9).tolist()), torch.zeros(10, dtype=torch.int64))
    assert images.tolist() == [0] * 5 + [1] * 10


def test_a_confidence_of_1_shares_the_last_bin() -> None:
    """torchmetrics gives it a bin of its own, so that its errors do not make up for those of the others there."""
    probabilities = rows([1.0, 0.96, 0.96])
    labels = torch.tensor([0, 1, 0])
    assert expected_calibration_error(probabilities, labels) == pytest.approx((2.92 - 2) / 3, abs=1e-14)
    theirs = multiclass_calibration_error(probabilities, labels, num_classes=4, n_bins=15)
    assert float(theirs) == pytest.approx((1.92 - 1) / 3, abs=1e-6)
    other = torch.tensor([1, 0, 0])
    assert expected_calibration_error(probabilities, other) == pytest.approx(0.92 / 3, abs=1e-14)
    theirs = multiclass_calibration_error(probabilities, other, num_classes=4, n_bins=15)
    assert float(theirs) == pytest.approx(1.08 / 3, abs=1e-6)


@pytest.fixture(scope="module")
def drawn() -> tuple[Tensor, Tensor]:
    """Logits, and labels that have the probability that these say."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(20_000, 10, generator=generator, dtype=torch.float64)
    return logits, torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]


def test_errors_are_those_of_torchmetrics(drawn: tuple[Tensor, Tensor]) -> None:
    logits, labels = drawn
    for bins, temperature in itertools.product([1, 10, 15], [0.5, 1.0, 2.0]):
        probabilities = (logits / temperature).softmax(1)
        theirs = multiclass_calibration_error(probabilities, labels, num_classes=10, n_bins=bins)
        error = expected_calibration_error(probabilities, labels, bins)
        assert error == pytest.approx(float(theirs), abs=1e-5), "theirs are of float32"


def test_calibrated_probabilities_have_the_smallest_errors_and_scores(drawn: tuple[Tensor, Tensor]) -> None:
    logits, labels = drawn
    found = {scale: (scale * logits).softmax(1) for scale in (0.5, 1.0, 2.0)}
    for score in (expected_calibration_error, brier_score):
        values = {scale: score(each, labels) for scale, each in found.items()}
        assert min(values, key=values.__getitem__) == 1.0
    assert expected_calibration_error(found[1.0], labels) < 0.01


def test_brier_score_by_hand() -> None:
    probabilities = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]], dtype=torch.float64)
    # 0.3^2 + 0.2^2 + 0.1^2, and 0.9^2 + 0.1^2 + 0.8^2
    assert brier_score(probabilities, torch.tensor([0, 0])) == pytest.approx((0.14 + 1.46) / 2, abs=1e-14)
    assert brier_score(torch.eye(3), torch.tensor([1, 2, 0])) == 2
    assert brier_score(torch.eye(3), torch.arange(3)) == 0


def test_sums_are_of_float64() -> None:
    """In float32 half of them are lost: 2^24 + 1 is 2^24."""
    probabilities = torch.tensor([[0.75, 0.25]]).expand(3_000_000, 2)
    labels = (torch.arange(3_000_000) % 4 == 0).long()
    assert expected_calibration_error(probabilities, labels) < 1e-12


def test_figure_shows_bins_with_images_and_how_many(tmp_path: Path) -> None:
    result = reliability(PROBABILITIES, LABELS, bins=5)
    figure = reliability_figure({"one": result, "two": reliability(PROBABILITIES, LABELS)})
    upper, lower = figure.axes
    diagonal, one, two = upper.lines
    np.testing.assert_allclose(diagonal.get_xydata(), [[0, 0], [1, 1]])
    np.testing.assert_allclose(one.get_xydata(), [[0.4, 0], [0.6, 1], [0.61, 0], [2.8 / 3, 2 / 3]], atol=1e-12)
    assert one.get_color() != two.get_color()
    assert one.get_marker() != two.get_marker()
    legend = upper.get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    assert names[:2] == ["calibrated", "one, ECE 36.83 %"]
    assert names[2].startswith("two, ECE ")
    np.testing.assert_allclose(lower.patches[0].get_data().values, np.array([0, 1, 1, 1, 3]) / 6 * 100)
    FigureCanvasAgg(figure)
    figure.savefig(tmp_path / "figure.png", dpi=200)
    height, width = matplotlib.image.imread(tmp_path / "figure.png").shape[:2]
    assert (width, height) == (1280, 1280)
