"""What all kernels do for one parent and a tile of children: make their votes, and hand their gradient on.

A tile holds the components of LANES children, component by component, in a flat array of which it is a part: component
k of the tile at ``start`` is ``array[start + k * LANES : …]``. Where there are fewer children, it ends with zeros.
"""

from __future__ import annotations

from typing import Any

import numba

from capsule_lab.kernels.cpu.simd import FREE, LANES, lane, load, spread, store, with_lane

jit: Any = numba.njit(nogil=True, error_model="numpy", cache=True)
# for loops over children that are left to the compiler, which may add in another order only if it is told so
jit_reordering: Any = numba.njit(nogil=True, fastmath=set(FREE), error_model="numpy", cache=True)


@jit
def tiles(child: int) -> Any:
    """How many hold so many children."""
    return (child + LANES - 1) // LANES


@jit
def load_some(array: Any, at: int, count: int) -> Any:
    """LANES numbers from ``at`` on, or if there are fewer, ``count`` and zeros."""
    if count >= LANES:
        return load(array, at)
    lanes = spread(array.dtype.type(0))
    for i in range(count):
        lanes = with_lane(lanes, i, array[at + i])
    return lanes


@jit
def store_some(array: Any, at: int, count: int, lanes: Any) -> None:
    """The reverse."""
    if count >= LANES:
        store(array, at, lanes)
    else:
        for i in range(count):
            array[at + i] = lane(lanes, i)


@jit
def take(values: Any, at: int, size: int, child: int, first: int, tile: Any, start: int) -> None:
    """Children from ``first`` on of the (size, child) numbers at ``at``, as the tile at ``start``."""
    for k in range(size):
        store(tile, start + k * LANES, load_some(values, at + k * child + first, child - first))


@jit
def give(tile: Any, start: int, values: Any, at: int, size: int, child: int, first: int) -> None:
    """The reverse of ``take``."""
    for k in range(size):
        store_some(values, at + k * child + first, child - first, load(tile, start + k * LANES))


@jit
def make_votes(pose: Any, p: int, weight: Any, w: int, rows: int, inner: int, columns: int, votes: Any, v: int) -> None:
    """``votes[r c] = sum_q pose[r q] weight[q c]`` of the tiles at ``p``, ``w`` and ``v``."""
    if rows == 4 and inner == 4 and columns == 4:
        _make_4x4(pose, p, weight, w, votes, v)
        return
    for r in range(rows):
        for c in range(columns):
            total = _products(pose, p + r * inner * LANES, 1, weight, w + c * LANES, columns, inner)
            store(votes, v + (r * columns + c) * LANES, total)


@jit
def hand_on(
    votes: Any,
    v: int,
    pose: Any,
    p: int,
    weight: Any,
    w: int,
    rows: int,
    inner: int,
    columns: int,
    to_pose: Any,
    to_p: int,
    to_weight: Any,
    to_w: int,
) -> None:
    """Add to the gradients of pose and weight what ``votes``, here a gradient of the votes, means for them."""
    if rows == 4 and inner == 4 and columns == 4:
        _to_pose_4x4(votes, v, weight, w, to_pose, to_p)
        _to_weight_4x4(votes, v, pose, p, to_weight, to_w)
        return
    for r in range(rows):
        for q in range(inner):
            to = to_p + (r * inner + q) * LANES
            total = _products(votes, v + r * columns * LANES, 1, weight, w + q * columns * LANES, 1, columns)
            store(to_pose, to, load(to_pose, to) + total)
    for q in range(inner):
        for c in range(columns):
            to = to_w + (q * columns + c) * LANES
            total = _products(votes, v + c * LANES, columns, pose, p + q * LANES, inner, rows)
            store(to_weight, to, load(to_weight, to) + total)


@jit
def _products(a: Any, at: int, step: int, b: Any, start: int, by: int, count: int) -> Any:
    """``sum_k a[at + k step] b[start + k by]``, steps counted in components."""
    total = spread(a.dtype.type(0))
    for k in range(count):
        total = total + load(a, at + k * step * LANES) * load(b, start + k * by * LANES)
    return total


@jit
def _make_4x4(pose: Any, p: int, weight: Any, w: int, votes: Any, v: int) -> None:
    """With the whole weight in registers."""
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
def _to_pose_4x4(votes: Any, v: int, weight: Any, w: int, to: Any, at: int) -> None:
    a, a1, a2, a3 = _row(weight, w)
    b, b1, b2, b3 = _row(weight, w + 4 * LANES)
    c, c1, c2, c3 = _row(weight, w + 8 * LANES)
    d, d1, d2, d3 = _row(weight, w + 12 * LANES)
    for r in range(0, 16 * LANES, 4 * LANES):
        x, x1, x2, x3 = _row(votes, v + r)
        y, y1, y2, y3 = _row(to, at + r)
        y = y + x * a + x1 * a1 + x2 * a2 + x3 * a3
        y1 = y1 + x * b + x1 * b1 + x2 * b2 + x3 * b3
        y2 = y2 + x * c + x1 * c1 + x2 * c2 + x3 * c3
        y3 = y3 + x * d + x1 * d1 + x2 * d2 + x3 * d3
        store(to, at + r, y)  # all after the loads: to the compiler this might be where the votes are
        store(to, at + r + LANES, y1)
        store(to, at + r + 2 * LANES, y2)
        store(to, at + r + 3 * LANES, y3)


@jit
def _to_weight_4x4(votes: Any, v: int, pose: Any, p: int, to: Any, at: int) -> None:
    a, a1, a2, a3 = _column(pose, p)
    b, b1, b2, b3 = _column(pose, p + LANES)
    c, c1, c2, c3 = _column(pose, p + 2 * LANES)
    d, d1, d2, d3 = _column(pose, p + 3 * LANES)
    for k in range(0, 4 * LANES, LANES):
        x, x1, x2, x3 = _column(votes, v + k)
        y, y1, y2, y3 = _column(to, at + k)
        y = y + x * a + x1 * a1 + x2 * a2 + x3 * a3
        y1 = y1 + x * b + x1 * b1 + x2 * b2 + x3 * b3
        y2 = y2 + x * c + x1 * c1 + x2 * c2 + x3 * c3
        y3 = y3 + x * d + x1 * d1 + x2 * d2 + x3 * d3
        store(to, at + k, y)
        store(to, at + k + 4 * LANES, y1)
        store(to, at + k + 8 * LANES, y2)
        store(to, at + k + 12 * LANES, y3)


@jit
def _row(tile: Any, at: int) -> Any:
    """Of a 4x4 matrix."""
    return load(tile, at), load(tile, at + LANES), load(tile, at + 2 * LANES), load(tile, at + 3 * LANES)


@jit
def _column(tile: Any, at: int) -> Any:
    return load(tile, at), load(tile, at + 4 * LANES), load(tile, at + 8 * LANES), load(tile, at + 12 * LANES)
