"""Losses equal loops and published numbers, and keep the contract of all losses."""

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsule_lab import (
    cross_entropy_loss,
    l2_loss,
    logits_cross_entropy_loss,
    sigmoid_cross_entropy_loss,
)
from capsule_lab.losses import margin_loss, reconstruction_loss, spread_loss
from tests.reference.loops import margin_loss_loops

# The unit test of the authors' official code: several classes may be present, lengths may be anything.
AUTHORS_LABELS = torch.tensor([[0.0, 0, 1], [1, 1, 1]], dtype=torch.float64)
AUTHORS_LENGTHS = torch.tensor([[-0.3, 0.3, 0.9], [1.2, 0.5, -0.5]], dtype=torch.float64)
LABELS = torch.tensor([0, 9, 5, 5])
IMAGES = torch.zeros(1, 1, 2, 2)
exact: dict[str, float] = {"rtol": 1e-12, "atol": 0}


def lengths(images: int = 4, classes: int = 10) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(images, classes, dtype=torch.float64, generator=generator)


def test_margin_loss_passes_the_unit_test_of_the_authors() -> None:
    """Theirs are sums over two images and three classes."""
    mean = margin_loss(AUTHORS_LENGTHS, AUTHORS_LABELS)
    assert 2 * mean.item() == pytest.approx(2.14, abs=1e-12)  # 0.02 + 0.16 + 1.96
    official = margin_loss(AUTHORS_LENGTHS, AUTHORS_LABELS, reduction="official")
    assert 6 * official.item() == pytest.approx(1.07, abs=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"present": 0.7},
        {"absent": 0.3},
        {"absent_weight": 1.0},
        {"present": 0.95, "absent": 0.05},
    ],
)
def test_margin_loss_equals_the_loops(options: dict[str, float]) -> None:
    scores = lengths()
    single = torch.eye(10)[LABELS]
    several = torch.zeros(4, 10, dtype=torch.float64)
    several[:, [2, 7]] = 1
    for truth in (single, several):
        expected = margin_loss_loops(scores, truth, **options)
        found = margin_loss(scores, truth, **options)
        assert found.item() == pytest.approx(expected, abs=1e-12)
    if options:
        assert margin_loss(scores, LABELS, **options) != margin_loss(scores, LABELS)


def test_margin_loss_of_labels_is_that_of_rows() -> None:
    scores = lengths()
    single = torch.eye(10)[LABELS]
    several = torch.zeros(4, 10, dtype=torch.float64)
    several[:, [2, 7]] = 1
    two_labels = torch.tensor([[2, 7]] * 4)
    of_single = margin_loss(scores, single)
    of_several = margin_loss(scores, several)
    assert margin_loss(scores, LABELS).equal(of_single)
    assert margin_loss(scores, two_labels).equal(of_several)


def test_margin_loss_is_zero_beyond_the_margins() -> None:
    scores = torch.tensor([[0.95, 0.05, 0.0]])
    labels = torch.tensor([0])
    assert margin_loss(scores, labels).item() == 0


def spread_loops(scores: Tensor, labels: Tensor, margin: float) -> float:
    """Equation 3, averaged over the batch."""
    total = 0.0
    for row, label in zip(scores.tolist(), labels.tolist(), strict=True):
        for i, score in enumerate(row):
            if i != label:
                distance = row[label] - score
                total += max(0.0, margin - distance) ** 2
    return total / len(scores)


@pytest.mark.parametrize("margin", [0.2, 0.9])
def test_spread_loss_equals_the_loops(margin: float) -> None:
    scores = lengths()
    expected = spread_loops(scores, LABELS, margin)
    loss = spread_loss(scores, LABELS, margin=margin)
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    mean_over_ten_classes = spread_loss(scores, LABELS, margin=margin, reduction="official")
    torch.testing.assert_close(mean_over_ten_classes, loss / 10, **exact)
    sum_over_four_images = spread_loss(scores, LABELS, margin=margin, reduction="sum")
    torch.testing.assert_close(sum_over_four_images, 4 * loss, **exact)


def test_reconstruction_loss_is_summed_over_pixels_and_averaged_over_images() -> None:
    black = torch.zeros(3, 1, 28, 28)
    grey = black + 0.5
    loss = reconstruction_loss(black, grey)
    assert loss.item() == pytest.approx(0.0005 * 784 * 0.25)
    of_mean = reconstruction_loss(black, grey, weight=0.392, reduction="mean")
    assert of_mean.item() == pytest.approx(0.392 * 0.25)
    without_weight = reconstruction_loss(black, grey, weight=0.0)
    assert without_weight.item() == 0
    small = torch.zeros(4, 2, 3, 3)
    one_is_white = small.clone()
    one_is_white[0] = 1
    loss = reconstruction_loss(small, one_is_white, weight=0.1)
    assert loss.item() == pytest.approx(0.1 * 18 / 4)


def test_reconstruction_loss_of_half_precision_is_that_of_float32() -> None:
    images = torch.rand(4, 2, 3, 3)
    half = torch.rand(4, 2, 3, 3).bfloat16()
    found = reconstruction_loss(half, images)
    expected = reconstruction_loss(half.float(), images)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("loss", [cross_entropy_loss, logits_cross_entropy_loss])
def test_softmax_cross_entropy_equals_its_formula(loss: Callable[..., Tensor]) -> None:
    """With smoothing, the truth is 0.9 + 0.1 / 10 of its class and 0.1 / 10 of each other (Szegedy 2016, section 7)."""
    scores = lengths()
    labels = torch.tensor([3, 1, 4, 1])
    rows = torch.eye(10, dtype=torch.float64)[labels]
    smoothed = 0.9 * rows + 0.01
    for truth, options in ((rows, {}), (smoothed, {"label_smoothing": 0.1})):
        log_likelihoods = truth * scores.log_softmax(1)
        expected = -log_likelihoods.sum(1).mean()
        of_labels = loss(scores, labels, **options)
        of_rows = loss(scores, truth)
        torch.testing.assert_close(of_labels, expected, **exact)
        torch.testing.assert_close(of_rows, expected, **exact)


@pytest.mark.parametrize("loss", [cross_entropy_loss, logits_cross_entropy_loss])
def test_softmax_cross_entropy_of_perfect_activations_and_certain_logits(
    loss: Callable[..., Tensor],
) -> None:
    first = torch.tensor([0])
    one_hot = torch.tensor([[1.0, 0, 0, 0, 0]])
    perfect = loss(one_hot, first)
    expected = math.log(1 + 4 / math.e)
    assert perfect.item() == pytest.approx(expected), "perfect activations lose"
    certain = torch.tensor([[-40.0, 40.0]], requires_grad=True)
    loss(certain, first).backward()
    assert certain.grad.tolist() == [[-1.0, 1.0]]


def test_sigmoid_cross_entropy_loss_equals_the_loops() -> None:
    scores = lengths(3, 4)
    labels = [[0, 2], [3, 1], [1, 2]]
    total = 0.0
    for logits, present in zip(scores.tolist(), labels, strict=True):
        for k, logit in enumerate(logits):
            probability = 1 / (1 + math.exp(-logit))
            likelihood = probability if k in present else 1 - probability
            total -= math.log(likelihood)
    loss = sigmoid_cross_entropy_loss(scores, torch.tensor(labels))
    assert loss.item() == pytest.approx(total / 3, rel=1e-6)
    one = torch.tensor([1, 0, 3])
    of_lists = sigmoid_cross_entropy_loss(scores, one[:, None])
    assert sigmoid_cross_entropy_loss(scores, one).equal(of_lists)


def test_l2_loss_is_half_the_sum_of_squares_of_kernels() -> None:
    layer = nn.Conv2d(2, 3, 3).double()
    loss = l2_loss(layer.parameters(), weight=0.5)
    squares = layer.weight.square().sum().item()
    assert loss.item() == pytest.approx(0.5 / 2 * squares), "biases do not count"
    loss = l2_loss([torch.ones(10, 10)])
    assert loss.item() == pytest.approx(2e-7 * 50), "the weight of the official EM code"
    norm = nn.BatchNorm2d(3)
    without_kernels = l2_loss([norm.weight, torch.tensor(1.0)])
    assert without_kernels.item() == 0
    kernel = torch.full((40, 40), 3.0)
    of_half = l2_loss([kernel.bfloat16()])
    assert torch.equal(of_half, l2_loss([kernel]))


EXPECTS: dict[Callable[..., Tensor], str | None] = {
    margin_loss: "activations",
    spread_loss: "activations",
    sigmoid_cross_entropy_loss: "logits",
    cross_entropy_loss: None,  # either
    logits_cross_entropy_loss: "logits",
}


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("loss", EXPECTS)
def test_every_loss_keeps_the_contract(loss: Any) -> None:
    """Losses declare their input, compute in float32, average over images, and refuse labels out of range."""
    assert getattr(loss, "expects", None) == EXPECTS[loss]
    half = lengths().bfloat16()
    of_half = loss(half, LABELS)
    of_float32 = loss(half.float(), LABELS)
    assert of_half.dtype == torch.float32
    assert torch.equal(of_half, of_float32)
    once = loss(lengths(), LABELS)
    twice = loss(lengths().repeat(2, 1), LABELS.repeat(2))
    torch.testing.assert_close(twice, once, **exact)
    scores = lengths(3, 5)
    labels = torch.tensor([0, 4, 2])
    expected = loss(scores, labels)

    def of_image(one: Tensor, label: Tensor) -> Tensor:
        return loss(one[None], label[None])

    by_image = torch.func.vmap(of_image)(scores, labels)
    torch.testing.assert_close(by_image.mean(), expected)
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    of_compiled = compiled(scores, labels)
    torch.testing.assert_close(of_compiled, expected)

    for wrong in ([0, 1, 9], [0, -1, 2], [-100, 0, 0]):
        message = f"^labels are {min(wrong)} to {max(wrong)}; expected classes, 0 to 4$"
        with pytest.raises(ValueError, match=message):
            loss(scores, torch.tensor(wrong))
    with pytest.raises(ValueError, match=r"^the batch is empty; expected one or more images$"):
        loss(scores[:0], labels[:0])


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: margin_loss(lengths(), LABELS, reduction="mean"),
            "margin loss reduction is 'mean'; expected 'paper'",
        ),
        (
            lambda: margin_loss(lengths(), LABELS, present=0.1),
            "absent is 0.1 and present is 0.1; expected absent to b",
        ),
        (
            lambda: spread_loss(lengths(), LABELS, margin=0.0),
            "margin is 0.0; expected more than 0, at most 1",
        ),
        (
            lambda: spread_loss(lengths(), LABELS[:, None]),
            r"the spread loss received labels of the shape \(4, 1\); expected one class",
        ),
        (
            lambda: spread_loss(lengths(), LABELS[:, None].expand(-1, 2)),
            "the spread loss takes one label per image, ",
        ),
        (
            lambda: spread_loss(lengths(), lengths()),
            "the spread loss takes one label per image, but these are shar",
        ),
        (
            lambda: cross_entropy_loss(lengths(), LABELS, label_smoothing=1.0),
            "label_smoothing is 1.0; expected 0 or m",
        ),
        (
            lambda: reconstruction_loss(IMAGES, IMAGES, weight=-1),
            "weight is -1; expected 0 or more",
        ),
        (
            lambda: reconstruction_loss(torch.zeros(0, 1, 2, 2), torch.zeros(0, 1, 2, 2)),
            "the batch is empty",
        ),
        (lambda: l2_loss([], weight=-1), "weight is -1; expected 0 or more"),
    ],
)
def test_invalid_arguments_of_losses_are_refused(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


WEIGHTED = [
    margin_loss,
    functools.partial(margin_loss, reduction="official"),
    spread_loss,
    functools.partial(spread_loss, reduction="official"),
    cross_entropy_loss,
    functools.partial(cross_entropy_loss, label_smoothing=0.1),
    logits_cross_entropy_loss,
    sigmoid_cross_entropy_loss,
]


@pytest.mark.parametrize("loss", WEIGHTED)
def test_weighted_loss_is_the_mean_of_weighted_losses_of_images(loss: Any) -> None:
    scores = lengths()
    weights = torch.tensor([0.5, 3.0, 1.0, 0.1], dtype=torch.float64)
    expected = torch.zeros((), dtype=torch.float64)
    for weight, score, label in zip(weights, scores, LABELS, strict=True):
        of_image = loss(score[None], label[None])
        expected += weight * of_image
    found = loss(scores, LABELS, weights=weights)
    torch.testing.assert_close(found, expected / len(scores), **exact)


def test_weighted_sum_of_spread_losses_is_their_mean_times_their_number() -> None:
    scores = lengths()
    weights = torch.tensor([0.5, 3.0, 1.0, 0.1], dtype=torch.float64)
    found = spread_loss(scores, LABELS, weights=weights, reduction="sum")
    mean = spread_loss(scores, LABELS, weights=weights)
    torch.testing.assert_close(found, len(scores) * mean, **exact)


def test_loss_refuses_weights_of_other_images() -> None:
    scores = lengths()
    weights = torch.ones(3)
    with pytest.raises(ValueError, match="margin_loss received weights"):
        margin_loss(scores, LABELS, weights=weights)
