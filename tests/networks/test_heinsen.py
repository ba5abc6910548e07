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
    network, labels = build(), torch.tensor([0, 1, 2])
    assert torch.equal(network(pictures()).logits, torch.zeros(3, 4))
    for moved in (2, sum(1 for _ in network.parameters())):
        network.zero_grad()
        logits_cross_entropy_loss(network(pictures()).logits, labels).backward()
        learning = [
            name for name, p in network.named_parameters() if p.grad is not None and p.grad.any()
        ]
        assert len(learning) == moved, learning
        for name, parameter in network.named_parameters():
            if "beta" in name:
                nn.init.normal_(parameter)


def test_sees_where_things_are() -> None:
    """Through its coordinates: the same feature at all positions, and still no two primary capsules are the same."""
    network = build().eval()
    primary = network.primary(
        network.features(torch.cat([torch.zeros(1, 2, 21, 25), network.coordinates[None]], 1))
    )
    first, last = primary.poses[0, :3], primary.poses[0, -3:]
    assert not torch.allclose(first, last, rtol=1e-3)
