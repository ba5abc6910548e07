"""Functions shared by all kernels: load a block of children, store it, and launch kernels.

Components are a tuple of tensors ``(block,)`` or, to compile faster, a tile ``(components, block)`` whose first
dimension is padded to a power of two; a thread holds all components of its children in both. Constants: CHILD, number
of children; ROWS, INNER and COLUMNS of the matrices; BLOCK, children processed at a time; KEPT, blocks kept in
registers; GROUP, rows of the batch per program; PARENTS, parents per program; NUMBER, the type of all sums.
"""
# ruff: noqa: N803, RUF005 (Triton's constants are upper case, and its tuples only add up)

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = (
    2048  # ours, not measured yet on a GPU: enough to occupy every multiprocessor of a large GPU
)


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


def parents_per_program(row: int, parent: int) -> int:
    """Return parents per program for PROGRAMS programs; a program loads poses once for all its parents."""
    return max(1, min(parent, row * parent // PROGRAMS))


def padded(number: int) -> int:
    """Return the next power of two; the dimensions of Triton's tensors are powers of two."""
    return 1 << (number - 1).bit_length()


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
        start(Launch(kernel, grid, read, out, numbers, constants | {"enable_fp_fusion": True}))


class Launch(NamedTuple):
    """A kernel and what it is called with: tensors that it reads and writes, numbers, and constants."""

    kernel: Any
    grid: tuple[int, ...]
    given: Sequence[Tensor | None]
    out: Sequence[Tensor | None]
    numbers: tuple[int, ...]
    constants: dict[str, Any]


def run(launch: Launch) -> None:
    """Run a kernel; compile it first if needed."""
    launch.kernel[launch.grid](*launch.given, *launch.out, *launch.numbers, **launch.constants)


start: Callable[[Launch], None] = run
"""What ``launch`` calls; ``warm_up`` replaces it for a while."""


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
def store(pointer, i, parts, FIRST: tl.constexpr, COUNT: tl.constexpr, count, CHILD: tl.constexpr):
    """Store COUNT components of ``count`` children, starting at index FIRST of the tuple."""
    for k in tl.static_range(COUNT):
        tl.store(pointer + k * CHILD + i, parts[FIRST + k], mask=i < count)


@triton.jit
@no_type_check
def children_from(first, BLOCK: tl.constexpr):
    """Return the numbers of BLOCK children from ``first`` on, one per thread.

    Without the hint, the compiler gives a thread four neighbours to load at once, and then exchanges them between
    threads, because the sums that follow have one child per thread. The hint says that addresses are not aligned for
    that. A hint that children are not neighbours would do, too, but not before Triton 3.7: 3.6 then distributes
    components, not children, over threads.
    """
    return tl.multiple_of(first + tl.arange(0, BLOCK), 1)


@triton.jit
@no_type_check
def load_children(pointer, i, child, NUMBER: tl.constexpr):
    """Load a number for each of the children ``i``; 0 beyond the last child."""
    return tl.load(pointer + i, mask=i < child, other=0.0).to(NUMBER)


@triton.jit
@no_type_check
def load_components(pointer, i, child, COUNT: tl.constexpr, NUMBER: tl.constexpr):
    """Load COUNT components, consecutive in memory, of the children ``i``, a tuple of tensors ``(block,)``."""
    components = ()
    for k in tl.static_range(COUNT):
        components = components + (
            tl.load(pointer + (k * child + i), mask=i < child, other=0.0).to(NUMBER),
        )
    return components


@triton.jit
@no_type_check
def load_tile(
    pointer, i, child, FIRST: tl.constexpr, STEP: tl.constexpr, COUNT: tl.constexpr, PADDED: tl.constexpr,
    NUMBER: tl.constexpr,
):  # fmt: skip
    """Load COUNT components FIRST, FIRST + STEP, ... of the children ``i``, ``(PADDED, block)``, padded with 0."""
    k = tl.arange(0, PADDED)
    exists = (k < COUNT)[:, None] & (i < child)[None, :]
    offset = (FIRST + k * STEP)[:, None] * child + i[None, :]
    return tl.load(pointer + offset, mask=exists, other=0.0).to(NUMBER)


@triton.jit
@no_type_check
def load_columns(
    pointer, i, child, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PADDED: tl.constexpr, NUMBER: tl.constexpr
):  # fmt: skip
    """Load the columns of a matrix ``(ROWS, COLUMNS)`` of each child, a tuple of tensors ``(PADDED, block)``."""
    columns = ()
    for k in tl.static_range(COLUMNS):
        columns = columns + (load_tile(pointer, i, child, k, COLUMNS, ROWS, PADDED, NUMBER),)
    return columns


@triton.jit
@no_type_check
def load_matrix_rows(
    pointer, i, child, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PADDED: tl.constexpr, NUMBER: tl.constexpr
):  # fmt: skip
    """Load the rows of a matrix ``(ROWS, COLUMNS)`` of each child, a tuple of tensors ``(PADDED, block)``."""
    rows = ()
    for k in tl.static_range(ROWS):
        rows = rows + (load_tile(pointer, i, child, k * COLUMNS, 1, COLUMNS, PADDED, NUMBER),)
    return rows
