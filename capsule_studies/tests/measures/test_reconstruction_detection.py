"""Thresholds and areas computed by hand; errors of a network with a known decoder."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from capsule_lab.networks import BaselineCNN
from capsule_studies.measures.reconstruction_detection import (
    area_under_roc,
    threshold,
    winning_reconstruction_error,
)
from tests.helpers.fakes import FakeCapsNet, decoded_picture, fake_output
from tests.helpers.networks import small_capsnet

OUTPUT = fake_output([[3], [1], [0]])
IMAGES = torch.rand(3, 1, 5, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("count", [1, 7, 20, 100, 999])
def test_false_alarms_are_as_many_as_there_may_be(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    errors = torch.rand(count, generator=generator, dtype=torch.float64)

    def share_above(limit: float) -> float:
        return (errors > limit).double().mean().item()

    for false_alarms in [0.0, 0.01, 0.05, 0.1, 0.3, 0.5]:
        limit = threshold(errors, false_alarms)
        assert share_above(limit) <= false_alarms + 1e-12
        below = errors[errors < limit].tolist()
        next_lower = max(below, default=-1.0)
        assert share_above(next_lower) > false_alarms


def test_area_under_roc_is_a_count_of_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    low = torch.randint(0, 20, (300,), generator=generator).double()
    high = torch.randint(5, 25, (300,), generator=generator).double()
    above = (high[:, None] > low).double()
    ties = (high[:, None] == low).double()
    pairs = above + 0.5 * ties
    expected = pairs.mean().item()
    assert area_under_roc(low, high) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("clean", "attacked", "area"),
    [
        ([1, 2, 3], [4, 5], 1.0),
        ([4, 5], [1, 2, 3], 0.0),
        ([1, 3], [2, 4], 0.75),
        ([1, 2], [2, 3], 0.875),
        ([2, 2, 2], [2, 2], 0.5),
        # each 2 is above 1 and ties with two
        ([1, 2, 2, 3], [2, 2, 5], (2.0 + 2.0 + 4.0) / 12),
    ],
)
def test_area_under_roc_by_hand(clean: list[int], attacked: list[int], area: float) -> None:
    clean_errors = torch.tensor(clean).double()
    attacked_errors = torch.tensor(attacked).double()
    found = area_under_roc(clean_errors, attacked_errors)
    assert found == pytest.approx(area)


def test_the_winning_capsule_is_decoded() -> None:
    errors = winning_reconstruction_error(FakeCapsNet(OUTPUT), IMAGES)
    assert errors.shape == (3,)
    for image, label in enumerate([3, 1, 0]):
        decoded = decoded_picture(OUTPUT, image, label)
        difference = decoded - IMAGES[image, 0].numpy()
        expected = float((difference**2).sum())
        assert errors[image].item() == pytest.approx(expected, rel=1e-6)


def test_a_network_gives_one_error_for_each_image_with_a_gradient() -> None:
    torch.manual_seed(0)
    network = small_capsnet((2, 17, 17), 3, decoder=(4,), channels=2, types=1).eval()
    images = torch.rand(4, 2, 17, 17, requires_grad=True)
    errors = winning_reconstruction_error(network, images)
    (alone,) = winning_reconstruction_error(network, images[2:3])
    torch.testing.assert_close(alone, errors[2])
    (gradient,) = torch.autograd.grad(errors.sum(), images)
    largest = gradient.flatten(1).abs().amax(1)
    assert (largest > 0).all()


NO_ERRORS = torch.ones(0)
INFINITE = torch.tensor([1.0, float("inf")])
ERRORS = torch.ones(2)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (threshold, [NO_ERRORS], "errors has no errors; expected one finite number for each"),
        (threshold, [ERRORS, 1.0], "false_alarms is 1.0; expected 0 or more, less than 1"),
        (area_under_roc, [INFINITE, ERRORS], "clean has an error that is not finite"),
        (area_under_roc, [ERRORS, NO_ERRORS], "attacked has no errors"),
    ],
)
def test_wrong_errors(call: Callable[..., float], arguments: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(*arguments)


@pytest.mark.usefixtures("unchecked_types")
def test_networks_without_a_decoder() -> None:
    for network in [BaselineCNN((1, 28, 28), 3), small_capsnet((1, 17, 17), 3, decoder=None)]:
        message = f"this {type(network).__name__} has no decoder"
        with pytest.raises(ValueError, match=message):
            winning_reconstruction_error(network, IMAGES)
