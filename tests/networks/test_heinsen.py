"""The smallNORB network of Heinsen 2019: learning, what of the image it sees."""

from typing import Any

import torch
from torch import nn

from capsule_lab.losses import logits_cross_entropy_loss
from capsule_lab.networks import HeinsenNet
from tests.helpers.networks import IMAGE, pictures


def build() -> HeinsenNet:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"channels": 4, "strides": (1, 2, 2), "parts": 3, "pose_size": 2}
    return HeinsenNet(IMAGE, 4, **sizes)


def test_betas_learn_first_and_then_everything() -> None:
    network = build()
    labels = torch.tensor([0, 1, 2])
    logits = network(pictures()).logits
    assert torch.equal(logits, torch.zeros(3, 4))
    parameters = dict(network.named_parameters())
    for expected in (2, len(parameters)):
        network.zero_grad()
        loss = logits_cross_entropy_loss(network(pictures()).logits, labels)
        loss.backward()
        learning = []
        for name, parameter in parameters.items():
            if parameter.grad is not None and parameter.grad.any():
                learning.append(name)
        assert len(learning) == expected, learning
        for name, parameter in parameters.items():
            if "beta" in name:
                nn.init.normal_(parameter)


def test_sees_where_things_are() -> None:
    """Through its coordinates: the same feature at all positions, and still no two primary capsules are the same."""
    network = build().eval()
    black = network.with_coordinates(torch.zeros(1, *IMAGE))
    features = network.features(black)
    (poses,) = network.primary(features).poses
    assert not torch.allclose(poses[:3], poses[-3:], rtol=1e-3)
