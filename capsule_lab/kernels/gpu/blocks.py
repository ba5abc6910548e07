"""Functions shared by all kernels: load a block of children, compute its votes, and launch kernels.

Components are a tuple of tensors ``(block,)``. Constants: CHILD, number of children; ROWS, INNER and COLUMNS of the
matrices; BLOCK, children processed at a time; KEPT, blocks kept in registers; GROUP, rows of the batch per program;
PARENTS, parents per program; LEVELS, so that 2^LEVELS is the number of components of a vote rounded up to a power of
two; NUMBER, the type of all sums.
"""
# ruff: noqa: N803, RUF005 (Triton's constants are upper case, and its tuples only add up)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 2048  # ours, not measured yet on a GPU: enough to occupy every multiprocessor of a large GPU


def sizes(poses: Tensor, weight: Tensor, inner: int) -> dict[str, Any]:
    """Return the constants that follow from the arrays."""
    return {
        "CHILD": poses.shape[2],
        "ROWS": poses.shape[1] // inner,
        "INNER": inner,
        "COLUMNS": weight.shape[1] // inner,
        "NUMBER": number_type(poses),
    }


def number_type(tensor: Tensor) -> Any:
    """Return the type of all sums over the numbers of ``tensor``."""
    return tl.float64 if tensor.dtype == torch.float64 else tl.float32


def log2_dim(poses: Tensor, weight: Tensor, inner: int) -> int:
    """Return the binary logarithm of the number of components of a vote, rounded up."""
    return (poses.shape[1] // inner * (weight.shape[1] // inner) - 1).bit_length()


def parents_per_program(row: int, parent: int) -> int:
    """Return parents per program for PROGRAMS programs; a program loads poses once for all its parents."""
    return max(1, min(parent, row * parent // PROGRAMS))


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    given: Sequence[Tensor | None],
    out: Sequence[Tensor | None],
    *numbers: int,
    **constants: Any,
) -> None:
    """Run ``kernel`` on the device of its tensors unless the grid is empty; it writes its results to ``out``."""
    if 0 in grid:
        return
    read = [tensor if tensor is None else tensor.detach().contiguous() for tensor in given]
    with torch.cuda.device_of(read[0]):
        kernel[grid](*read, *out, *numbers, **constants, enable_fp_fusion=True)


@triton.jit
@no_type_check
def load(pointer, i, CHILD: tl.constexpr, COUNT: tl.constexpr, NUMBER: tl.constexpr):
    """Load COUNT components, consecutive in memory, of the children ``i``; 0 beyond the last child."""
    parts = ()
    for k in tl.static_range(COUNT):
        parts = parts + (tl.load(pointer + k * CHILD + i, mask=i < CHILD, other=0.0).to(NUMBER),)
    return parts


@triton.jit
@no_type_check
def load_rows(
    pointer, i, first, row, CHILD: tl.constexpr, COUNT: tl.constexpr, GROUP: tl.constexpr, NUMBER: tl.constexpr
):
    """Load the components of GROUP rows; rows beyond the last are replaced by the last."""
    parts = ()
    for a in tl.static_range(GROUP):
        n = tl.minimum(first + a, row - 1)
        parts = parts + load(pointer + n * (COUNT * CHILD), i, CHILD, COUNT, NUMBER)
    return parts


@triton.jit
@no_type_check
def compute_votes(poses, weight, FIRST: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr):
    """Compute ``votes[r c] = sum_q poses[r q] weight[q c]``; ``poses`` start at index FIRST of their tuple."""
    votes = ()
    for r in tl.static_range(ROWS):
        for c in tl.static_range(COLUMNS):
            vote = poses[FIRST + r * INNER] * weight[c]
            for q in tl.static_range(1, INNER):
                vote += poses[FIRST + r * INNER + q] * weight[q * COLUMNS + c]
            votes = votes + (vote,)
    return votes


@triton.jit
@no_type_check
def stack(parts, COUNT: tl.constexpr, LEVELS: tl.constexpr):
    """Stack components in a tensor ``(block, 2^LEVELS)``, padded with 0; no data moves between threads."""
    for _ in tl.static_range((1 << LEVELS) - COUNT):
        parts = parts + (tl.zeros_like(parts[0]),)
    for level in tl.static_range(LEVELS):
        joined = ()
        for k in tl.static_range(1 << (LEVELS - level - 1)):
            joined = joined + (tl.join(parts[k], parts[k + (1 << (LEVELS - level - 1))]),)
        parts = joined
    return parts[0].reshape(parts[0].shape[0], 1 << LEVELS)


@triton.jit
@no_type_check
def store(pointer, i, parts, FIRST: tl.constexpr, COUNT: tl.constexpr, count, CHILD: tl.constexpr):
    """Store COUNT components of ``count`` children, starting at index FIRST of the tuple."""
    for k in tl.static_range(COUNT):
        tl.store(pointer + k * CHILD + i, parts[FIRST + k], mask=i < count)
