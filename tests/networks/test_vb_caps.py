import math
from typing import Any

import torch
from torch import nn

from capsule_lab.functional import dense_votes
from capsule_lab.networks import VBCaps
from capsule_lab.types import Votes
from tests.helpers.closeness import assert_close


def test_initial_weights_of_the_official_code() -> None:
    network = VBCaps((2, 32, 32), 5)
    first, second = network.conv_capsules
    primary = network.primary
    for layer, fan_in, fan_out in [
        (first, 8 * 9 * 16, 16 * 9 * 16),
        (second, 16 * 9 * 16, 16 * 9 * 16),
        (network.classes, 16 * 16, 5 * 16),
        (primary.pose, 64, 8 * 16),
        (primary.activation, 64, 8),
    ]:
        bound = math.sqrt(6 / (fan_in + fan_out))
        largest = layer.weight.abs().max()
        assert 0.98 * bound < largest <= bound


def test_components_of_a_type_are_normalised_together() -> None:
    network = VBCaps((1, 24, 24), 4, channels=6, primary_types=2, conv_types=(3, 2))
    capsules = network.primary(torch.rand(8, 6, 10, 10))
    poses = capsules.poses.view(8, 100, 2, 16)
    of_type = poses.transpose(0, 2).flatten(1)
    means = of_type.mean(1)
    variances = of_type.var(1, unbiased=False)
    assert_close(means, torch.zeros(2), atol=1e-5)
    torch.testing.assert_close(variances, torch.ones(2), rtol=1e-3, atol=0)
    of_component = poses.flatten(0, 1).mean(0)
    assert of_component.abs().max() > 0.05


def test_coordinates_of_the_official_code() -> None:
    network = VBCaps((2, 32, 32), 5)
    torch.nn.init.zeros_(network.classes.weight)
    given: list[Votes] = []

    def keep(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        given.append(inputs[0])

    network.classes.routing.register_forward_pre_hook(keep)
    network(torch.rand(1, 2, 32, 32))
    poses, weight, *_ = given[0]
    of_image = dense_votes(poses, weight).detach()[0]
    by_position = of_image.unflatten(0, (4, 4, 16))
    votes = by_position[:, :, 0, 0]  # [row column d]
    steps = torch.tensor([0.025, 0.05, 0.075, 0.1])
    torch.testing.assert_close(votes[..., 3], steps[:, None].expand(4, 4))
    torch.testing.assert_close(votes[..., 7], steps.expand(4, 4))
    votes[..., [3, 7]] = 0
    assert not votes.any(), "no other component has coordinates"
