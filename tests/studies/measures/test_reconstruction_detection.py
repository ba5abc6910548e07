"""Thresholds and areas worked out by hand; errors of a network whose decoder is known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from capsule_lab.networks import BaselineCNN
from capsule_lab.studies.measures.reconstruction_detection import (
    area_under_roc,
    threshold,
    winning_reconstruction_error,
)
from tests.helpers.fakes import FakeCapsNet, capsule_output, decoded_picture
from tests.helpers.networks import small_capsnet

OUTPUT = capsule_output([[3], [1], [0]])
IMAGES = torch.rand(3, 1, 5, 3, generator=torch.Generator().manual_seed(0))
SIZES = {"channels": 2, "types": 1}


def test_threshold_is_a_percentile() -> None:
    errors = torch.arange(1.0, 21.0)[torch.randperm(20, generator=torch.Generator().manual_seed(0))]
    assert threshold(errors) == 19
    assert threshold(errors, 0.1) == 18
    assert threshold(errors, 0.0) == 20
    assert threshold(errors, 0.99) == 1
    assert threshold(torch.tensor([3.0])) == 3


def test_false_alarms_are_as_many_as_there_may_be() -> None:
    for count, false_alarms in itertools.product([1, 7, 20, 100, 999], [0.0, 0.01, 0.05, 0.1, 0.3, 0.5]):
        errors = torch.rand(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
        limit = threshold(errors, false_alarms)
        assert (errors > limit).double().mean() <= false_alarms + 1e-12
        lower = errors[errors < limit].max().item() if (errors < limit).any() else -1.0
        assert (errors > lower).double().mean() > false_alarms


def test_area_under_roc_by_hand() -> None:
    for clean, attacked, area in (
        ([1, 2, 3], [4, 5], 1.0),
        ([4, 5], [1, 2, 3], 0.0),
        ([1, 3], [2, 4], 0.75),
        ([1, 2], [2, 3], 0.875),
        ([2, 2, 2], [2, 2], 0.5),
        ([1, 2, 2, 3], [2, 2, 5], (2.0 + 2.0 + 4.0) / 12),  # each 2 is above 1 and ties with two
    ):
        assert area_under_roc(torch.tensor(clean).double(), torch.tensor(attacked).double()) == pytest.approx(area)


def test_area_is_a_count_of_pairs_and_the_integral_of_the_curve() -> None:
    generator = torch.Generator().manual_seed(0)
    clean = torch.randint(0, 20, (300,), generator=generator).double()
    attacked = torch.randint(5, 25, (200,), generator=generator).double()
    pairs = (attacked[:, None] > clean).double() + 0.5 * (attacked[:, None] == clean).double()
    area = area_under_roc(clean, attacked)
    assert area == pytest.approx(pairs.mean().item(), abs=1e-12)
    limits = [float(limit) for limit in range(25, -2, -1)]
    curve = [((clean > each).double().mean(), (attacked > each).double().mean()) for each in limits]
    assert area == pytest.approx(np.trapezoid(*reversed(np.array(curve).T)), abs=1e-12)
    assert area_under_roc(attacked, clean) == pytest.approx(1 - area, abs=1e-12)


def test_the_winning_capsule_is_decoded() -> None:
    errors = winning_reconstruction_error(FakeCapsNet(OUTPUT), IMAGES)
    assert errors.shape == (3,)
    for image, label in enumerate([3, 1, 0]):
        squared = (decoded_picture(OUTPUT, image, label) - IMAGES[image, 0].numpy()) ** 2
        assert errors[image].item() == pytest.approx(float(squared.sum()), rel=1e-6)


def test_a_network_gives_one_error_for_each_image_with_a_gradient() -> None:
    torch.manual_seed(0)
    network = small_capsnet((2, 17, 17), 3, decoder=(4,), **SIZES).eval()
    images = torch.rand(4, 2, 17, 17, requires_grad=True)
    errors = winning_reconstruction_error(network, images)
    alone = winning_reconstruction_error(network, images[2:3])
    torch.testing.assert_close(alone[0], errors[2])
    (gradient,) = torch.autograd.grad(errors.sum(), images)
    assert (gradient.flatten(1).abs().amax(1) > 0).all()


def test_networks_without_a_decoder() -> None:
    for network, name in [
        (small_capsnet((1, 17, 17), 3, decoder=None, **SIZES), "CapsNet"),
        (BaselineCNN((1, 28, 28), 3), "BaselineCNN"),
    ]:
        with pytest.raises(
            ValueError, match=rf"^this {name} has no decoder; expected a network that reconstructs images"
        ):
            winning_reconstruction_error(network, torch.rand(1, 1, 28, 28))


def test_errors_that_are_none() -> None:
    for errors in [[], [1.0, float("nan")], [float("inf")]]:
        given, fine = torch.tensor(errors), torch.ones(2)
        what = "an error that is not finite" if errors else "no errors"
        for name, call, arguments in (
            ("errors", threshold, (given,)),
            ("clean", area_under_roc, (given, fine)),
            ("attacked", area_under_roc, (fine, given)),
        ):
            with pytest.raises(ValueError, match=f"^{name} has {what}; expected one finite number for each image$"):
                call(*arguments)


@pytest.mark.usefixtures("unchecked_types")
def test_wrong_options() -> None:
    with pytest.raises(ValueError, match=r"^false_alarms is 1\.0; expected 0 or more, less than 1$"):
        threshold(torch.ones(3), 1.0)
