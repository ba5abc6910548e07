"""Capsules that see all children: equal to loops. See test_contract for the rest."""

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.layers import DenseCapsules, UntransformedCapsules
from capsule_lab.routing import DynamicRouting, EMRouting, UniformRouting
from tests.helpers.closeness import assert_close
from tests.reference.em_bridge import random
from tests.reference.loops import dynamic_routing_loops

POSITIONS, PARENTS, DIM = 3, 2, 4
every_backend = pytest.mark.parametrize("backend", ["reference", "matmul", "fused"])


@every_backend
def test_votes_and_routing_equal_the_loops(backend: Any) -> None:
    torch.manual_seed(0)
    routing = partial(DynamicRouting, backend=backend)
    layer = DenseCapsules(5, 3, 4, 2, routing=routing).double()
    poses = random(2, 5, 3)
    votes = torch.zeros(2, 5, 4, 2).double()
    for b, i, j, d in product(range(2), range(5), range(4), range(2)):
        for c in range(3):
            votes[b, i, j, d] += poses[b, i, c] * layer.weight[i, c, j, d].item()
    expected = dynamic_routing_loops(votes, bias=layer.routing.bias)
    assert_close(layer(poses).poses, expected)


def build(routing: Any) -> UntransformedCapsules:
    torch.manual_seed(0)
    layer = UntransformedCapsules(POSITIONS, PARENTS, DIM, routing=routing)
    return layer.double()


def children() -> tuple[Tensor, Tensor]:
    poses = random(2, POSITIONS * PARENTS, DIM)
    activations = poses.norm(dim=2).tanh()
    return poses, activations


@every_backend
def test_poses_are_votes(backend: str) -> None:
    """The child of position p for parent j is the (p, j)-th; positions are the children of routing."""
    layer = build(partial(DynamicRouting, backend=backend))
    poses, activations = children()
    votes = poses.view(2, POSITIONS, PARENTS, DIM)
    expected = dynamic_routing_loops(votes, bias=layer.routing.bias)
    parents = layer(poses, activations)
    assert_close(parents.poses, expected, atol=1e-8)
    assert list(layer.state_dict()) == ["routing.bias"]


def test_equal_couplings_are_a_sum_over_positions() -> None:
    layer = build(partial(UniformRouting, bias=False, squash="none"))
    poses = torch.arange(24.0).double().view(1, 6, 4)
    sums = [[24.0, 27, 30, 33], [36, 39, 42, 45]]
    expected = torch.tensor([sums]).double() / 2
    parents = layer(poses, poses[..., 0])
    assert_close(parents.poses, expected, atol=1e-10)


def test_activation_of_a_position_is_the_mean_of_its_capsules() -> None:
    layer = build(EMRouting)
    poses, activations = children()
    shift = torch.tensor([0.1, -0.1]).double()
    of_equal_mean = activations + shift.repeat(POSITIONS)
    before = layer(poses, activations)
    shifted = layer(poses, of_equal_mean)
    halved = layer(poses, activations / 2)
    assert_close(shifted.activations, before.activations, atol=1e-9)
    assert not torch.allclose(halved.activations, before.activations)
