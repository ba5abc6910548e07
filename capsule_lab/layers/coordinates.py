"""Coordinate addition: class capsules share their transformations; votes get the position of their child."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from capsule_lab.errors import check_choice

Coordinates = Literal["receptive_field", "image_share", "grid", "none"]
Axes = tuple[Float[Tensor, " height"], Float[Tensor, " width"]]
"""Coordinates of the rows and of the columns of a grid."""


class ReceptiveField(NamedTuple):
    """What the positions of a layer see of the image.

    Attributes:
        image: pixels along each axis.
        layers: kernel and stride of each layer, from the image upwards.
        outside: left, right, top, bottom: pixels that are seen beyond the edges.
    """

    image: tuple[int, int]
    layers: tuple[tuple[int, int], ...]
    outside: tuple[int, int, int, int] = (0, 0, 0, 0)

    def centres(self, grid: tuple[int, int]) -> list[Float[Tensor, " position"]]:
        """Rows and columns of the pixels, counted from 0, in the middle of what each position of a grid sees."""
        step, first = 1, 0.0
        for kernel, stride in self.layers:
            first += step * (kernel - 1) / 2  # the middle of a kernel
            step *= stride
        return [
            first - before + step * torch.arange(n, dtype=torch.float32)
            for n, before in zip(grid, (self.outside[2], self.outside[0]), strict=True)
        ]


def receptive_field_coordinates(grid: tuple[int, int], field: ReceptiveField) -> Axes:
    """Row and column coordinate of each position: pixels from the image's middle, over 100 (official code).

    The official code takes ``height / 2`` for the middle of pixels numbered from 0, half a pixel too far.
    """
    rows, columns = (
        (centres - pixels / 2) / 100  # 100: official code
        for centres, pixels in zip(field.centres(grid), field.image, strict=True)
    )
    return rows, columns


def image_share_coordinates(grid: tuple[int, int], field: ReceptiveField) -> Axes:
    """Row and column of each position in the image, pixels counted from 1, as a share of its size (a tutorial's text).

    All positive; for 28 pixels ``[8, 12, 16, 20] / 28`` in the tutorial's network.
    """
    rows, columns = ((centres + 1) / pixels for centres, pixels in zip(field.centres(grid), field.image, strict=True))
    return rows, columns


def grid_coordinates(grid: tuple[int, int]) -> Axes:
    """Row and column coordinate of each position: ``(i + 0.5) / n`` (IBM's and the tutorial's code)."""
    rows, columns = ((torch.arange(n) + 0.5) / n for n in grid)  # 0.5: the middle of a cell
    return rows, columns


def axes_of(coordinates: Coordinates, grid: tuple[int, int], field: ReceptiveField) -> Axes | None:
    """Coordinates of one kind, or ``None``."""
    check_choice("coordinates", coordinates, get_args(Coordinates))
    if coordinates == "none":
        return None
    if coordinates == "grid":
        return grid_coordinates(grid)
    return (receptive_field_coordinates if coordinates == "receptive_field" else image_share_coordinates)(grid, field)


def coordinate_addition(*, axes: Axes, entries: tuple[int, int], dim: int) -> Float[Tensor, "position dim"]:
    """What coordinate addition adds to the votes of each position, ``(positions, dim)`` (Hinton 2018, section 4).

    Args:
        axes: row and column coordinates.
        entries: components of a vote that get the row and the column coordinate.
        dim: components of a vote.
    """
    rows, columns = torch.meshgrid(*axes, indexing="ij")
    added = torch.zeros(rows.numel(), dim)
    added[:, entries[0]] = rows.flatten()
    added[:, entries[1]] = columns.flatten()
    return added
