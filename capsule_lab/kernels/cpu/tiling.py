"""Poses, weights and their gradients in tiles, and the room that a thread works in."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from capsule_lab.kernels.cpu.blocks import give, jit, take, tiles
from capsule_lab.kernels.cpu.simd import LANES
from capsule_lab.kernels.cpu.threads import flat, workspace


def sizes_of(poses: Tensor, parents: Tensor, inner: int) -> tuple[int, ...]:
    """Parents, children, components of a parent, and rows, inner and columns of the matrices."""
    _, parent, dim = parents.shape
    rows = poses.shape[1] // inner
    return parent, poses.shape[2], dim, rows, inner, dim // rows


def room_of(poses: Tensor, parents: Tensor) -> tuple[Any, ...]:
    """Room of each thread: poses in tiles, votes for one parent, a number per child, two per component and lane."""
    row, entries, child = poses.shape
    dim, count = parents.shape[2], -(-child // LANES)
    return tuple(workspace(row, size * LANES, like=poses) for size in (count * entries, count * dim, count, 2 * dim))


def in_tiles_of(weight: Tensor) -> Tensor:
    """Tiles of all parents, one after the other."""
    parent, entries, child = weight.shape
    found = weight.new_empty(parent * -(-child // LANES) * entries * LANES)
    _to_tiles(*flat(weight), parent, entries, child, found.numpy())
    return found


@jit
def _to_tiles(values: Any, parent: int, entries: int, child: int, in_tiles: Any) -> None:
    count = tiles(child)
    for j in range(parent):
        for t in range(count):
            to = (t * parent + j) * entries * LANES
            take(values, j * entries * child, entries, child, t * LANES, in_tiles, to)


@jit
def from_tiles(in_tiles: Any, parent: int, entries: int, child: int, values: Any) -> None:
    count = tiles(child)
    for j in range(parent):
        for t in range(count):
            start = (t * parent + j) * entries * LANES
            give(in_tiles, start, values, j * entries * child, entries, child, t * LANES)


@jit
def take_row(values: Any, n: int, entries: int, child: int, in_tiles: Any) -> None:
    for t in range(tiles(child)):
        take(values, n * entries * child, entries, child, t * LANES, in_tiles, t * entries * LANES)
