"""The smallNORB network of Heinsen 2019: learning, what of the image it sees."""

import torch
from torch import nn

from capsule_lab.losses import logits_cross_entropy_loss
from capsule_lab.networks import HeinsenNet
from tests.helpers.networks import pictures


def build() -> HeinsenNet:
    torch.manual_seed(0)
    return HeinsenNet((2, 21, 25), 4, channels=4, strides=(1, 2, 2), parts=3, pose_size=2)


def test_betas_learn_first_and_then_everything() -> None:
    network = build()
    labels = torch.tensor([0, 1, 2])
    assert torch.equal(network(pictures()).logits, torch.zeros(3, 4))
    parameters = dict(network.named_parameters())
    for expected in (2, len(parameters)):
        network.zero_grad()
        logits_cross_entropy_loss(network(pictures()).logits, labels).backward()
        gradients = {name: parameter.grad for name, parameter in parameters.items()}
        learning = [name for name, grad in gradients.items() if grad is not None and grad.any()]
        assert len(learning) == expected, learning
        for name, parameter in parameters.items():
            if "beta" in name:
                nn.init.normal_(parameter)


def test_sees_where_things_are() -> None:
    """Through its coordinates: the same feature at all positions, and still no two primary capsules are the same."""
    network = build().eval()
    black = torch.cat([torch.zeros(1, 2, 21, 25), network.coordinates[None]], 1)
    (poses,) = network.primary(network.features(black)).poses
    assert not torch.allclose(poses[:3], poses[-3:], rtol=1e-3)
