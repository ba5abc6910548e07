"""Capsules without transformations: the poses of the children are the votes."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.routing.base import LayerInfo, RoutingFactory, build_routing
from capsule_lab.types import Capsules, OnIteration, Votes


class UntransformedCapsules(nn.Module):
    """Parents for which each position has a child of their own, whose pose is its vote, unchanged.

    A child of routing is a position: what it says of all parents. Under equal couplings this is the sum over positions
    of one group of feature maps per parent, as in a CNN that ends in global average pooling; with any other routing,
    positions share themselves among the parents. Ours: Gu 2021 removes the transformations, how could not be read.

    Args:
        positions: how many there are.
        parents: number of capsules of this layer, and of children per position.
        dim: components of a pose, of children and parents alike.
        routing: called with ``(parents=…, dim=…)``, gives the routing of this layer.

    Shapes:
        poses ``(batch, positions * parents, dim)``, those of one position after the other, and their activations, of
        which a position has the mean -> poses ``(batch, parents, dim)``.
    """

    identity: Tensor

    def __init__(self, positions: int, parents: int, dim: int, *, routing: RoutingFactory) -> None:
        super().__init__()
        self.positions = positions
        self.parents = parents
        # positions share their transformation, the identity
        layer = LayerInfo(parents, dim, positions, parents * dim, shared=True, child_types=1)
        self.routing = build_routing(routing, layer)
        identity = torch.eye(parents * dim).view(1, parents * dim, parents, dim)
        self.register_buffer("identity", identity if self.routing.poses else identity[..., :0], persistent=False)

    def forward(
        self,
        poses: Float[Tensor, "batch child dim"],
        activations: Float[Tensor, "batch child"],
        *,
        on_iteration: OnIteration | None = None,
    ) -> Capsules:
        by_position = poses.unflatten(1, (self.positions, self.parents)).flatten(2)  # [b position j·d]
        present = activations.unflatten(1, (self.positions, self.parents)).mean(2)  # [b position]
        votes = Votes(by_position, self.identity.expand(self.positions, -1, -1, -1))
        return self.routing(votes, present, on_iteration=on_iteration)
