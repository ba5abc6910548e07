"""EM routing: fit of the parents of a row to the votes of its children (Hinton 2018, procedure 1)."""
# ruff: noqa: N803, N806, RUF005 (Triton's constants are upper case, and its tuples only add up)

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from capsule_lab.kernels.em_arguments import FitInputs, FitOptions, FitOutputs
from capsule_lab.kernels.gpu.blocks import (
    compute_votes,
    launch,
    load,
    log2_dim,
    number_type,
    parents_per_program,
    sizes,
    stack,
)
from capsule_lab.kernels.gpu.votes import sum_components

VOTES_KEPT = 144  # ours: registers of a thread (of 255) for votes; the compiler spills none in the layers of the papers
MOST_KEPT = 9  # ours: blocks; each is compiled separately, and 9 blocks of 32 are a 3x3 window of 32 types


def fit(inputs: FitInputs, options: FitOptions) -> FitOutputs:
    """Compute mass, poses, variances and, with ``measure``, distances."""
    poses, weight, _, couplings, previous = inputs
    row, parent, child = couplings.shape
    outputs = FitOutputs(
        mass=couplings.new_empty(row, parent),
        poses=previous.new_empty(previous.shape),
        variances=previous.new_empty(previous.shape),
        distances=couplings.new_empty(row, parent, child if options.measure else 0),
    )
    group = parents_per_program(row, parent)
    levels = log2_dim(poses, weight, options.inner)
    block, kept = fit_blocks(child, (1 << levels) * number_type(poses).primitive_bitwidth // 8)
    launch(
        _fit, (row, triton.cdiv(parent, group)), inputs, outputs, parent,
        DAMPING=options.damping, MIN_VARIANCE=options.min_variance, MASS_EPS=options.mass_eps, MEASURE=options.measure,
        PARENTS=group, BLOCK=block, KEPT=kept, LEVELS=levels, num_warps=block // 32,
        **sizes(poses, weight, options.inner),
    )  # fmt: skip
    return outputs


def fit_blocks(child: int, bytes_per_vote: int) -> tuple[int, int]:
    """Return the children of a block, one per thread, and the number of blocks with votes in registers; not tuned.

    The number of blocks is limited by registers. Blocks of two warps cover the 9 * 2^n children of a 3x3 window with
    almost no idle threads (one large block leaves nearly half idle), and few warps exchange few sums.
    """
    block = 64 if child > 32 else 32  # ours
    registers = bytes_per_vote // 4
    return block, min(triton.cdiv(child, block), VOTES_KEPT // registers or 1, MOST_KEPT)


def distances(poses: Tensor, weight: Tensor, parents: Tensor, variances: Tensor, inner: int) -> Tensor:
    """Compute half the squared distances of votes from parents in units of the variance, ``(row, parent, child)``."""
    return sum_components(poses, weight, parents, 0.5 / variances, inner)


@triton.jit
@no_type_check
def block_votes(
    poses, weight, i,
    CHILD: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr, LEVELS: tl.constexpr,
    NUMBER: tl.constexpr,
):  # fmt: skip
    """Compute the votes of the children ``i`` for a parent, ``(block, 2^LEVELS)``."""
    p = load(poses, i, CHILD, ROWS * INNER, NUMBER)
    w = load(weight, i, CHILD, INNER * COLUMNS, NUMBER)
    return stack(compute_votes(p, w, 0, ROWS, INNER, COLUMNS), ROWS * COLUMNS, LEVELS)


@triton.jit
@no_type_check
def assigned_to(activations, couplings, i, CHILD: tl.constexpr, NUMBER: tl.constexpr):
    return load(activations, i, CHILD, 1, NUMBER)[0] * load(couplings, i, CHILD, 1, NUMBER)[0]


@triton.jit
@no_type_check
def several_votes(
    poses, weight, first,
    KEPT: tl.constexpr, CHILD: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr, LEVELS: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """Compute the votes of KEPT blocks of children from ``first`` on, a tuple of ``block_votes`` results."""
    votes = ()
    for b in tl.static_range(KEPT):
        i = first + b * BLOCK + tl.arange(0, BLOCK)
        votes = votes + (block_votes(poses, weight, i, CHILD, ROWS, INNER, COLUMNS, LEVELS, NUMBER),)
    return votes


@triton.jit
@no_type_check
def several_assigned(
    activations, couplings, first, KEPT: tl.constexpr, CHILD: tl.constexpr, BLOCK: tl.constexpr, NUMBER: tl.constexpr
):
    """Compute the share of these children assigned to a parent, a tuple of tensors ``(block,)``."""
    assigned = ()
    for b in tl.static_range(KEPT):
        i = first + b * BLOCK + tl.arange(0, BLOCK)
        assigned = assigned + (assigned_to(activations, couplings, i, CHILD, NUMBER),)
    return assigned


@triton.jit
@no_type_check
def _fit(
    poses, weight, activations, couplings, previous, mass, parents, variances, distances, parent,
    DAMPING: tl.constexpr, MIN_VARIANCE: tl.constexpr, MASS_EPS: tl.constexpr, MEASURE: tl.constexpr,
    PARENTS: tl.constexpr, CHILD: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr, KEPT: tl.constexpr, LEVELS: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program fits PARENTS parents of a row, one after the other.

    The votes of KEPT blocks of children stay in registers. If these contain all children, votes are computed once,
    otherwise in each pass over the children.
    """
    AT_ONCE: tl.constexpr = KEPT * BLOCK
    CHUNKS: tl.constexpr = (CHILD + AT_ONCE - 1) // AT_ONCE
    D: tl.constexpr = ROWS * COLUMNS
    n = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * PARENTS
    h = tl.arange(0, 1 << LEVELS)
    poses += n * (ROWS * INNER * CHILD)
    activations += n * CHILD
    for k in range(tl.minimum(PARENTS, parent - first)):
        j = first + k
        at = n * parent + j
        coupling = couplings + at * CHILD
        entries = weight + j * (INNER * COLUMNS * CHILD)
        if CHUNKS == 1:
            assigned = several_assigned(activations, coupling, 0, KEPT, CHILD, BLOCK, NUMBER)
            votes = several_votes(poses, entries, 0, KEPT, CHILD, ROWS, INNER, COLUMNS, BLOCK, LEVELS, NUMBER)
        total = tl.full([BLOCK], 0.0, NUMBER)
        mean = tl.full([BLOCK, 1 << LEVELS], 0.0, NUMBER)
        for chunk in range(CHUNKS):
            if CHUNKS > 1:
                i = chunk * AT_ONCE
                assigned = several_assigned(activations, coupling, i, KEPT, CHILD, BLOCK, NUMBER)
                votes = several_votes(poses, entries, i, KEPT, CHILD, ROWS, INNER, COLUMNS, BLOCK, LEVELS, NUMBER)
            for b in tl.static_range(KEPT):
                total += assigned[b]
                mean += assigned[b][:, None] * votes[b]
        filled = tl.sum(total, 0) + MASS_EPS
        pose = tl.sum(mean, 0) / filled
        if DAMPING != 0:
            before = tl.load(previous + at * D + h, mask=h < D, other=0.0).to(NUMBER)
            pose = (1 - DAMPING) * pose + DAMPING * before
        squared = tl.full([BLOCK, 1 << LEVELS], 0.0, NUMBER)
        for chunk in range(CHUNKS):
            if CHUNKS > 1:
                i = chunk * AT_ONCE
                assigned = several_assigned(activations, coupling, i, KEPT, CHILD, BLOCK, NUMBER)
                votes = several_votes(poses, entries, i, KEPT, CHILD, ROWS, INNER, COLUMNS, BLOCK, LEVELS, NUMBER)
            for b in tl.static_range(KEPT):
                error = votes[b] - pose[None, :]
                squared += assigned[b][:, None] * (error * error)
        variance = MIN_VARIANCE + tl.sum(squared, 0) / filled
        tl.store(mass + at, filled)
        tl.store(parents + at * D + h, pose, mask=h < D)
        tl.store(variances + at * D + h, variance, mask=h < D)
        if MEASURE:
            precision = tl.where(h < D, 0.5 / variance, 0.0)
            for chunk in range(CHUNKS):
                if CHUNKS > 1:
                    i = chunk * AT_ONCE
                    votes = several_votes(poses, entries, i, KEPT, CHILD, ROWS, INNER, COLUMNS, BLOCK, LEVELS, NUMBER)
                for b in tl.static_range(KEPT):
                    error = votes[b] - pose[None, :]
                    i = chunk * AT_ONCE + b * BLOCK + tl.arange(0, BLOCK)
                    distance = tl.sum(precision[None, :] * (error * error), 1)
                    tl.store(distances + at * CHILD + i, distance, mask=i < CHILD)
