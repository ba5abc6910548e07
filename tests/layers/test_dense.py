"""Dense capsules: equal to loops, and what their routing gets. See test_contract for the rest."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.layers import DenseCapsules
from capsule_lab.routing import DynamicRouting, UniformRouting
from capsule_lab.types import Capsules, Votes
from tests.reference.loops import dynamic_routing_loops

CHILDREN, CHILD_DIM, PARENTS, PARENT_DIM = 5, 3, 4, 2


def build(**options: Any) -> DenseCapsules:
    torch.manual_seed(0)
    return DenseCapsules(
        **{
            "children": CHILDREN,
            "child_dim": CHILD_DIM,
            "parents": PARENTS,
            "parent_dim": PARENT_DIM,
            "routing": DynamicRouting,
            **options,
        }
    )


def children(batch: int, dtype: torch.dtype = torch.float32, **sizes: int) -> Tensor:
    shape = (batch, sizes.get("children", CHILDREN), sizes.get("child_dim", CHILD_DIM))
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(1))


class Spy(UniformRouting):
    """Remembers what it was asked to route."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: list[tuple[Any, Tensor | None]] = []

    def forward(self, votes: Any, activations: Tensor | None = None, **options: Any) -> Capsules:
        self.seen.append((votes, activations))
        return super().forward(votes, activations, **options)


@pytest.mark.parametrize("backend", ["reference", "matmul", "fused"])
def test_votes_and_routing_equal_the_loops(backend: Any) -> None:
    layer, poses = build(routing=partial(DynamicRouting, backend=backend)).double(), children(2, torch.float64)
    votes = torch.tensor(
        [
            [
                [
                    [
                        sum(poses[b, i, c].item() * layer.weight[i, c, j, d].item() for c in range(CHILD_DIM))
                        for d in range(PARENT_DIM)
                    ]
                    for j in range(PARENTS)
                ]
                for i in range(CHILDREN)
            ]
            for b in range(2)
        ],
        dtype=torch.float64,
    )
    expected = dynamic_routing_loops(votes, bias=layer.routing.bias)
    torch.testing.assert_close(layer(poses).poses, expected, rtol=0, atol=1e-12)


def test_routing_gets_poses_and_weight() -> None:
    layer, poses, activations = build(routing=Spy), children(3), torch.rand(3, CHILDREN)
    layer(poses, activations)
    (votes, presence), *others = layer.routing.seen
    assert others == []
    assert isinstance(votes, Votes)
    assert votes.poses is poses
    assert votes.weight is layer.weight
    assert presence is activations
