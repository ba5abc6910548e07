"""The networks of self-routing: trunks, learning, initial weights."""

import pytest
import torch

from capsule_lab.losses import logits_cross_entropy_loss
from capsule_lab.networks import SelfRoutingNet
from capsule_lab.networks.self_routing import PaddedShortcut
from tests.helpers.networks import IMAGE, pictures


def test_couplings_of_the_classes_learn_first() -> None:
    """As long as they are equal, what is below them changes no score."""
    network = SelfRoutingNet(IMAGE, 4, planes=4, types=3, dim=4)
    network.double()
    output = network(pictures().double())
    loss = logits_cross_entropy_loss(output.logits, torch.tensor([0, 1, 2]))
    loss.backward()
    learning = []
    for name, parameter in network.named_parameters():
        # the gradients of others are rounding errors
        if parameter.grad is not None and parameter.grad.abs().max() > 1e-12:
            learning.append(name)
    assert learning == ["classes.routing.weight", "classes.routing.bias"]


@pytest.mark.parametrize("stride", [1, 2])
def test_shortcut_pads_channels_on_both_sides(stride: int) -> None:
    features = torch.arange(2.0 * 5 * 4).view(1, 2, 5, 4)
    shortcut = PaddedShortcut(4, stride)
    padded = shortcut(features)
    before, middle, after = padded.split(2, dim=1)
    assert torch.equal(middle, features[:, :, ::stride, ::stride])
    assert not before.any()
    assert not after.any()


def test_initial_transformations_are_the_official_codes() -> None:
    network = SelfRoutingNet((1, 32, 32), 4, conv_strides=[2])
    (layer,) = network.conv_capsules
    largest = layer.weight.abs().max().item()
    assert largest == pytest.approx(0.0271, abs=1e-4)
    assert not layer.routing.weight.any()
