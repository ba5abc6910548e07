"""Tiles: units that the CPU kernels load, compute and store.

A *tile* is a part of a flat array with LANES children, one per lane of a SIMD vector (see ``simd``), component by
component: component k of the tile at ``start`` is ``array[start + k * LANES : start + (k + 1) * LANES]``. The last tile
of a row is padded with zeros. Functions receive an array and the start of a tile in it.

To *materialise* votes is to keep all of them in memory, ``(row, child, parent, dim)``. Kernels compute the votes of one
tile for one parent when they need them; these stay in cache until the next votes overwrite them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from capsule_lab.kernels.cpu.compiler import jit
from capsule_lab.kernels.cpu.simd import LANES, broadcast, extract, insert, load, store
from capsule_lab.kernels.cpu.threads import flat, workspace


class Sizes(NamedTuple):
    """Sizes of the arrays.

    Attributes:
        row: number of images or, in a convolutional layer, of positions of all images.
        parent, child: number of capsules in a row.
        rows, inner, columns: a pose is a matrix ``(rows, inner)``, a weight ``(inner, columns)``, a vote
            ``(rows, columns)``.
    """

    row: int
    parent: int
    child: int
    rows: int
    inner: int
    columns: int


class Scratch(NamedTuple):
    """Memory of each thread for one row: arrays are ``(thread, numbers)``, and ``(numbers,)`` in a kernel.

    Attributes:
        pose_tiles: poses of all children.
        vote_tiles: votes of all children for one parent.
        child_tiles: one number for each child.
        sums: two SIMD vectors for each component of a vote.
    """

    pose_tiles: Any
    vote_tiles: Any
    child_tiles: Any
    sums: Any


def sizes_of(poses: Tensor, weight: Tensor, inner: int) -> Sizes:
    row, entries, child = poses.shape
    return Sizes(row, len(weight), child, entries // inner, inner, weight.shape[1] // inner)


def scratch_for(sizes: Sizes, like: Tensor) -> Scratch:
    tiles, dim = -(-sizes.child // LANES), sizes.rows * sizes.columns
    counts = tiles * sizes.rows * sizes.inner, tiles * dim, tiles, 2 * dim
    return Scratch(*(workspace(sizes.row, count * LANES, like=like) for count in counts))


def tiles_of_weight(weight: Tensor) -> Tensor:
    """Return weights in tiles; the tiles of all parents for the same children are adjacent."""
    parent, entries, child = weight.shape
    tiles = weight.new_empty(parent * -(-child // LANES) * entries * LANES)
    _weight_to_tiles(*flat(weight), parent, entries, child, tiles.numpy())
    return tiles


def weight_of_tiles(tiles: Tensor, like: Tensor) -> Tensor:
    """Reverse ``tiles_of_weight``."""
    weight = like.new_empty(like.shape)
    _weight_from_tiles(tiles.numpy(), *like.shape, *flat(weight))
    return weight


@jit
def number_of_tiles(child: int) -> Any:
    return (child + LANES - 1) // LANES


@jit
def load_partial(array: Any, at: int, count: int) -> Any:
    """Load a SIMD vector from ``at`` on; if ``count`` is less than LANES, load ``count`` numbers and pad with zeros."""
    if count >= LANES:
        return load(array, at)
    vector = broadcast(array.dtype.type(0))
    for i in range(count):
        vector = insert(vector, i, array[at + i])
    return vector


@jit
def store_partial(array: Any, at: int, count: int, vector: Any) -> None:
    """Store the first ``count`` lanes, or all if ``count`` is larger."""
    if count >= LANES:
        store(array, at, vector)
    else:
        for i in range(count):
            array[at + i] = extract(vector, i)


@jit
def load_tile(
    values: Any, at: int, size: int, child: int, first: int, tile: Any, start: int
) -> None:
    """Load children from ``first`` on, of numbers ``(size, child)`` at ``at``, into the tile at ``start``."""
    for k in range(size):
        store(tile, start + k * LANES, load_partial(values, at + k * child + first, child - first))


@jit
def store_tile(
    tile: Any, start: int, values: Any, at: int, size: int, child: int, first: int
) -> None:
    """Reverse ``load_tile``."""
    for k in range(size):
        store_partial(values, at + k * child + first, child - first, load(tile, start + k * LANES))


@jit
def load_row(values: Any, n: int, entries: int, child: int, tiles: Any) -> None:
    """Load all children of row ``n`` of the numbers ``(row, entries, child)`` into tiles."""
    for t in range(number_of_tiles(child)):
        load_tile(
            values, n * entries * child, entries, child, t * LANES, tiles, t * entries * LANES
        )


@jit
def _weight_to_tiles(values: Any, parent: int, entries: int, child: int, tiles: Any) -> None:
    count = number_of_tiles(child)
    for j in range(parent):
        for t in range(count):
            start = (t * parent + j) * entries * LANES
            load_tile(values, j * entries * child, entries, child, t * LANES, tiles, start)


@jit
def _weight_from_tiles(tiles: Any, parent: int, entries: int, child: int, values: Any) -> None:
    count = number_of_tiles(child)
    for j in range(parent):
        for t in range(count):
            start = (t * parent + j) * entries * LANES
            store_tile(tiles, start, values, j * entries * child, entries, child, t * LANES)


# --------------------------------------------------------------------------- votes of a tile, and their gradient


@jit
def compute_votes(pose: Any, p: int, weight: Any, w: int, shape: Any, votes: Any, v: int) -> None:
    """Compute ``votes[r c] = sum_q pose[r q] weight[q c]`` for tiles; ``shape`` is (rows, inner, columns)."""
    rows, inner, columns = shape
    if rows == 4 and inner == 4 and columns == 4:
        _compute_votes_4x4(pose, p, weight, w, votes, v)
        return
    for r in range(rows):
        for c in range(columns):
            total = _dot(pose, p + r * inner * LANES, 1, weight, w + c * LANES, columns, inner)
            store(votes, v + (r * columns + c) * LANES, total)


@jit
def votes_backward(
    grad_votes: Any, v: int, pose: Any, p: int, weight: Any, w: int, shape: Any, grad_pose: Any, grad_p: int,
    grad_weight: Any, grad_w: int,
) -> None:  # fmt: skip
    """Add ``grad_votes weight^T`` to the gradient of the pose and ``pose^T grad_votes`` to that of the weight."""
    rows, inner, columns = shape
    if rows == 4 and inner == 4 and columns == 4:
        _add_grad_pose_4x4(grad_votes, v, weight, w, grad_pose, grad_p)
        _add_grad_weight_4x4(grad_votes, v, pose, p, grad_weight, grad_w)
        return
    for r in range(rows):
        for q in range(inner):
            at = grad_p + (r * inner + q) * LANES
            total = _dot(
                grad_votes, v + r * columns * LANES, 1, weight, w + q * columns * LANES, 1, columns
            )
            store(grad_pose, at, load(grad_pose, at) + total)
    for q in range(inner):
        for c in range(columns):
            at = grad_w + (q * columns + c) * LANES
            total = _dot(grad_votes, v + c * LANES, columns, pose, p + q * LANES, inner, rows)
            store(grad_weight, at, load(grad_weight, at) + total)


@jit
def _dot(a: Any, at: int, step: int, b: Any, start: int, by: int, count: int) -> Any:
    """Compute ``sum_k a[at + k step] b[start + k by]``; steps are in components."""
    total = broadcast(a.dtype.type(0))
    for k in range(count):
        total = total + load(a, at + k * step * LANES) * load(b, start + k * by * LANES)
    return total


@jit
def _compute_votes_4x4(pose: Any, p: int, weight: Any, w: int, votes: Any, v: int) -> None:
    """Compute 4x4 votes with the weight in registers; x, x1, x2, x3 are a row of the pose, a to d columns."""
    a, a1, a2, a3 = _column(weight, w)
    b, b1, b2, b3 = _column(weight, w + LANES)
    c, c1, c2, c3 = _column(weight, w + 2 * LANES)
    d, d1, d2, d3 = _column(weight, w + 3 * LANES)
    for r in range(0, 16 * LANES, 4 * LANES):
        x, x1, x2, x3 = _row(pose, p + r)
        store(votes, v + r, x * a + x1 * a1 + x2 * a2 + x3 * a3)
        store(votes, v + r + LANES, x * b + x1 * b1 + x2 * b2 + x3 * b3)
        store(votes, v + r + 2 * LANES, x * c + x1 * c1 + x2 * c2 + x3 * c3)
        store(votes, v + r + 3 * LANES, x * d + x1 * d1 + x2 * d2 + x3 * d3)


@jit
def _add_grad_pose_4x4(
    grad_votes: Any, v: int, weight: Any, w: int, grad_pose: Any, at: int
) -> None:
    a, a1, a2, a3 = _row(weight, w)
    b, b1, b2, b3 = _row(weight, w + 4 * LANES)
    c, c1, c2, c3 = _row(weight, w + 8 * LANES)
    d, d1, d2, d3 = _row(weight, w + 12 * LANES)
    for r in range(0, 16 * LANES, 4 * LANES):
        x, x1, x2, x3 = _row(grad_votes, v + r)
        y, y1, y2, y3 = _row(grad_pose, at + r)
        y = y + x * a + x1 * a1 + x2 * a2 + x3 * a3
        y1 = y1 + x * b + x1 * b1 + x2 * b2 + x3 * b3
        y2 = y2 + x * c + x1 * c1 + x2 * c2 + x3 * c3
        y3 = y3 + x * d + x1 * d1 + x2 * d2 + x3 * d3
        # after all loads, because LLVM assumes that the two arrays may overlap
        store(grad_pose, at + r, y)
        store(grad_pose, at + r + LANES, y1)
        store(grad_pose, at + r + 2 * LANES, y2)
        store(grad_pose, at + r + 3 * LANES, y3)


@jit
def _add_grad_weight_4x4(
    grad_votes: Any, v: int, pose: Any, p: int, grad_weight: Any, at: int
) -> None:
    a, a1, a2, a3 = _column(pose, p)
    b, b1, b2, b3 = _column(pose, p + LANES)
    c, c1, c2, c3 = _column(pose, p + 2 * LANES)
    d, d1, d2, d3 = _column(pose, p + 3 * LANES)
    for k in range(0, 4 * LANES, LANES):
        x, x1, x2, x3 = _column(grad_votes, v + k)
        y, y1, y2, y3 = _column(grad_weight, at + k)
        y = y + x * a + x1 * a1 + x2 * a2 + x3 * a3
        y1 = y1 + x * b + x1 * b1 + x2 * b2 + x3 * b3
        y2 = y2 + x * c + x1 * c1 + x2 * c2 + x3 * c3
        y3 = y3 + x * d + x1 * d1 + x2 * d2 + x3 * d3
        store(grad_weight, at + k, y)
        store(grad_weight, at + k + 4 * LANES, y1)
        store(grad_weight, at + k + 8 * LANES, y2)
        store(grad_weight, at + k + 12 * LANES, y3)


@jit
def _row(tile: Any, at: int) -> Any:
    """Load four adjacent components, a row of a 4x4 matrix."""
    return (
        load(tile, at),
        load(tile, at + LANES),
        load(tile, at + 2 * LANES),
        load(tile, at + 3 * LANES),
    )


@jit
def _column(tile: Any, at: int) -> Any:
    """Load every fourth component, a column of a 4x4 matrix."""
    return (
        load(tile, at),
        load(tile, at + 4 * LANES),
        load(tile, at + 8 * LANES),
        load(tile, at + 12 * LANES),
    )
