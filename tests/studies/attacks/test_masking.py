"""Checks of attacks, on networks and attacks that are sound and on ones that are not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from capsule_lab.studies.attacks import masking
from capsule_lab.studies.attacks.gradient import gradient_of

GRADIENTS = masking.Gradients(zero_pixels=10.0, zero_images=0.0, median=1e-2, lowest=1e-3, highest=0.1)


def test_gradients_are_counted_and_measured() -> None:
    found = torch.zeros(4, 1, 2, 2)
    found[0] = torch.tensor([[1.0, -1.0], [0.0, 2.0]])
    found[1] = 0.5
    found[2, 0, 0, 0] = -4
    measured = masking.gradients(found)
    assert (measured.zero_pixels, measured.zero_images) == (50.0, 25.0)  # 1 + 0 + 3 + 4 of 16
    assert measured.median == pytest.approx(0.75)
    assert (measured.lowest, measured.highest) == pytest.approx((0.015, 1.0), abs=0.01)


def smooth(images: Tensor) -> Tensor:
    return images.sin().prod(3).sum((1, 2))


def cut(images: Tensor) -> Tensor:
    """As routing whose couplings are detached."""
    return (images.detach().sin() * images).sum((1, 2, 3))


def test_finite_differences_see_a_gradient_that_is_cut() -> None:
    images = torch.rand(3, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert masking.exact_gradient(masking.gradient_error(smooth, images)).passed
    assert not masking.exact_gradient(masking.gradient_error(cut, images)).passed


def test_finite_differences_know_a_kink() -> None:
    """A rectified linear unit that begins to be active within the largest step is no cut graph."""
    images = torch.rand(3, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def kinked(moved: Tensor) -> Tensor:
        return smooth(moved) + 1000 * (moved - images - 3e-7).relu().sum((1, 2, 3))

    assert not masking.exact_gradient(masking.gradient_error(kinked, images, steps=(1e-6,))).passed
    assert masking.exact_gradient(masking.gradient_error(kinked, images)).passed


def test_zero_gradients_of_a_loss_that_is_clamped() -> None:
    """A confident network under the clamped cross-entropy of its activations has no gradient on any image."""
    images = 20 + torch.rand(5, 1, 4, 4)
    clamped = masking.gradients(
        gradient_of(lambda images: images.mean((1, 2, 3)).sigmoid().clamp(max=1 - 1e-6), images)
    )
    plain = masking.gradients(gradient_of(lambda images: images.mean((1, 2, 3)), images))
    assert not masking.zero_gradients(clamped, None).passed
    assert not masking.zero_gradients(clamped, GRADIENTS).passed
    assert masking.zero_gradients(plain, None).passed
    assert masking.zero_gradients(plain, GRADIENTS).passed


@pytest.mark.parametrize(("median", "passed"), [(1e-2, True), (1e-4, True), (1e-6, False), (0.0, False)])
def test_gradient_size_is_that_of_the_baseline_but_for_orders(median: float, passed: bool) -> None:
    found = masking.Gradients(0.0, 0.0, median, median, median)
    assert masking.gradient_size(found, GRADIENTS).passed is passed
    assert masking.gradient_size(found, None).passed is None


def test_published_curves_fail() -> None:
    """Hinton 2018, figure 3, at epsilon 0.5: BIM on the CNN leaves more than FGSM, and the capsules stay above 50 %."""
    assert not masking.stronger("multi-step", 5.2, 3.3, "BIM against FGSM", 1000).passed
    assert not masking.reaches_zero([(0.4, 61.0), (0.5, 54.5)]).passed
    assert masking.stronger("multi-step", 3.4, 3.3, "BIM against FGSM", 1000).passed
    assert masking.reaches_zero([(0.4, 61.0), (0.5, 0.0)]).passed


def test_converged() -> None:
    assert masking.converged({1: 60.0, 5: 30.0, 10: 20.5, 50: 18.0}, 1000).passed
    assert not masking.converged({1: 60.0, 5: 30.0, 10: 40.0, 50: 39.0}, 1000).passed
    assert not masking.converged({1: 60.0, 5: 30.0, 10: 20.0, 50: 10.0}, 1000).passed
    accuracies = {50: 18.0, 1: 60.0, 10: 20.5}
    assert masking.converged(accuracies, 1000).found == "60.0 % after 1, 20.5 % after 10, 18.0 % after 50"
