"""The networks of self-routing: trunks, learning, initial weights."""

import pytest
import torch

from capsule_lab.losses import logits_cross_entropy_loss
from capsule_lab.networks import SelfRoutingNet
from capsule_lab.networks.self_routing import PaddedShortcut
from tests.helpers.networks import IMAGE, pictures


def test_couplings_of_the_classes_learn_first() -> None:
    """As long as they are equal, what is below them changes no score."""
    network = SelfRoutingNet(IMAGE, 4, planes=4, types=3, dim=4).double()
    logits = network(pictures().double()).logits
    logits_cross_entropy_loss(logits, torch.tensor([0, 1, 2])).backward()
    learning = []
    for name, parameter in network.named_parameters():
        # the gradients of others are rounding errors
        if parameter.grad is not None and parameter.grad.abs().max() > 1e-12:
            learning.append(name)
    assert learning == ["classes.routing.weight", "classes.routing.bias"]


@pytest.mark.parametrize("stride", [1, 2])
def test_shortcut_pads_channels_on_both_sides(stride: int) -> None:
    features = torch.arange(2.0 * 5 * 4).view(1, 2, 5, 4)
    padded = PaddedShortcut(4, stride)(features)
    assert torch.equal(padded[:, 2:4], features[:, :, ::stride, ::stride])
    assert not padded[:, [0, 1, 4, 5]].any()


def test_initial_transformations_are_the_official_codes() -> None:
    (layer,) = SelfRoutingNet((1, 32, 32), 4, conv_strides=[2]).conv_capsules
    assert layer.weight.abs().max().item() == pytest.approx(0.0271, abs=1e-4)
    assert not layer.routing.weight.any()
