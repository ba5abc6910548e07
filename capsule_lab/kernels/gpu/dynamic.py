"""Dynamic routing: sums of weighted votes, and agreement of votes with poses (Sabour 2017, procedure 1)."""
# ruff: noqa: N803, N806, RUF005 (Triton's constants are upper case, and its tuples only add up)

from __future__ import annotations

from collections.abc import Sequence
from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsule_lab.kernels.gpu.blocks import (
    children_from,
    launch,
    load_matrix_rows,
    number_type,
    padded,
)
from capsule_lab.kernels.gpu.votes import sum_components, votes_backward

BLOCK, WARPS = 128, 4  # ours, not tuned: one child for each thread
ROWS_PER_PROGRAM = 4  # ours, not tuned: a program loads a weight once for this many rows


def weighted_sum(poses: Tensor, weight: Tensor, couplings: Tensor, inner: int) -> Tensor:
    """Compute ``sum_i couplings V``, ``(row, parent, dim)``."""
    row, parent, child = couplings.shape
    rows, columns = poses.shape[1] // inner, weight.shape[1] // inner
    sums = poses.new_empty(row, parent, rows * columns)
    launch(
        _weighted_sum, (triton.cdiv(row, ROWS_PER_PROGRAM), parent), (poses, weight, couplings), [sums], row,
        GROUP=ROWS_PER_PROGRAM, CHILD=child, ROWS=rows, INNER=inner, COLUMNS=columns, COLUMNS_PADDED=padded(columns),
        BLOCK=BLOCK, NUMBER=number_type(poses), num_warps=WARPS,
    )  # fmt: skip
    return sums


def agreement(poses: Tensor, weight: Tensor, parents: Tensor, inner: int) -> Tensor:
    """Compute ``V . parents``, ``(row, parent, child)``."""
    return sum_components(poses, weight, parents, None, inner)


def contraction(
    poses: Tensor,
    weight: Tensor,
    by_child: Sequence[Tensor],
    by_component: Sequence[Tensor],
    inner: int,
) -> tuple[Tensor, Tensor]:
    """Compute gradients of poses and weight if the gradient of votes is a sum of ``by_child`` x ``by_component``."""
    factors, components = (torch.stack(list(parts), 2) for parts in (by_child, by_component))
    grad_poses, grad_weight = votes_backward(poses, weight, factors, components, inner)
    return grad_poses, grad_weight


@triton.jit(do_not_specialize=["row"])
@no_type_check
def _weighted_sum(
    poses, weight, couplings, sums, row,
    GROUP: tl.constexpr, CHILD: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr,
    COLUMNS_PADDED: tl.constexpr, BLOCK: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program sums over blocks of children for GROUP rows and one parent, and finally over its threads."""
    H: tl.constexpr = ROWS * INNER
    a = tl.arange(0, GROUP)
    c = tl.arange(0, COLUMNS_PADDED)
    first = tl.program_id(0).to(tl.int64) * GROUP
    n = tl.minimum(first + a, row - 1)[:, None]
    j = tl.program_id(1).to(tl.int64)
    parent = tl.num_programs(1)
    poses += n * (H * CHILD)
    couplings += (n * parent + j) * CHILD
    weight += j * (INNER * COLUMNS * CHILD)
    totals = ()
    for _ in tl.static_range(ROWS):
        totals = totals + (tl.zeros([GROUP, COLUMNS_PADDED, BLOCK], NUMBER),)
    for block in range(tl.cdiv(CHILD, BLOCK)):
        i = children_from(block * BLOCK, BLOCK)
        exists = (i < CHILD)[None, :]
        w = load_matrix_rows(weight, i, CHILD, INNER, COLUMNS, COLUMNS_PADDED, NUMBER)
        coupling = tl.load(couplings + i[None, :], mask=exists, other=0.0).to(NUMBER)
        new_totals = ()
        for r in tl.static_range(ROWS):
            total = totals[r]
            for q in tl.static_range(INNER):
                p = tl.load(
                    poses + ((r * INNER + q) * CHILD + i)[None, :], mask=exists, other=0.0
                ).to(NUMBER)
                total += (coupling * p)[:, None, :] * w[q][None, :, :]
            new_totals = new_totals + (total,)
        totals = new_totals
    sums += ((first + a) * parent + j)[:, None] * (ROWS * COLUMNS) + c[None, :]
    exists = (first + a < row)[:, None] & (c < COLUMNS)[None, :]
    for r in tl.static_range(ROWS):
        tl.store(sums + r * COLUMNS, tl.sum(totals[r], 2), mask=exists)
