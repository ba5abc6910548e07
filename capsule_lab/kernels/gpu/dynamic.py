"""Dynamic routing: sums of weighted votes, and agreement of votes with poses (Sabour 2017, procedure 1)."""
# ruff: noqa: N803, N806, RUF005 (Triton's constants are upper case, and its tuples only add up)

from __future__ import annotations

from collections.abc import Sequence
from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsule_lab.kernels.gpu.blocks import compute_votes, launch, load, load_rows, log2_dim, sizes, stack
from capsule_lab.kernels.gpu.votes import sum_components, votes_backward

BLOCK, WARPS = 128, 4  # ours, not tuned: one child for each thread
ROWS_PER_PROGRAM = 4  # ours, not tuned: a program loads a weight once for this many rows


def weighted_sum(poses: Tensor, weight: Tensor, couplings: Tensor, inner: int) -> Tensor:
    """Compute ``sum_i couplings V``, ``(row, parent, dim)``."""
    row, parent, _ = couplings.shape
    sums = poses.new_empty(row, parent, poses.shape[1] // inner * (weight.shape[1] // inner))
    launch(
        _weighted_sum, (triton.cdiv(row, ROWS_PER_PROGRAM), parent), (poses, weight, couplings), [sums], row,
        GROUP=ROWS_PER_PROGRAM, BLOCK=BLOCK, LEVELS=log2_dim(poses, weight, inner), num_warps=WARPS,
        **sizes(poses, weight, inner),
    )  # fmt: skip
    return sums


def agreement(poses: Tensor, weight: Tensor, parents: Tensor, inner: int) -> Tensor:
    """Compute ``V . parents``, ``(row, parent, child)``."""
    return sum_components(poses, weight, parents, None, inner)


def contraction(
    poses: Tensor, weight: Tensor, by_child: Sequence[Tensor], by_component: Sequence[Tensor], inner: int
) -> tuple[Tensor, Tensor]:
    """Compute gradients of poses and weight if the gradient of votes is a sum of ``by_child`` x ``by_component``."""
    factors, components = (torch.stack(list(parts), 2) for parts in (by_child, by_component))
    grad_poses, grad_weight = votes_backward(poses, weight, factors, components, inner)
    return grad_poses, grad_weight


@triton.jit
@no_type_check
def _weighted_sum(
    poses, weight, couplings, sums, row,
    GROUP: tl.constexpr, CHILD: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr, LEVELS: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program sums over blocks of children for some rows and one parent, and finally over its threads."""
    D: tl.constexpr = ROWS * COLUMNS
    first = tl.program_id(0).to(tl.int64) * GROUP
    j = tl.program_id(1).to(tl.int64)
    parent = tl.num_programs(1)
    lane = tl.arange(0, BLOCK)
    h = tl.arange(0, 1 << LEVELS)
    weight += j * (INNER * COLUMNS * CHILD)
    totals = ()
    for _ in tl.static_range(GROUP * D):
        totals = totals + (tl.full([BLOCK], 0.0, NUMBER),)
    for block in range(tl.cdiv(CHILD, BLOCK)):
        i = block * BLOCK + lane
        p = load_rows(poses, i, first, row, CHILD, ROWS * INNER, GROUP, NUMBER)
        w = load(weight, i, CHILD, INNER * COLUMNS, NUMBER)
        new_totals = ()
        for a in tl.static_range(GROUP):
            at = tl.minimum(first + a, row - 1) * parent + j
            coupling = load(couplings + at * CHILD, i, CHILD, 1, NUMBER)[0]
            votes = compute_votes(p, w, a * ROWS * INNER, ROWS, INNER, COLUMNS)
            for d in tl.static_range(D):
                new_totals = new_totals + (totals[a * D + d] + coupling * votes[d],)
        totals = new_totals
    for a in tl.static_range(GROUP):
        of_row = ()
        for d in tl.static_range(D):
            of_row = of_row + (totals[a * D + d],)
        at = (first + a) * parent + j
        total = tl.sum(stack(of_row, D, LEVELS), 0)
        tl.store(sums + at * D + h, total, mask=h < tl.where(first + a < row, D, 0))
