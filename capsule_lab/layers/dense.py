"""Fully connected capsules: every child votes for every parent, with or without a transformation."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.functional import truncated_normal_
from capsule_lab.routing.base import LayerInfo, RoutingFactory, build_routing
from capsule_lab.shapes import checks_shapes
from capsule_lab.types import Capsules, OnIteration, Votes


class DenseCapsules(nn.Module):
    """Parents that see all children, with one transformation matrix per (child, parent) pair.

    DigitCaps of Sabour 2017, section 4, is such a layer: 1152 children of 8 components, 10 parents of 16.

    Args:
        children, parents: number of capsules in the layer below and in this layer.
        child_dim, parent_dim: components of their poses.
        routing: builds the routing of this layer; called with ``(parents=…, dim=…)``.
        weight_std: standard deviation of the truncated normal that initialises the matrices.

    Shapes:
        poses ``(batch, children, child_dim)`` -> poses ``(batch, parents, parent_dim)``.
    """

    def __init__(
        self,
        children: int,
        child_dim: int,
        parents: int,
        parent_dim: int,
        *,
        routing: RoutingFactory,
        weight_std: float = 0.1,  # official code
    ) -> None:
        super().__init__()
        layer = LayerInfo(
            parents, parent_dim, children, child_dim, shared=False, child_types=children
        )
        built_routing = build_routing(routing, layer)
        dim = parent_dim if built_routing.poses else 0
        weight = torch.empty(children, child_dim, parents, dim)
        truncated_normal_(weight, weight_std)
        self.weight = nn.Parameter(weight, requires_grad=built_routing.poses)
        self.routing = built_routing

    @checks_shapes
    def forward(
        self,
        poses: Float[Tensor, "batch {self.weight.shape[0]} {self.weight.shape[1]}"],
        activations: Float[Tensor, "batch {self.weight.shape[0]}"] | None = None,
        *,
        on_iteration: OnIteration | None = None,
    ) -> Capsules:
        return self.routing(Votes(poses, self.weight), activations, on_iteration=on_iteration)


class UntransformedCapsules(nn.Module):
    """Parents without transformations: each position has one child per parent, and its pose is the vote.

    Routing treats a position with its votes for all parents as one child. With equal couplings this is the sum over
    positions of one group of feature maps per parent, as in a CNN with global average pooling; with another routing,
    positions divide themselves among the parents. Ours: Gu 2021 removes transformations, but we could not read how.

    Args:
        positions: number of positions of the children.
        parents: number of capsules of this layer and of children per position.
        dim: components of the poses of children and parents.
        routing: builds the routing of this layer; called with ``(parents=…, dim=…)``.

    Shapes:
        poses ``(batch, positions * parents, dim)``, ordered (position, parent), and their activations, which are
        averaged at each position -> poses ``(batch, parents, dim)``.
    """

    identity: Tensor

    def __init__(self, positions: int, parents: int, dim: int, *, routing: RoutingFactory) -> None:
        super().__init__()
        self.positions = positions
        self.parents = parents
        self.child_count = positions * parents
        self.dim = dim
        # positions share their transformation, the identity
        layer = LayerInfo(parents, dim, positions, parents * dim, shared=True, child_types=1)
        self.routing = build_routing(routing, layer)
        identity = torch.eye(parents * dim).view(1, parents * dim, parents, dim)
        if not self.routing.poses:
            identity = identity[..., :0]
        self.register_buffer("identity", identity, persistent=False)

    @checks_shapes
    def forward(
        self,
        poses: Float[Tensor, "batch {self.child_count} {self.dim}"],
        activations: Float[Tensor, "batch {self.child_count}"],
        *,
        on_iteration: OnIteration | None = None,
    ) -> Capsules:
        grid = self.positions, self.parents
        by_position = poses.unflatten(1, grid).flatten(2)  # [b position j·d]
        present = activations.unflatten(1, grid).mean(2)  # [b position]
        votes = Votes(by_position, self.identity.expand(self.positions, -1, -1, -1))
        return self.routing(votes, present, on_iteration=on_iteration)
