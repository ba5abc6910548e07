from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from capsule_lab.losses import (
    cross_entropy_loss,
    l2_loss,
    logits_cross_entropy_loss,
    margin_loss,
    reconstruction_loss,
    sigmoid_cross_entropy_loss,
    spread_loss,
)
from tests.reference.loops import margin_loss_loops

# The unit test of the authors' official code: several classes may be present, lengths may be anything.
AUTHORS_LABELS = torch.tensor([[0.0, 0, 1], [1, 1, 1]], dtype=torch.float64)
AUTHORS_LENGTHS = torch.tensor([[-0.3, 0.3, 0.9], [1.2, 0.5, -0.5]], dtype=torch.float64)


def lengths(images: int = 4, classes: int = 10) -> Tensor:
    return torch.rand(images, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (margin_loss, "activations"),
        (spread_loss, "activations"),
        (sigmoid_cross_entropy_loss, "logits"),
        (cross_entropy_loss, None),  # either
        (logits_cross_entropy_loss, "logits"),
    ],
)
def test_losses_declare_which_scores_they_expect(loss: Any, expected: str | None) -> None:
    assert getattr(loss, "expects", None) == expected


# ------------------------------------------------------------------------------------------------- margin


def test_authors_unit_test() -> None:
    summed_over_batch = 2 * margin_loss(AUTHORS_LENGTHS, AUTHORS_LABELS)  # ours is the mean of two images
    assert summed_over_batch.item() == pytest.approx(2.14, abs=1e-12)  # 0.02 + 0.16 + 1.96


def test_authors_unit_test_in_their_form() -> None:
    sum_of_their_terms = 6 * margin_loss(AUTHORS_LENGTHS, AUTHORS_LABELS, reduction="official")  # 2 images, 3 classes
    assert sum_of_their_terms.item() == pytest.approx(1.07, abs=1e-12)


def test_official_form_is_a_twentieth_of_the_papers_for_ten_classes() -> None:
    scores, labels = lengths(), torch.tensor([3, 1, 4, 1])
    official = margin_loss(scores, labels, reduction="official")
    torch.testing.assert_close(20 * official, margin_loss(scores, labels, reduction="paper"), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "options", [{}, {"present": 0.7}, {"absent": 0.3}, {"absent_weight": 1.0}, {"present": 0.95, "absent": 0.05}]
)
def test_margin_equals_the_loops(options: dict[str, float]) -> None:
    scores, labels = lengths(), torch.tensor([0, 9, 5, 5])
    truth = torch.eye(10)[labels]
    assert margin_loss(scores, labels, **options).item() == pytest.approx(
        margin_loss_loops(scores, truth, **options), abs=1e-12
    )


def test_margin_of_several_present_classes() -> None:
    truth = torch.zeros(4, 10, dtype=torch.float64)
    truth[:, [2, 7]] = 1
    assert margin_loss(lengths(), truth).item() == pytest.approx(margin_loss_loops(lengths(), truth), abs=1e-12)


def test_class_numbers_and_rows_of_zeros_and_ones_are_the_same() -> None:
    labels = torch.tensor([0, 9, 5, 5])
    assert torch.equal(margin_loss(lengths(), labels), margin_loss(lengths(), torch.eye(10)[labels]))


@pytest.mark.parametrize("loss", [margin_loss, sigmoid_cross_entropy_loss])
def test_several_labels_are_rows_of_zeros_and_ones(loss: Callable[..., Tensor]) -> None:
    scores = lengths(4, 5)
    labels = torch.tensor([[0, 1], [4, 2], [3, 0], [1, 4]])
    rows = torch.zeros(4, 5, dtype=scores.dtype).scatter(1, labels, 1.0)
    torch.testing.assert_close(loss(scores, labels), loss(scores, rows))


def test_sigmoid_cross_entropy_equals_the_loops() -> None:
    scores, labels = lengths(3, 4), [[0, 2], [3, 1], [1, 2]]
    total = 0.0
    for image, present in enumerate(labels):
        for k in range(4):
            probability = 1 / (1 + math.exp(-scores[image, k].item()))
            total -= math.log(probability if k in present else 1 - probability)
    assert sigmoid_cross_entropy_loss(scores, torch.tensor(labels)).item() == pytest.approx(total / 3, rel=1e-6)


def test_sigmoid_cross_entropy_of_one_label_per_image() -> None:
    scores, labels = lengths(3, 4), torch.tensor([1, 0, 3])
    assert sigmoid_cross_entropy_loss(scores, labels).equal(sigmoid_cross_entropy_loss(scores, labels[:, None]))


def test_cross_entropy_of_logits_is_that_of_log_odds() -> None:
    scores, labels = lengths(), torch.tensor([3, 1, 4, 1])
    expected = cross_entropy_loss(scores, labels, log_odds=True)
    torch.testing.assert_close(logits_cross_entropy_loss(scores.logit(), labels), expected, rtol=1e-12, atol=0)


def test_cross_entropy_of_logits_has_a_gradient_where_activations_are_certain() -> None:
    logits = torch.tensor([[-40.0, 40.0]], requires_grad=True)
    (of_logits,) = torch.autograd.grad(logits_cross_entropy_loss(logits, torch.tensor([0])), logits)
    (of_odds,) = torch.autograd.grad(
        cross_entropy_loss(logits.sigmoid(), torch.tensor([0]), log_odds=True), logits, materialize_grads=True
    )
    assert of_odds.tolist() == [[0.0, 0.0]]
    assert of_logits.tolist() == [[-1.0, 1.0]]


@pytest.mark.parametrize("loss", [cross_entropy_loss, logits_cross_entropy_loss])
def test_label_smoothing(loss: Callable[..., Tensor]) -> None:
    """The truth is 0.9 + 0.1 / 10 of its class and 0.1 / 10 of each other (Szegedy 2016, section 7)."""
    scores, labels = lengths(), torch.tensor([3, 1, 4, 1])
    truth = 0.9 * torch.eye(10, dtype=torch.float64)[labels] + 0.01
    expected = -(truth * scores.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(loss(scores, labels, label_smoothing=0.1), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_label_smoothing_that_cannot_be(share: float) -> None:
    with pytest.raises(ValueError, match=f"label_smoothing is {share}; expected 0 or more, less than 1"):
        cross_entropy_loss(lengths(), torch.tensor([3, 1, 4, 1]), label_smoothing=share)


@pytest.mark.parametrize("loss", [spread_loss, cross_entropy_loss])
def test_losses_for_one_label_refuse_several(loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match="for one label per image, these have 2: loss=margin for capsules"):
        loss(torch.zeros(3, 4), torch.zeros(3, 2, dtype=torch.int64))


def test_margin_is_zero_beyond_the_margins() -> None:
    assert margin_loss(torch.tensor([[0.95, 0.05, 0.0]]), torch.tensor([0])).item() == 0


@pytest.mark.parametrize(
    "changed", [{"present": 0.8}, {"absent": 0.2}, {"absent_weight": 1.0}, {"reduction": "official"}]
)
def test_every_argument_of_the_margin_loss_does_something(changed: dict[str, Any]) -> None:
    labels = torch.tensor([0, 9, 5, 5])
    assert margin_loss(lengths(), labels, **changed) != margin_loss(lengths(), labels)


def test_margin_is_a_mean_over_the_batch() -> None:
    labels = torch.tensor([0, 9, 5, 5])
    twice = margin_loss(lengths().repeat(2, 1), labels.repeat(2))
    torch.testing.assert_close(twice, margin_loss(lengths(), labels))


@pytest.mark.parametrize("reduction", ["paper", "official"])
def test_margin_gradient(reduction: str) -> None:
    scores = lengths(2, 3).requires_grad_()
    assert gradcheck(lambda scores: margin_loss(scores, torch.tensor([0, 2]), reduction=reduction), (scores,))


def test_unknown_reduction_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # in training nothing else checks
    with pytest.raises(ValueError, match="reduction is 'mean'; expected 'paper' or 'official'"):
        margin_loss(lengths(), torch.tensor([0, 9, 5, 5]), reduction="mean")


def test_margin_loss_of_the_official_em_code_is_half_of_this_one() -> None:
    scores, labels = lengths(classes=5), torch.tensor([0, 4, 2, 2])
    x, true = scores - 0.5, torch.eye(5, dtype=torch.float64)[labels]
    present, absent = 0.5 * (x < 0.4) * (x - 0.4) ** 2, 0.25 * (x > -0.4) * (x + 0.4) ** 2
    torch.testing.assert_close(0.5 * margin_loss(scores, labels), (true * present + (1 - true) * absent).sum(1).mean())


# ------------------------------------------------------------------------------------------------- spread


def spread_loops(scores: Tensor, labels: Tensor, margin: float) -> float:
    """Equation 3, averaged over the batch."""
    total = 0.0
    for row, label in zip(scores.tolist(), labels.tolist(), strict=True):
        for i in range(len(row)):
            if i != label:
                total += max(0.0, margin - (row[label] - row[i])) ** 2
    return total / len(scores)


@pytest.mark.parametrize("margin", [0.2, 0.5, 0.9, 0.99])
def test_spread_equals_the_loops(margin: float) -> None:
    labels = torch.tensor([0, 9, 5, 5])
    expected = spread_loops(lengths(), labels, margin)
    assert spread_loss(lengths(), labels, margin=margin).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("classes", [2, 5])
def test_official_spread_is_a_mean_over_all_classes_too(classes: int) -> None:
    labels = torch.tensor([0, 1, 1, 0])
    official = spread_loss(lengths(classes=classes), labels, reduction="official")
    torch.testing.assert_close(classes * official, spread_loss(lengths(classes=classes), labels), rtol=1e-12, atol=0)


@pytest.mark.parametrize(("lead", "loss"), [(0.9, 0.0), (0.95, 0.0), (0.8, 0.01), (0.0, 0.81), (-0.1, 1.0)])
def test_spread_of_one_wrong_class(lead: float, loss: float) -> None:
    scores = torch.tensor([[0.5, 0.5 + lead]], dtype=torch.float64)
    assert spread_loss(scores, torch.tensor([1])).item() == pytest.approx(loss, abs=1e-12)


def test_spread_where_all_activations_are_equal_is_the_squared_margin_per_wrong_class() -> None:
    assert spread_loss(torch.full((3, 5), 0.5), torch.tensor([0, 1, 2]), margin=0.2).item() == pytest.approx(4 * 0.04)


def test_spread_of_a_tutorial_is_summed_over_the_batch_too() -> None:
    labels = torch.tensor([0, 9, 5, 5])
    summed = spread_loss(lengths(), labels, reduction="sum")
    torch.testing.assert_close(summed, 4 * spread_loss(lengths(), labels), rtol=1e-12, atol=0)


@pytest.mark.parametrize("changed", [{"margin": 0.2}, {"reduction": "official"}, {"reduction": "sum"}])
def test_every_argument_of_the_spread_loss_does_something(changed: dict[str, Any]) -> None:
    labels = torch.tensor([0, 9, 5, 5])
    assert spread_loss(lengths(), labels, **changed) != spread_loss(lengths(), labels)


@pytest.mark.parametrize("reduction", ["paper", "official", "sum"])
def test_spread_gradient(reduction: str) -> None:
    scores = lengths(2, 3).requires_grad_()
    assert gradcheck(lambda scores: spread_loss(scores, torch.tensor([0, 2]), reduction=reduction), (scores,))


def test_unknown_reduction_of_the_spread_loss_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match="spread loss reduction is 'mean'; expected 'paper', 'official' or"):
        spread_loss(lengths(), torch.tensor([0, 9, 5, 5]), reduction="mean")


# ----------------------------------------------------------------------------------------- reconstruction


def test_reconstruction_is_summed_over_pixels() -> None:
    loss = reconstruction_loss(torch.zeros(3, 1, 28, 28), torch.full((3, 1, 28, 28), 0.5))
    assert loss.item() == pytest.approx(0.0005 * 784 * 0.25)


def test_reconstruction_is_averaged_over_images() -> None:
    images = torch.zeros(4, 2, 3, 3)
    images[0] = 1
    assert reconstruction_loss(torch.zeros(4, 2, 3, 3), images).item() == pytest.approx(0.0005 * 18 / 4)


def test_reconstruction_averaged_over_pixels() -> None:
    loss = reconstruction_loss(torch.zeros(3, 2, 6, 7), torch.full((3, 2, 6, 7), 0.5), weight=0.392, reduction="mean")
    assert loss.item() == pytest.approx(0.392 * 0.25)


@pytest.mark.parametrize("weight", [0.0, 0.01])
def test_reconstruction_weight(weight: float) -> None:
    loss = reconstruction_loss(torch.zeros(2, 1, 2, 2), torch.ones(2, 1, 2, 2), weight=weight)
    assert loss.item() == pytest.approx(4 * weight)


def test_reconstruction_gradient() -> None:
    decoded = torch.rand(2, 1, 2, 2, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda decoded: reconstruction_loss(decoded, torch.ones_like(decoded)), (decoded,))


# ------------------------------------------------------------------------------------------ cross-entropy


@pytest.mark.parametrize("labels", [torch.tensor([0, 1]), torch.eye(2, dtype=torch.float64)])
def test_cross_entropy(labels: Tensor) -> None:
    logits = torch.tensor([[1.0, 3.0], [0.5, 0.0]], dtype=torch.float64)
    expected = -logits.log_softmax(1).diagonal().mean()
    torch.testing.assert_close(cross_entropy_loss(logits, labels), expected)


def test_perfect_activations_still_cost_something_in_the_softmax() -> None:
    loss = cross_entropy_loss(torch.tensor([[1.0, 0, 0, 0, 0]]), torch.tensor([0]))
    assert loss.item() == pytest.approx(math.log(1 + 4 / math.e))


def test_cross_entropy_on_log_odds_is_that_on_the_logits_of_the_activations() -> None:
    logits = torch.tensor([[1.0, 3.0], [-5.0, 0.0], [7.0, -8.0]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 1])
    found = cross_entropy_loss(logits.sigmoid(), labels, log_odds=True)
    torch.testing.assert_close(found, cross_entropy_loss(logits, labels))


@pytest.mark.parametrize("eps", [1e-6, 1e-3])
def test_certain_activations_have_finite_log_odds(eps: float) -> None:
    scores = torch.tensor([[1.0, 0.0]], requires_grad=True)
    loss = cross_entropy_loss(scores, torch.tensor([1]), log_odds=True, eps=eps)
    loss.backward()
    assert loss.item() == pytest.approx(2 * math.log(1 / eps), rel=1e-2)
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


def test_cross_entropy_on_log_odds_gradient() -> None:
    scores = lengths(2, 3).requires_grad_()
    assert gradcheck(lambda scores: cross_entropy_loss(scores, torch.tensor([0, 2]), log_odds=True), (scores,))


# ----------------------------------------------------------------------------------------------------- L2


@pytest.mark.parametrize("weight", [0.0, 2e-7, 0.5])
def test_l2_is_half_the_sum_of_squares_of_kernels(weight: float) -> None:
    layer = nn.Conv2d(2, 3, 3).double()
    loss = l2_loss(layer.parameters(), weight=weight)
    assert loss.item() == pytest.approx(weight / 2 * layer.weight.square().sum().item())


@pytest.mark.parametrize(
    "parameter",
    [nn.Linear(2, 3).bias, nn.BatchNorm2d(3).weight, torch.ones(3), torch.tensor(1.0)],
    ids=["bias", "scale", "beta", "scalar"],
)
def test_l2_of_what_is_no_kernel_is_zero(parameter: Tensor) -> None:
    kernel = torch.ones(2, 2)
    assert l2_loss([parameter]).item() == 0
    assert l2_loss([kernel, parameter, kernel]) == 2 * l2_loss([kernel])


def test_gradient_of_l2_is_the_kernel_times_the_weight() -> None:
    kernel = lengths().requires_grad_()
    l2_loss([kernel], weight=0.1).backward()
    torch.testing.assert_close(kernel.grad, 0.1 * kernel.detach())


def test_l2_by_default_is_that_of_the_official_em_code() -> None:
    assert l2_loss([torch.ones(10, 10)]).item() == pytest.approx(2e-7 * 50)


def test_l2_of_half_precision_kernels_is_float32() -> None:
    kernel = torch.full((40, 40), 3.0)
    assert torch.equal(l2_loss([kernel.bfloat16()]), l2_loss([kernel]))


# ----------------------------------------------------------------------------------------------- in float32


@pytest.mark.parametrize(
    "loss", [margin_loss, spread_loss, cross_entropy_loss, functools.partial(cross_entropy_loss, log_odds=True)]
)
def test_half_precision_scores_give_a_float32_loss(loss: Any) -> None:
    scores, labels = lengths().bfloat16(), torch.tensor([0, 9, 5, 5])
    assert loss(scores, labels).dtype == torch.float32
    assert torch.equal(loss(scores, labels), loss(scores.float(), labels))


def test_half_precision_images_give_a_float32_loss() -> None:
    decoded, images = torch.rand(2, 1, 3, 3).bfloat16(), torch.rand(2, 1, 3, 3)
    assert torch.equal(reconstruction_loss(decoded, images), reconstruction_loss(decoded.float(), images))


LOSSES = [margin_loss, spread_loss, cross_entropy_loss, logits_cross_entropy_loss, sigmoid_cross_entropy_loss]


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("loss", LOSSES)
def test_label_that_is_no_class_and_empty_batch_are_one_sentence(loss: Callable[..., Tensor]) -> None:
    scores = lengths(4, 5)
    for labels in ([0, 1, 2, 9], [0, -1, 2, 3], [-100, 0, 0, 0]):
        with pytest.raises(ValueError, match=rf"^labels are {min(labels)} to {max(labels)}; expected classes, 0 to 4$"):
            loss(scores, torch.tensor(labels))
    for labels in (torch.zeros(0, dtype=torch.int64), torch.zeros(0, 5)):
        if loss is not spread_loss or not labels.is_floating_point():
            with pytest.raises(ValueError, match=r"^the batch is empty, .* expected one or more$"):
                loss(scores[:0], labels)
    images = torch.zeros(0, 1, 2, 2)
    with pytest.raises(ValueError, match=r"^the batch is empty"):
        reconstruction_loss(images, images)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("loss", LOSSES)
def test_labels_are_not_read_where_they_cannot_be(loss: Callable[..., Tensor]) -> None:
    """Within ``torch.func``, and in one graph of ``torch.compile``."""
    scores, labels = lengths(3, 5), torch.tensor([0, 4, 2])
    each = torch.func.vmap(lambda one, label: loss(one[None], label[None]))(scores, labels)
    torch.testing.assert_close(each.mean(), loss(scores, labels))
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(scores, labels), loss(scores, labels))
