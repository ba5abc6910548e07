"""Class capsules with one transformation per (child type, class) for all positions, and coordinate addition.

Shared transformations lose the position of a child; coordinate addition adds it to the votes.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.errors import check_choice, check_number
from capsule_lab.functional import add_to_votes, truncated_normal_
from capsule_lab.routing.base import LayerInfo, RoutingFactory, build_routing
from capsule_lab.shapes import checks_shapes
from capsule_lab.types import Capsules, OnIteration, Votes

Coordinates = Literal["receptive_field", "image_share", "grid", "none"]
Axes = tuple[Float[Tensor, " height"], Float[Tensor, " width"]]
"""Coordinates of the rows and of the columns of a grid."""


class ReceptiveField(NamedTuple):
    """Receptive field of the positions of a layer.

    Attributes:
        image: size of the image in pixels, ``(height, width)``.
        layers: kernel and stride of each layer, from the image upwards.
        outside: pixels that are seen beyond the left, right, top and bottom edge.
    """

    image: tuple[int, int]
    layers: tuple[tuple[int, int], ...]
    outside: tuple[int, int, int, int] = (0, 0, 0, 0)

    def centres(self, grid: tuple[int, int]) -> list[Float[Tensor, " position"]]:
        """Return rows and columns of the pixels, from 0, at the centres of the receptive fields of a grid."""
        step, first = 1, 0.0
        for kernel, stride in self.layers:
            first += step * (kernel - 1) / 2  # the middle of a kernel
            step *= stride
        left, _, top, _ = self.outside
        rows = step * torch.arange(grid[0], dtype=torch.float32)
        columns = step * torch.arange(grid[1], dtype=torch.float32)
        return [first - top + rows, first - left + columns]


def grid_coordinates(grid: tuple[int, int]) -> Axes:
    """Return row and column coordinates of the positions, ``(i + 0.5) / n`` (code of IBM and of the tutorial)."""
    height, width = grid
    rows = (torch.arange(height) + 0.5) / height  # 0.5: the middle of a cell
    columns = (torch.arange(width) + 0.5) / width
    return rows, columns


def axes_of(coordinates: Coordinates, grid: tuple[int, int], field: ReceptiveField) -> Axes | None:
    """Return coordinates of one kind, see ``CoordinateClassCapsules``, or ``None``."""
    check_choice("coordinates", coordinates, get_args(Coordinates))
    if coordinates == "none":
        return None
    if coordinates == "grid":
        return grid_coordinates(grid)
    rows, columns = field.centres(grid)
    height, width = field.image
    if coordinates == "image_share":
        return (rows + 1) / height, (columns + 1) / width  # 1: pixels are counted from 1
    # official code: 100; height / 2, half a pixel beyond the centre of pixels numbered from 0
    return (rows - height / 2) / 100, (columns - width / 2) / 100


def coordinate_addition(
    *, axes: Axes, entries: tuple[int, int], dim: int
) -> Float[Tensor, "position dim"]:
    """Return the vectors of ``dim`` components added to the votes of each position (Hinton 2018, section 4).

    ``entries`` are the components for the row and the column coordinate; ``axes`` contains these coordinates.
    """
    rows, columns = torch.meshgrid(*axes, indexing="ij")
    added = torch.zeros(rows.numel(), dim)
    added[:, entries[0]] = rows.flatten()
    added[:, entries[1]] = columns.flatten()
    return added


class ClassCapsules(nn.Module):
    """Last layer of Hinton 2018, section 4, with transformations shared by all positions.

    Args:
        positions: number of positions of the children.
        child_types: kinds of child per position.
        child_dim, dim: components of the poses of children and of class capsules.
        classes: number of classes.
        rows: rows of a pose if it is a matrix; 1 for a vector.
        routing: builds the routing of this layer; called with ``(parents=…, dim=…)``.
        coordinates: vectors added to the votes of each position, ``(positions, dim)``; ``None`` for none.
        weight_std: standard deviation of the truncated normal that initialises the transformations.

    Shapes:
        poses ``(batch, positions * child_types, child_dim)``, activations without the last dimension ->
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
            raise ValueError(
                f"poses have {child_dim} and {dim} components; expected a multiple of {rows} rows"
            )
        self.positions = positions
        self.child_count = positions * child_types
        self.child_dim = child_dim
        layer = LayerInfo(
            classes, dim, self.child_count, child_dim, shared=True, child_types=child_types
        )
        built_routing = build_routing(routing, layer)
        columns = dim // rows if built_routing.poses else 0
        weight = torch.empty(child_types, child_dim // rows, classes, columns)
        truncated_normal_(weight, weight_std)
        self.weight = nn.Parameter(weight, requires_grad=built_routing.poses)
        self.routing = built_routing
        self.register_buffer("coordinates", coordinates, persistent=False)

    @checks_shapes
    def forward(
        self,
        poses: Float[Tensor, "batch {self.child_count} {self.child_dim}"],
        activations: Float[Tensor, "batch {self.child_count}"],
        *,
        on_iteration: OnIteration | None = None,
    ) -> Capsules:
        weight = self.weight.repeat(self.positions, 1, 1, 1)  # [position·type q k c]
        votes = Votes(poses, weight)
        if self.coordinates is not None and self.routing.poses:
            child_types, _, classes, _ = self.weight.shape
            added = self.coordinates.unsqueeze(1).expand(-1, classes, -1)  # [position k d]
            votes = add_to_votes(votes, added.repeat_interleave(child_types, 0))
        return self.routing(votes, activations, on_iteration=on_iteration)


class CoordinateClassCapsules(ClassCapsules):
    """Class capsules above a grid of capsules whose coordinates in the image are added to the votes.

    Args:
        grid: ``(height, width)`` of the children.
        child_types: kinds of child per position.
        dim: components of all poses.
        classes: number of classes.
        field: receptive field of the children.
        routing, rows: see ``ClassCapsules``.
        coordinates: ``"receptive_field"``: distance of the receptive field from the centre of the image in units of
            100 pixels (official code); ``"image_share"``: its position as a share of the image (a tutorial's text:
            ``[8, 12, 16, 20] / 28``); ``"grid"``: ``(i + 0.5) / n`` for the i-th of n positions (ports); or ``"none"``.
        entries: ``"official"`` adds x to the first and y to the second component of a vote; ``"paper"`` adds row and
            column to the first two entries of the right-hand column of a matrix.
        weight_std: see ``ClassCapsules``, ``ConvStack``.
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
        axes = axes_of(coordinates, grid, field)
        if axes is not None and dim == 1:
            raise ValueError("poses have 1 component; expected 4 or more, or coordinates='none'")
        side = math.isqrt(dim)
        places = (1, 0) if entries == "official" else (side - 1, 2 * side - 1)
        added = None
        if axes is not None:
            added = coordinate_addition(axes=axes, entries=places, dim=dim)
        if rows == 1:
            weight_std = weight_std * dim**-0.25
        super().__init__(
            grid[0] * grid[1],
            child_types,
            dim,
            classes,
            dim,
            routing=routing,
            rows=rows,
            coordinates=added,
            weight_std=weight_std,
        )
