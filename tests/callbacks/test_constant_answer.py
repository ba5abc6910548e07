"""The loss of the best answer that ignores the image: closed forms, and batches with uneven labels."""

import math
from functools import partial
from typing import Any

import pytest
import torch

from capsule_lab.callbacks.constant_answer import best_constant_loss, loss_of_constant
from capsule_lab.losses import (
    cross_entropy_loss,
    logits_cross_entropy_loss,
    margin_loss,
    sigmoid_cross_entropy_loss,
    spread_loss,
)
from tests.reference.loops import margin_loss_loops


def even(classes: int) -> torch.Tensor:
    return torch.full((classes,), 1 / classes, dtype=torch.float64)


def margin_of_one_class(share: float) -> float:
    """The least of ``p (0.9 - x)^2 + 0.5 (1 - p) (x - 0.1)^2``, at the root of its derivative."""
    weight = 0.5 * (1 - share)
    length = (0.9 * share + 0.1 * weight) / (share + weight)
    return share * (0.9 - length) ** 2 + weight * (length - 0.1) ** 2


OFFICIAL_MARGIN_LOSS = partial(margin_loss, reduction="official")


@pytest.mark.parametrize("classes", [2, 3, 5, 8, 10, 100])
def test_margin_loss_has_its_closed_form(classes: int) -> None:
    shares = even(classes)
    expected = classes * margin_of_one_class(1 / classes)
    found = best_constant_loss(margin_loss, shares)
    of_other_scale = best_constant_loss(OFFICIAL_MARGIN_LOSS, shares)
    assert found == pytest.approx(expected, rel=1e-4)
    assert of_other_scale == pytest.approx(expected / (2 * classes), rel=1e-4)


@pytest.mark.parametrize(("classes", "expected"), [(2, 0.2133), (10, 0.5236)])
def test_numbers_that_plateaus_of_capsnets_show(classes: int, expected: float) -> None:
    """Of balanced classes, as in runs on blank images."""
    found = best_constant_loss(margin_loss, even(classes))
    assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        pytest.param(0.0, 0.81, id="dead"),
        pytest.param(1.0, 3.645, id="saturated"),
    ],
)
def test_loss_of_capsules_that_are_all_of_one_length(length: float, expected: float) -> None:
    lengths = torch.full((10,), length, dtype=torch.float64)
    found = loss_of_constant(margin_loss, lengths, even(10), 1)
    assert found.item() == pytest.approx(expected)


@pytest.mark.parametrize("margin", [0.2, 0.9])
@pytest.mark.parametrize("classes", [2, 5, 10])
def test_spread_loss_has_its_closed_form(classes: int, margin: float) -> None:
    """Equal scores: every wrong class costs the square of the margin; ``sum`` adds the images of a batch."""
    expected = (classes - 1) * margin**2
    loss = partial(spread_loss, margin=margin)
    found = best_constant_loss(loss, even(classes))
    assert found == pytest.approx(expected, rel=1e-3)
    summed = partial(loss, reduction="sum")
    of_batch = best_constant_loss(summed, even(classes), 64)
    assert of_batch == pytest.approx(64 * expected, rel=1e-3)


@pytest.mark.parametrize("loss", [cross_entropy_loss, logits_cross_entropy_loss])
@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.95, 0.05), (0.2, 0.3, 0.5)])
def test_entropy_of_the_labels_is_the_best_constant_cross_entropy(
    shares: tuple[float, ...], loss: Any
) -> None:
    entropy = -sum(share * math.log(share) for share in shares)
    found = best_constant_loss(loss, torch.tensor(shares), logits=True)
    assert found == pytest.approx(entropy, rel=1e-4)


LABELS = torch.tensor([0] * 12 + [1] * 6 + [2] * 2)


@pytest.mark.parametrize(
    "loss",
    [
        margin_loss,
        OFFICIAL_MARGIN_LOSS,
        spread_loss,
        partial(spread_loss, reduction="official"),
        partial(spread_loss, reduction="sum"),
        cross_entropy_loss,
        partial(cross_entropy_loss, label_smoothing=0.1),
        sigmoid_cross_entropy_loss,
    ],
)
def test_loss_of_a_constant_is_that_of_a_batch_with_these_labels(loss: Any) -> None:
    images = len(LABELS)
    scores = torch.tensor([0.6, 0.3, 0.2], dtype=torch.float64)
    expected = loss(scores.expand(images, -1), LABELS)
    shares = LABELS.bincount() / images
    found = loss_of_constant(loss, scores, shares, images)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "shares",
    [(0.5, 0.5), (0.95, 0.05), pytest.param((0.6, 0.3, 0.1), marks=pytest.mark.whole)],
)
def test_no_other_constant_is_better(shares: tuple[float, ...]) -> None:
    """Each component of the best answer is varied; the losses are those of slow loops."""
    classes = len(shares)
    best = best_constant_loss(margin_loss, torch.tensor(shares))
    lengths = torch.linspace(0, 1, 41)
    grid = torch.cartesian_prod(*[lengths] * classes)
    losses = torch.zeros(len(grid))
    for share, truth in zip(shares, torch.eye(classes), strict=True):
        of_class = [margin_loss_loops(answer[None], truth[None]) for answer in grid]
        losses += share * torch.tensor(of_class)
    least = losses.min().item()
    assert best <= least + 1e-6
    assert best == pytest.approx(least, abs=2e-3)


def test_several_labels_per_image_add_up() -> None:
    shares = torch.full((10,), 0.2)  # two of ten classes in each image
    expected = 10 * margin_of_one_class(0.2)
    found = best_constant_loss(margin_loss, shares)
    assert found == pytest.approx(expected, rel=1e-4)
