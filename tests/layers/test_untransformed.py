from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.layers import UntransformedCapsules
from capsule_lab.routing import DynamicRouting, EMRouting, UniformRouting
from tests.reference.loops import dynamic_routing_loops

POSITIONS, PARENTS, DIM = 3, 2, 4


def build(routing: Any = DynamicRouting, **options: Any) -> UntransformedCapsules:
    torch.manual_seed(0)
    sizes = {"positions": POSITIONS, "parents": PARENTS, "dim": DIM, **options}
    return UntransformedCapsules(**sizes, routing=routing).double()


def children(
    batch: int = 2, positions: int = POSITIONS, parents: int = PARENTS, dim: int = DIM
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    poses = torch.randn(batch, positions * parents, dim, generator=generator, dtype=torch.float64)
    return poses, poses.norm(dim=2).tanh()


@pytest.mark.parametrize("backend", ["reference", "matmul", "fused"])
def test_poses_are_votes(backend: str) -> None:
    """The child of position p for parent j is the (p, j)-th; positions are the children of routing."""
    layer, (poses, activations) = build(partial(DynamicRouting, backend=backend)), children()
    expected = dynamic_routing_loops(poses.view(2, POSITIONS, PARENTS, DIM), bias=layer.routing.bias)
    torch.testing.assert_close(layer(poses, activations).poses, expected, rtol=0, atol=1e-8)


def test_equal_couplings_are_a_sum_over_positions() -> None:
    layer = build(partial(UniformRouting, bias=False, squash="none"))
    poses = torch.arange(24.0, dtype=torch.float64).view(1, 6, 4)
    expected = torch.tensor([[[24.0, 27, 30, 33], [36, 39, 42, 45]]], dtype=torch.float64) / 2
    torch.testing.assert_close(layer(poses, poses[..., 0]).poses, expected, rtol=0, atol=1e-10)


def test_activation_of_a_position_is_the_mean_of_its_capsules() -> None:
    layer, (poses, activations) = build(EMRouting), children()
    shifted = activations + torch.tensor([0.1, -0.1], dtype=torch.float64).repeat(POSITIONS)
    before = layer(poses, activations)
    torch.testing.assert_close(layer(poses, shifted).activations, before.activations, rtol=0, atol=1e-9)
    assert not torch.allclose(layer(poses, activations / 2).activations, before.activations)


def test_nothing_but_the_routing_is_learned_or_saved() -> None:
    assert [(name, p.shape) for name, p in build().named_parameters()] == [("routing.bias", (PARENTS, DIM))]
    assert list(build().state_dict()) == ["routing.bias"]
