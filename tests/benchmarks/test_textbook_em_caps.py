"""The textbook form of EM capsules computes what the package computes, layers and network, with all gradients."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.textbook_em_caps import TextbookEMCaps
from capsule_lab.layers import ConvStack, CoordinateClassCapsules, LinearPrimaryCapsules
from capsule_lab.losses import spread_loss
from capsule_lab.networks import EMCaps
from capsule_lab.routing import EMRouting
from tests.reference.em_bridge import random

exact = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)


def in_textbook_order(values: dict[str, Tensor]) -> list[Tensor]:
    """Parameters of an EMCaps, or their gradients, as ``TextbookEMCaps`` orders and shapes its own."""
    return [
        values["classes.weight"].transpose(1, 2),
        values["classes.routing.beta_u"],
        values["classes.routing.beta_a"],
        values["conv.weight"],
        values["conv.bias"],
        values["primary.pose.weight"],
        values["primary.pose.bias"],
        values["primary.activation.weight"],
        values["primary.activation.bias"],
        values["conv_capsules.0.weight"].transpose(1, 2),
        values["conv_capsules.1.weight"].transpose(1, 2),
        values["conv_capsules.0.routing.beta_u"],
        values["conv_capsules.1.routing.beta_u"],
        values["conv_capsules.0.routing.beta_a"],
        values["conv_capsules.1.routing.beta_a"],
    ]


@pytest.mark.parametrize("normalisation", ["window", "all_parents"])
def test_network_equals_ours(normalisation: str) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"channels": 4, "primary_types": 3, "conv_types": (2, 3)}
    class_routing = {
        "inverse_temperature": 0.005,
        "beta_u": 2.838,
        "beta_a": -2500.0,
        "cost": "paper",
    }
    network = EMCaps(
        (2, 19, 21),
        4,
        routing=partial(
            EMRouting, cost="paper", normalisation=normalisation, min_variance=5e-4, mass_eps=1e-7
        ),
        class_routing=class_routing,
        channels=4,
        primary=partial(LinearPrimaryCapsules, types=3, bias=True, offset=0.0),
        conv=partial(ConvStack, types=(2, 3), weight_std=0.5),
        classes=partial(
            CoordinateClassCapsules, coordinates="grid", entries="paper", weight_std=0.5
        ),
    ).double()
    textbook = TextbookEMCaps((2, 19, 21), 4, normalisation=normalisation, **sizes).double()
    for number, parameter in enumerate(network.parameters()):
        parameter.data += 0.1 * random(*parameter.shape, seed=number)
    parameters = dict(network.named_parameters())
    for theirs, ours in zip(textbook.parameters(), in_textbook_order(parameters), strict=True):
        theirs.data.copy_(ours)

    images = random(3, 2, 19, 21).sigmoid()
    labels = torch.tensor([0, 3, 1])
    found = spread_loss(network(images).scores, labels, reduction="paper")
    expected = textbook(images, labels)
    exact(found, expected)
    found.backward()
    expected.backward()
    gradients = {}
    for name, parameter in parameters.items():
        assert parameter.grad.any()
        gradients[name] = parameter.grad
    for theirs, ours in zip(textbook.parameters(), in_textbook_order(gradients), strict=True):
        exact(ours, theirs.grad)


def test_textbook_has_the_published_size_but_for_biases() -> None:
    with torch.device("meta"):
        found = sum(parameter.numel() for parameter in TextbookEMCaps().parameters())
    assert found == 316_650 + 32 * 17
