"""Coordinate addition: class capsules share their transformations; votes get the position of their child."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

Axes = tuple[Float[Tensor, " height"], Float[Tensor, " width"]]
"""Coordinates of the rows and of the columns of a grid."""


def receptive_field_coordinates(
    grid: tuple[int, int],
    image: tuple[int, int],
    layers: Sequence[tuple[int, int]],
    padding: tuple[int, int, int, int],
) -> Axes:
    """Row and column coordinate of each position: pixels from the image's middle, over 100 (official code).

    The official code takes ``height / 2`` for the middle of pixels numbered from 0, half a pixel too far.

    Args:
        grid: positions along each axis.
        image: pixels along each axis.
        layers: kernel and stride of each layer, from the image upwards.
        padding: left, right, top, bottom, of the first layer.
    """
    rows, columns = (
        (centres - pixels / 2) / 100  # 100: official code
        for centres, pixels in zip(_centres(grid, layers, padding), image, strict=True)
    )
    return rows, columns


def image_share_coordinates(
    grid: tuple[int, int],
    image: tuple[int, int],
    layers: Sequence[tuple[int, int]],
    padding: tuple[int, int, int, int],
) -> Axes:
    """Row and column of each position in the image, pixels counted from 1, as a share of its size (a tutorial's text).

    All positive, of 28 pixels ``[8, 12, 16, 20] / 28`` in the tutorial's network. Arguments are those of
    ``receptive_field_coordinates``.
    """
    rows, columns = (
        (centres + 1) / pixels for centres, pixels in zip(_centres(grid, layers, padding), image, strict=True)
    )
    return rows, columns


def _centres(
    grid: tuple[int, int], layers: Sequence[tuple[int, int]], padding: tuple[int, int, int, int]
) -> list[Float[Tensor, " position"]]:
    """Rows and columns of the pixels, counted from 0, that are in the middle of what positions see."""
    step, first = 1, 0.0
    for kernel, stride in layers:
        first += step * (kernel - 1) / 2  # the middle of a kernel
        step *= stride
    return [
        first - before + step * torch.arange(n, dtype=torch.float32)
        for n, before in zip(grid, (padding[2], padding[0]), strict=True)
    ]


def grid_coordinates(grid: tuple[int, int]) -> Axes:
    """Row and column coordinate of each position: ``(i + 0.5) / n`` (IBM's and the tutorial's code)."""
    rows, columns = ((torch.arange(n) + 0.5) / n for n in grid)  # 0.5: the middle of a cell
    return rows, columns


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
