"""EM routing: the parents of a row fitted to the votes of its children (Hinton 2018, procedure 1)."""
# ruff: noqa: N803, N806 (Triton's constants are upper case)

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from capsule_lab.kernels.em_arguments import FitInputs, FitOptions, FitOutputs
from capsule_lab.kernels.gpu.blocks import (
    bytes_per_number,
    compute_votes,
    launch,
    load,
    log2_dim,
    parents_per_program,
    sizes,
    stack,
)
from capsule_lab.kernels.gpu.votes import sum_components

MAX_BLOCK = 512  # ours, not measured yet on a GPU: children whose votes stay in registers


def fit(inputs: FitInputs, options: FitOptions) -> FitOutputs:
    """Mass, poses, variances and, if asked to ``measure``, distances."""
    poses, weight, _, couplings, previous = inputs
    row, parent, child = couplings.shape
    outputs = FitOutputs(
        mass=couplings.new_empty(row, parent),
        poses=previous.new_empty(previous.shape),
        variances=previous.new_empty(previous.shape),
        distances=couplings.new_empty(row, parent, child if options.measure else 0),
    )
    block = min(MAX_BLOCK, max(32, triton.next_power_of_2(child)))  # ours: 32, at least one child for each thread
    group = parents_per_program(row, parent)
    launch(
        _fit,
        (row, triton.cdiv(parent, group)),
        inputs,
        outputs,
        parent,
        DAMPING=options.damping,
        MIN_VARIANCE=options.min_variance,
        MASS_EPS=options.mass_eps,
        MEASURE=options.measure,
        PARENTS=group,
        BLOCK=block,
        LEVELS=log2_dim(poses, weight, options.inner),
        # ours, not measured yet: 16 bytes of a component a thread
        num_warps=max(1, block * bytes_per_number(poses) // 512),
        **sizes(poses, weight, options.inner),
    )
    return outputs


def distances(poses: Tensor, weight: Tensor, parents: Tensor, variances: Tensor, inner: int) -> Tensor:
    """Half the squared distance of each vote from each parent in units of its variance, ``(row, parent, child)``."""
    return sum_components(poses, weight, parents, 0.5 / variances, inner)


@triton.jit
@no_type_check
def block_votes(
    poses, weight, i,
    CHILD: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr, LEVELS: tl.constexpr,
    NUMBER: tl.constexpr,
):  # fmt: skip
    """Votes of the children ``i`` for a parent, ``(block, 2^LEVELS)``."""
    p = load(poses, i, CHILD, ROWS * INNER, NUMBER)
    w = load(weight, i, CHILD, INNER * COLUMNS, NUMBER)
    return stack(compute_votes(p, w, 0, ROWS, INNER, COLUMNS), ROWS * COLUMNS, LEVELS)


@triton.jit
@no_type_check
def assigned_to(activations, couplings, i, CHILD: tl.constexpr, NUMBER: tl.constexpr):
    return load(activations, i, CHILD, 1, NUMBER)[0] * load(couplings, i, CHILD, 1, NUMBER)[0]


@triton.jit
@no_type_check
def _fit(
    poses, weight, activations, couplings, previous, mass, parents, variances, distances, parent,
    DAMPING: tl.constexpr, MIN_VARIANCE: tl.constexpr, MASS_EPS: tl.constexpr, MEASURE: tl.constexpr,
    PARENTS: tl.constexpr, CHILD: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr, LEVELS: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program fits PARENTS of a row, one after the other. Votes are computed once if all children are one block."""
    BLOCKS: tl.constexpr = (CHILD + BLOCK - 1) // BLOCK
    D: tl.constexpr = ROWS * COLUMNS
    n = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * PARENTS
    lane = tl.arange(0, BLOCK)
    h = tl.arange(0, 1 << LEVELS)
    poses += n * (ROWS * INNER * CHILD)
    activations += n * CHILD
    for k in range(tl.minimum(PARENTS, parent - first)):
        j = first + k
        at = n * parent + j
        coupling = couplings + at * CHILD
        entries = weight + j * (INNER * COLUMNS * CHILD)
        if BLOCKS == 1:
            assigned = assigned_to(activations, coupling, lane, CHILD, NUMBER)
            votes = block_votes(poses, entries, lane, CHILD, ROWS, INNER, COLUMNS, LEVELS, NUMBER)
        total = tl.full([BLOCK], 0.0, NUMBER)
        mean = tl.full([BLOCK, 1 << LEVELS], 0.0, NUMBER)
        for block in range(BLOCKS):
            if BLOCKS > 1:
                i = block * BLOCK + lane
                assigned = assigned_to(activations, coupling, i, CHILD, NUMBER)
                votes = block_votes(poses, entries, i, CHILD, ROWS, INNER, COLUMNS, LEVELS, NUMBER)
            total += assigned
            mean += assigned[:, None] * votes
        filled = tl.sum(total, 0) + MASS_EPS
        pose = tl.sum(mean, 0) / filled
        if DAMPING != 0:
            before = tl.load(previous + at * D + h, mask=h < D, other=0.0).to(NUMBER)
            pose = (1 - DAMPING) * pose + DAMPING * before
        squared = tl.full([BLOCK, 1 << LEVELS], 0.0, NUMBER)
        for block in range(BLOCKS):
            if BLOCKS > 1:
                i = block * BLOCK + lane
                assigned = assigned_to(activations, coupling, i, CHILD, NUMBER)
                votes = block_votes(poses, entries, i, CHILD, ROWS, INNER, COLUMNS, LEVELS, NUMBER)
            error = votes - pose[None, :]
            squared += assigned[:, None] * (error * error)
        variance = MIN_VARIANCE + tl.sum(squared, 0) / filled
        tl.store(mass + at, filled)
        tl.store(parents + at * D + h, pose, mask=h < D)
        tl.store(variances + at * D + h, variance, mask=h < D)
        if MEASURE:
            precision = tl.where(h < D, 0.5 / variance, 0.0)
            for block in range(BLOCKS):
                i = block * BLOCK + lane
                if BLOCKS > 1:
                    votes = block_votes(poses, entries, i, CHILD, ROWS, INNER, COLUMNS, LEVELS, NUMBER)
                error = votes - pose[None, :]
                tl.store(distances + at * CHILD + i, tl.sum(precision[None, :] * (error * error), 1), mask=i < CHILD)
