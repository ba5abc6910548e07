from __future__ import annotations

from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from capsule_lab.losses import cross_entropy_loss, margin_loss, reconstruction_loss
from tests.reference.loops import margin_loss_loops

# The unit test of the authors' released code: several classes may be present, lengths may be anything.
AUTHORS_LABELS = torch.tensor([[0.0, 0, 1], [1, 1, 1]], dtype=torch.float64)
AUTHORS_LENGTHS = torch.tensor([[-0.3, 0.3, 0.9], [1.2, 0.5, -0.5]], dtype=torch.float64)


def lengths(images: int = 4, classes: int = 10) -> Tensor:
    return torch.rand(images, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


# ------------------------------------------------------------------------------------------------- margin


def test_authors_unit_test() -> None:
    summed_over_batch = 2 * margin_loss(AUTHORS_LENGTHS, AUTHORS_LABELS)  # ours is the mean of two images
    assert summed_over_batch.item() == pytest.approx(2.14, abs=1e-12)  # 0.02 + 0.16 + 1.96


def test_authors_unit_test_in_their_form() -> None:
    sum_of_their_terms = 6 * margin_loss(AUTHORS_LENGTHS, AUTHORS_LABELS, reduction="released")  # 2 images, 3 classes
    assert sum_of_their_terms.item() == pytest.approx(1.07, abs=1e-12)


def test_released_form_is_a_twentieth_of_the_papers_for_ten_classes() -> None:
    scores, labels = lengths(), torch.tensor([3, 1, 4, 1])
    released = margin_loss(scores, labels, reduction="released")
    torch.testing.assert_close(20 * released, margin_loss(scores, labels, reduction="paper"), rtol=1e-12, atol=0)


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


def test_margin_is_zero_beyond_the_margins() -> None:
    assert margin_loss(torch.tensor([[0.95, 0.05, 0.0]]), torch.tensor([0])).item() == 0


@pytest.mark.parametrize(
    "changed", [{"present": 0.8}, {"absent": 0.2}, {"absent_weight": 1.0}, {"reduction": "released"}]
)
def test_every_argument_of_the_margin_loss_does_something(changed: dict[str, Any]) -> None:
    labels = torch.tensor([0, 9, 5, 5])
    assert margin_loss(lengths(), labels, **changed) != margin_loss(lengths(), labels)


def test_margin_is_a_mean_over_the_batch() -> None:
    labels = torch.tensor([0, 9, 5, 5])
    twice = margin_loss(lengths().repeat(2, 1), labels.repeat(2))
    torch.testing.assert_close(twice, margin_loss(lengths(), labels))


@pytest.mark.parametrize("reduction", ["paper", "released"])
def test_margin_gradient(reduction: str) -> None:
    scores = lengths(2, 3).requires_grad_()
    assert gradcheck(lambda scores: margin_loss(scores, torch.tensor([0, 2]), reduction=reduction), (scores,))


def test_unknown_reduction_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # in training nothing else checks
    with pytest.raises(ValueError, match="reduction is 'mean'; expected 'paper' or 'released'"):
        margin_loss(lengths(), torch.tensor([0, 9, 5, 5]), reduction="mean")


# ----------------------------------------------------------------------------------------- reconstruction


def test_reconstruction_is_summed_over_pixels() -> None:
    loss = reconstruction_loss(torch.zeros(3, 1, 28, 28), torch.full((3, 1, 28, 28), 0.5))
    assert loss.item() == pytest.approx(0.0005 * 784 * 0.25)


def test_reconstruction_is_averaged_over_images() -> None:
    images = torch.zeros(4, 2, 3, 3)
    images[0] = 1
    assert reconstruction_loss(torch.zeros(4, 2, 3, 3), images).item() == pytest.approx(0.0005 * 18 / 4)


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


# ----------------------------------------------------------------------------------------------- in float32


@pytest.mark.parametrize("loss", [margin_loss, cross_entropy_loss])
def test_half_precision_scores_give_a_float32_loss(loss: Any) -> None:
    scores, labels = lengths().bfloat16(), torch.tensor([0, 9, 5, 5])
    assert loss(scores, labels).dtype == torch.float32
    assert torch.equal(loss(scores, labels), loss(scores.float(), labels))


def test_half_precision_images_give_a_float32_loss() -> None:
    decoded, images = torch.rand(2, 1, 3, 3).bfloat16(), torch.rand(2, 1, 3, 3)
    assert torch.equal(reconstruction_loss(decoded, images), reconstruction_loss(decoded.float(), images))
