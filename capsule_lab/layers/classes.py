"""Class capsules: one transformation per (child type, class) for all positions, and their coordinates."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.errors import check_choice, check_number
from capsule_lab.functional import add_to_votes, truncated_normal_
from capsule_lab.layers.coordinates import Coordinates, ReceptiveField, axes_of, coordinate_addition
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


class CoordinateClassCapsules(ClassCapsules):
    """Class capsules above a grid of capsules that see parts of an image, whose coordinates they add.

    Args:
        grid: ``(height, width)`` of the children.
        child_types: kinds of child per position.
        dim: components of all poses.
        classes: number of classes.
        field: what the children see of the image.
        rows, routing: see ``ClassCapsules``.
        coordinates: ``"receptive_field"``, distance of a position's receptive field from the image's middle in units of
            100 pixels (official code), ``"image_share"``, its place as a share of the image (a tutorial's text),
            ``"grid"``, ``(i + 0.5) / n`` of the i-th of n positions (ports), or ``"none"``.
        entries: ``"official"`` adds x to the first and y to the second component of a vote, ``"paper"`` row and column
            to the first two entries of a matrix's right-hand column.
        weight_std: see ``ClassCapsules``; for vectors (one row) it is divided by the fourth root of ``dim``, so that
            votes are as large as those of matrices.
    """

    def __init__(
        self,
        grid: tuple[int, int],
        child_types: int,
        dim: int,
        classes: int,
        *,
        field: ReceptiveField,
        routing: RoutingFactory,
        rows: int = 1,
        coordinates: Coordinates = "receptive_field",
        entries: Literal["official", "paper"] = "official",
        weight_std: float = 0.01,  # official code
    ) -> None:
        check_choice("entries", entries, ("official", "paper"))
        check_number("weight_std", weight_std, above=0)
        axes, side = axes_of(coordinates, grid, field), math.isqrt(dim)
        if axes is not None and dim == 1:
            raise ValueError("poses have 1 component; expected 4 or more, or coordinates='none'")
        places = (1, 0) if entries == "official" else (side - 1, 2 * side - 1)
        super().__init__(
            grid[0] * grid[1], child_types, dim, classes, dim, routing=routing, rows=rows,
            coordinates=None if axes is None else coordinate_addition(axes=axes, entries=places, dim=dim),
            weight_std=weight_std if rows > 1 else weight_std * dim**-0.25,
        )  # fmt: skip
