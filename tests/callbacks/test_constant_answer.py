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


@pytest.mark.parametrize("classes", [2, 3, 5, 8, 10, 100])
def test_margin_loss_has_its_closed_form(classes: int) -> None:
    expected = classes * margin_of_one_class(1 / classes)
    assert best_constant_loss(margin_loss, even(classes)) == pytest.approx(expected, rel=1e-4)
    of_other_scale = best_constant_loss(partial(margin_loss, reduction="official"), even(classes))
    assert of_other_scale == pytest.approx(expected / (2 * classes), rel=1e-4)


def test_numbers_that_plateaus_of_capsnets_show() -> None:
    """Two and ten balanced classes, as in runs on blank images."""
    assert best_constant_loss(margin_loss, even(2)) == pytest.approx(0.2133, abs=1e-4)
    assert best_constant_loss(margin_loss, even(10)) == pytest.approx(0.5236, abs=1e-4)
    dead, saturated = torch.zeros(10).double(), torch.ones(10).double()
    assert loss_of_constant(margin_loss, dead, even(10), 1).item() == pytest.approx(0.81)
    assert loss_of_constant(margin_loss, saturated, even(10), 1).item() == pytest.approx(3.645)


@pytest.mark.parametrize("margin", [0.2, 0.9])
@pytest.mark.parametrize("classes", [2, 5, 10])
def test_spread_loss_has_its_closed_form(classes: int, margin: float) -> None:
    """Equal scores: every wrong class costs the square of the margin; ``sum`` adds the images of a batch."""
    expected = (classes - 1) * margin**2
    loss = partial(spread_loss, margin=margin)
    assert best_constant_loss(loss, even(classes)) == pytest.approx(expected, rel=1e-3)
    of_batch = best_constant_loss(partial(loss, reduction="sum"), even(classes), 64)
    assert of_batch == pytest.approx(64 * expected, rel=1e-3)


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.95, 0.05), (0.2, 0.3, 0.5)])
def test_entropy_of_the_labels_is_the_best_constant_cross_entropy(
    shares: tuple[float, ...],
) -> None:
    entropy = -sum(share * math.log(share) for share in shares)
    for loss in (cross_entropy_loss, logits_cross_entropy_loss):
        found = best_constant_loss(loss, torch.tensor(shares), logits=True)
        assert found == pytest.approx(entropy, rel=1e-4)


LABELS = torch.tensor([0] * 12 + [1] * 6 + [2] * 2)


@pytest.mark.parametrize(
    "loss",
    [
        margin_loss,
        partial(margin_loss, reduction="official"),
        spread_loss,
        partial(spread_loss, reduction="official"),
        partial(spread_loss, reduction="sum"),
        cross_entropy_loss,
        partial(cross_entropy_loss, label_smoothing=0.1),
        sigmoid_cross_entropy_loss,
    ],
)
def test_loss_of_a_constant_is_that_of_a_batch_with_these_labels(loss: Any) -> None:
    scores = torch.tensor([0.6, 0.3, 0.2], dtype=torch.float64)
    expected = loss(scores.expand(len(LABELS), -1), LABELS)
    found = loss_of_constant(loss, scores, LABELS.bincount() / len(LABELS), len(LABELS))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "shares",
    [(0.5, 0.5), (0.95, 0.05), pytest.param((0.6, 0.3, 0.1), marks=pytest.mark.whole)],
)
def test_no_other_constant_is_better(shares: tuple[float, ...]) -> None:
    """Each component of the best answer is varied; the losses are those of slow loops."""
    best = best_constant_loss(margin_loss, torch.tensor(shares))
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 41)] * len(shares))
    losses = torch.zeros(len(grid))
    for share, truth in zip(shares, torch.eye(len(shares)), strict=True):
        of_class = [margin_loss_loops(answer[None], truth[None]) for answer in grid]
        losses += share * torch.tensor(of_class)
    assert best <= losses.min() + 1e-6
    assert best == pytest.approx(losses.min().item(), abs=2e-3)


def test_several_labels_per_image_add_up() -> None:
    shares = torch.full((10,), 0.2)  # two of ten classes in each image
    expected = 10 * margin_of_one_class(0.2)
    assert best_constant_loss(margin_loss, shares) == pytest.approx(expected, rel=1e-4)
