"""Class capsules: one transformation per (child type, class) for all positions, and their coordinates."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.functional import truncated_normal_
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

    Raises:
        ValueError: if ``rows`` does not divide the poses.
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
        shape = (child_types, child_dim // rows, classes, dim // rows)
        self.weight = nn.Parameter(truncated_normal_(torch.empty(shape), weight_std))
        layer = LayerInfo(classes, dim, positions * child_types, child_dim, shared=True, child_types=child_types)
        self.routing = build_routing(routing, layer)
        self.register_buffer("coordinates", coordinates, persistent=False)

    def forward(
        self,
        poses: Float[Tensor, "batch child dim"],
        activations: Float[Tensor, "batch child"],
        *,
        on_iteration: OnIteration | None = None,
    ) -> Capsules:
        votes = Votes(poses, self.weight.repeat(self.positions, 1, 1, 1))  # weight [position·type q k c]
        if self.coordinates is not None:
            votes = Votes(*self._with_coordinates(votes.poses, votes.weight), plain_poses=poses)
        return self.routing(votes, activations, on_iteration=on_iteration)

    def _with_coordinates(self, poses: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Poses and weight whose votes have the coordinates added.

        As in homogeneous coordinates: a pose M and a weight W become [M 1] and W over the coordinates, so that their
        product is MW plus those.
        """
        assert self.coordinates is not None
        types, inner, classes, columns = self.weight.shape
        rows = poses.shape[2] // inner
        one = torch.eye(rows, dtype=poses.dtype, device=poses.device).expand(*poses.shape[:2], rows, rows)
        poses = torch.cat([poses.unflatten(2, (rows, inner)), one], 3).flatten(2)
        added = self.coordinates.to(weight.dtype).view(-1, rows, 1, columns).expand(-1, -1, classes, -1)
        return poses, torch.cat([weight, added.repeat_interleave(types, 0)], 1)
