"""Class capsules: one transformation per (child type, class) for all positions, and their coordinates."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.functional import add_to_votes, truncated_normal_
from capsule_lab.routing.base import LayerInfo, RoutingFactory, build_routing
from capsule_lab.types import Capsules, OnIteration, Votes


class ClassCapsules(nn.Module):
    """The last layer of Hinton 2018, section 4: all positions vote with shared transformations.

    Shared transformations lose the position of a child; *coordinate addition* adds it to two components of its votes.

    Args:
        positions: how many there are.
        child_types: kinds of child per position.
        child_dim: components of their poses.
        classes: number of classes.
        dim: components of a class capsule's pose.
        rows: rows of a pose, when it is a matrix; 1 for a vector.
        routing: called with ``(parents=…, dim=…)``, gives the routing of this layer.
        coordinates: what each position adds to its votes, ``(positions, dim)``; ``None`` for nothing.
        weight_std: standard deviation of the truncated normal that initialises the transformations.

    Shapes:
        poses ``(batch, positions * child_types, child_dim)``, activations without the last one ->
        poses ``(batch, classes, dim)``, activations ``(batch, classes)``.
    """

    coordinates: Tensor | None

    def __init__(
        self,
        positions: int,
        child_types: int,
        child_dim: int,
        classes: int,
        dim: int,
        *,
        routing: RoutingFactory,
        rows: int = 1,
        coordinates: Float[Tensor, "position dim"] | None = None,
        weight_std: float = 0.01,  # official code
    ) -> None:
        super().__init__()
        if child_dim % rows or dim % rows:
            raise ValueError(f"poses have {child_dim} and {dim} components; expected a multiple of {rows} rows")
        self.positions = positions
        layer = LayerInfo(classes, dim, positions * child_types, child_dim, shared=True, child_types=child_types)
        built = build_routing(routing, layer)
        shape = (child_types, child_dim // rows, classes, dim // rows if built.poses else 0)
        self.weight = nn.Parameter(truncated_normal_(torch.empty(shape), weight_std), requires_grad=built.poses)
        self.routing = built
        self.register_buffer("coordinates", coordinates, persistent=False)

    def forward(
        self,
        poses: Float[Tensor, "batch child dim"],
        activations: Float[Tensor, "batch child"],
        *,
        on_iteration: OnIteration | None = None,
    ) -> Capsules:
        votes = Votes(poses, self.weight.repeat(self.positions, 1, 1, 1))  # weight [position·type q k c]
        if self.coordinates is not None and self.routing.poses:
            added = self.coordinates.unsqueeze(1).expand(-1, self.weight.shape[2], -1)  # [position k d]
            votes = add_to_votes(votes, added.repeat_interleave(len(self.weight), 0))
        return self.routing(votes, activations, on_iteration=on_iteration)
