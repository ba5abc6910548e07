"""Thresholds and areas worked out by hand; errors of a network whose decoder is known."""

import itertools

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


def test_false_alarms_are_as_many_as_there_may_be() -> None:
    for count, false_alarms in itertools.product(
        [1, 7, 20, 100, 999], [0.0, 0.01, 0.05, 0.1, 0.3, 0.5]
    ):
        errors = torch.rand(
            count, generator=torch.Generator().manual_seed(count), dtype=torch.float64
        )
        limit = threshold(errors, false_alarms)
        assert (errors > limit).double().mean() <= false_alarms + 1e-12
        lower = errors[errors < limit].max().item() if (errors < limit).any() else -1.0
        assert (errors > lower).double().mean() > false_alarms


def test_area_under_roc_is_a_count_of_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    low, high = (
        torch.randint(least, least + 20, (300,), generator=generator).double() for least in (0, 5)
    )
    pairs = (high[:, None] > low).double() + 0.5 * (high[:, None] == low).double()
    assert area_under_roc(low, high) == pytest.approx(pairs.mean().item(), abs=1e-12)
    for clean, attacked, area in (
        ([1, 2, 3], [4, 5], 1.0),
        ([4, 5], [1, 2, 3], 0.0),
        ([1, 3], [2, 4], 0.75),
        ([1, 2], [2, 3], 0.875),
        ([2, 2, 2], [2, 2], 0.5),
        ([1, 2, 2, 3], [2, 2, 5], (2.0 + 2.0 + 4.0) / 12),  # each 2 is above 1 and ties with two
    ):
        assert area_under_roc(
            torch.tensor(clean).double(), torch.tensor(attacked).double()
        ) == pytest.approx(area)


def test_the_winning_capsule_is_decoded() -> None:
    errors = winning_reconstruction_error(FakeCapsNet(OUTPUT), IMAGES)
    assert errors.shape == (3,)
    for image, label in enumerate([3, 1, 0]):
        squared = (decoded_picture(OUTPUT, image, label) - IMAGES[image, 0].numpy()) ** 2
        assert errors[image].item() == pytest.approx(float(squared.sum()), rel=1e-6)


def test_a_network_gives_one_error_for_each_image_with_a_gradient() -> None:
    torch.manual_seed(0)
    network = small_capsnet((2, 17, 17), 3, decoder=(4,), channels=2, types=1).eval()
    images = torch.rand(4, 2, 17, 17, requires_grad=True)
    errors = winning_reconstruction_error(network, images)
    torch.testing.assert_close(winning_reconstruction_error(network, images[2:3])[0], errors[2])
    (gradient,) = torch.autograd.grad(errors.sum(), images)
    assert (gradient.flatten(1).abs().amax(1) > 0).all()


@pytest.mark.usefixtures("unchecked_types")
def test_wrong_input() -> None:
    none, infinite, fine = torch.ones(0), torch.tensor([1.0, float("inf")]), torch.ones(2)
    for call, arguments, message in [
        (threshold, (none,), "errors has no errors; expected one finite number for each image"),
        (area_under_roc, (infinite, fine), "clean has an error that is not finite"),
        (area_under_roc, (fine, none), "attacked has no errors"),
        (threshold, (fine, 1.0), "false_alarms is 1.0; expected 0 or more, less than 1"),
        (
            winning_reconstruction_error,
            (BaselineCNN((1, 28, 28), 3), IMAGES),
            "this BaselineCNN has no decoder",
        ),
        (
            winning_reconstruction_error,
            (small_capsnet((1, 17, 17), 3, decoder=None), IMAGES),
            "CapsNet has no decoder",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            call(*arguments)
