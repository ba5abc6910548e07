"""Votes of a block of children as one tensor, a *tile*, for which the compiler needs a fraction of the time of a tuple.

A tile is ``(ROW_SLOTS, COLUMN_SLOTS, KEPT, LANES)``: the matrix of each vote in the first two dimensions, KEPT * LANES
children in the last two. LANES is the number of threads of a program, so that a thread holds whole votes. ROW_SLOTS and
COLUMN_SLOTS are ROWS and COLUMNS rounded up to powers of two; components beyond are 0. Other constants: see ``blocks``.
"""
# ruff: noqa: N803 (Triton's constants are upper case)

from __future__ import annotations

from typing import Any, no_type_check

import triton
import triton.language as tl
from torch import Tensor

from capsule_lab.kernels.gpu.blocks import number_type


def tile_sizes(poses: Tensor, weight: Tensor, inner: int) -> dict[str, Any]:
    """Return the constants that follow from the arrays, except the number of children."""
    rows, columns = poses.shape[1] // inner, weight.shape[1] // inner
    return {
        "ROWS": rows,
        "INNER": inner,
        "COLUMNS": columns,
        "ROW_SLOTS": triton.next_power_of_2(rows),
        "COLUMN_SLOTS": triton.next_power_of_2(columns),
        "NUMBER": number_type(poses),
    }


@triton.jit
@no_type_check
def tile_children(first, KEPT: tl.constexpr, LANES: tl.constexpr):
    """Return the numbers of the children of a tile, ``(KEPT, LANES)``.

    The compiler would otherwise give neighbours to one thread, to load them together, and exchange components of votes
    between threads. It does so where addresses are multiples of 8 or 16 bytes; therefore the hint promises only 1.
    A hint that neighbours are not contiguous hides from Triton 3.6 that they are the fastest dimension.
    """
    i = first + tl.arange(0, KEPT)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    return tl.multiple_of(i, [1, 1])


@triton.jit
@no_type_check
def tile_components(
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, ROW_SLOTS: tl.constexpr, COLUMN_SLOTS: tl.constexpr
):  # fmt: skip
    """Return the number of each component of a vote, and whether it exists, ``(ROW_SLOTS, COLUMN_SLOTS)``."""
    r = tl.arange(0, ROW_SLOTS)[:, None]
    c = tl.arange(0, COLUMN_SLOTS)[None, :]
    return r * COLUMNS + c, (r < ROWS) & (c < COLUMNS)


@triton.jit
@no_type_check
def load_tile(pointer, part, exists, i, child, NUMBER: tl.constexpr):
    """Load the parts ``part``, a matrix, of the children ``i``, ``(*part, *i)``; 0 where nothing exists."""
    at = (part * child)[:, :, None, None] + i[None, None, :, :]
    mask = exists[:, :, None, None] & (i < child)[None, None, :, :]
    return tl.load(pointer + at, mask=mask, other=0.0).to(NUMBER)


@triton.jit
@no_type_check
def tile_votes(
    poses, weight, i, child,
    ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr, ROW_SLOTS: tl.constexpr,
    COLUMN_SLOTS: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """Compute the votes of the children ``i`` for a parent, a tile."""
    r = tl.arange(0, ROW_SLOTS)[:, None]
    c = tl.arange(0, COLUMN_SLOTS)[None, :]
    p = load_tile(poses, r * INNER, r < ROWS, i, child, NUMBER)
    votes = p * load_tile(weight, c, c < COLUMNS, i, child, NUMBER)
    for q in tl.static_range(1, INNER):
        p = load_tile(poses, r * INNER + q, r < ROWS, i, child, NUMBER)
        votes += p * load_tile(weight, q * COLUMNS + c, c < COLUMNS, i, child, NUMBER)
    return votes
