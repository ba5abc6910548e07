"""The smallNORB network of Heinsen 2019: size, learning, what of the image it sees."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsule_lab.losses import logits_cross_entropy_loss
from capsule_lab.networks import HeinsenNet
from capsule_lab.types import RoutingTrace

SMALL = {"channels": 4, "strides": (1, 2, 2), "parts": 3, "pose_size": 2}


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def pictures(batch: int) -> Tensor:
    return torch.randn(batch, 2, 19, 21, generator=torch.Generator().manual_seed(1))


def build(**options: Any) -> HeinsenNet:
    torch.manual_seed(0)
    return HeinsenNet((2, 19, 21), 4, **{**SMALL, **options})


@pytest.mark.parametrize("side", [96, 48, 32])
def test_published_parameter_count(side: int) -> None:
    with torch.device("meta"):
        network = HeinsenNet((2, side, side), 5)
    parts = [network.features, network.primary.activation, network.primary.pose]
    assert [count(part) for part in parts] == [187_656, 4_288, 66_688]
    assert count(network.parts) + count(network.classes) == 13_056
    assert count(network) == 271_688


def test_grid_of_the_paper() -> None:
    with torch.device("meta"):
        assert HeinsenNet((2, 96, 96), 5).parts.positions == 5184


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


def test_routing_of_the_classes_is_observed() -> None:
    traces: list[RoutingTrace] = []
    build()(pictures(2), on_iteration=traces.append)
    assert [trace.couplings.shape for trace in traces] == [(2, 3, 4)] * 3


def test_too_small_an_image_is_refused() -> None:
    with pytest.raises(ValueError, match="HeinsenNet needs at least 29x29"):
        HeinsenNet((2, 28, 28), 5)
