"""The smallNORB network of Heinsen 2019: size, learning, what of the image it sees."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from capsule_lab.losses import logits_cross_entropy_loss
from capsule_lab.networks import HeinsenNet

SMALL = {"channels": 4, "strides": (1, 2, 2), "parts": 3, "pose_size": 2}


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def pictures(batch: int) -> Tensor:
    return torch.randn(batch, 2, 19, 21, generator=torch.Generator().manual_seed(1))


def build(**options: Any) -> HeinsenNet:
    torch.manual_seed(0)
    return HeinsenNet((2, 19, 21), 4, **{**SMALL, **options})


def test_parameters_of_the_parts() -> None:
    with torch.device("meta"):
        network = HeinsenNet((2, 96, 96), 5)
    parts = [network.features, network.primary.activation, network.primary.pose]
    assert [count(part) for part in parts] == [187_656, 4_288, 66_688]
    assert count(network.parts) + count(network.classes) == 13_056
    assert network.parts.positions == 5184


def test_betas_learn_first_and_then_everything() -> None:
    network, labels = build(), torch.tensor([0, 1, 2])
    output = network(pictures(3))
    assert torch.equal(output.logits, torch.zeros(3, 4))
    for moved in (2, sum(1 for _ in network.parameters())):
        network.zero_grad()
        logits_cross_entropy_loss(network(pictures(3)).logits, labels).backward()
        learning = [name for name, p in network.named_parameters() if p.grad is not None and p.grad.any()]
        assert len(learning) == moved, learning
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                if "beta" in name:
                    nn.init.normal_(parameter)


def test_sees_where_things_are() -> None:
    """Through its coordinates: the same feature at all positions, and still no two primary capsules are the same."""
    network = build().eval()
    primary = network.primary(network.features(torch.cat([torch.zeros(1, 2, 19, 21), network.coordinates[None]], 1)))
    first, last = primary.poses[0, :3], primary.poses[0, -3:]
    assert not torch.allclose(first, last, rtol=1e-3)
