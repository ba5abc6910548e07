"""The networks of self-routing: sizes, trunks, learning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsule_lab.losses import logits_cross_entropy_loss
from capsule_lab.networks import SelfRoutingNet
from capsule_lab.networks.self_routing import PaddedShortcut

SMALL = {"planes": 4, "types": 3, "dim": 4}


def pictures(batch: int, *image_shape: int) -> Tensor:
    return torch.randn(batch, *image_shape, generator=torch.Generator().manual_seed(1))


def test_couplings_of_the_classes_learn_first() -> None:
    """As long as they are equal, what is below them changes no score."""
    network = SelfRoutingNet((1, 16, 16), 4, **SMALL).double()
    logits_cross_entropy_loss(network(pictures(3, 1, 16, 16).double()).logits, torch.tensor([0, 1, 2])).backward()
    gradients = {name: p.grad.abs().max() for name, p in network.named_parameters() if p.grad is not None}
    learning = {name for name, largest in gradients.items() if largest > 1e-12}  # the others have rounding errors
    assert learning == {"classes.routing.weight", "classes.routing.bias"}


@pytest.mark.parametrize("conv_strides", [(), (2,)])
def test_scores_are_probabilities(conv_strides: Any) -> None:
    network = SelfRoutingNet((1, 16, 16), 4, conv_strides=conv_strides, **SMALL)
    nn.init.normal_(network.classes.routing.weight)
    output = network(pictures(3, 1, 16, 16))
    torch.testing.assert_close(output.scores.sum(1), torch.ones(3))
    torch.testing.assert_close(output.logits.exp(), output.scores)


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
