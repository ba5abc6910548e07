"""EM routing: the parents of a row fitted to the votes of its children (Hinton 2018, procedure 1)."""
# ruff: noqa: N803, N806 (Triton's constants are upper case)

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsule_lab.kernels.gpu.blocks import bytes_of, levels, load, make_votes, parents_per_program, sizes, stack, start
from capsule_lab.kernels.gpu.em_backward import compare, hand_on

AT_ONCE = 512  # ours, not measured yet on a GPU: children whose votes stay in registers


def fit(
    poses: Tensor,
    weight: Tensor,
    activations: Tensor,
    couplings: Tensor,
    previous: Tensor,
    inner: int,
    damping: float,
    min_variance: float,
    mass_eps: float,
    measure: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mass, poses, variances and, if asked to ``measure``, distances, see ``capsule_lab.kernels.base.Fit``."""
    row, parent, child = couplings.shape
    mass = couplings.new_empty(row, parent)
    parents, variances = previous.new_empty(previous.shape), previous.new_empty(previous.shape)
    distances = couplings.new_empty(row, parent, child if measure else 0)
    block = min(AT_ONCE, max(32, triton.next_power_of_2(child)))  # ours: 32, at least one child for each thread
    group = parents_per_program(row, parent)
    start(
        _fit,
        (row, triton.cdiv(parent, group)),
        (poses, weight, activations, couplings, previous),
        (mass, parents, variances, distances),
        parent,
        DAMPING=damping,
        MIN_VARIANCE=min_variance,
        MASS_EPS=mass_eps,
        MEASURE=measure,
        PARENTS=group,
        BLOCK=block,
        LEVELS=levels(poses, weight, inner),
        num_warps=max(1, block * bytes_of(poses) // 512),  # ours, not measured yet: 16 bytes of a component a thread
        **sizes(poses, weight, inner),
    )
    return mass, parents, variances, distances


def fit_backward(
    poses: Tensor,
    weight: Tensor,
    activations: Tensor,
    couplings: Tensor,
    previous: Tensor,
    mass: Tensor,
    parents: Tensor,
    variances: Tensor,
    to_mass: Tensor,
    to_parents: Tensor,
    to_variances: Tensor,
    to_distances: Tensor,
    inner: int,
    damping: float,
    min_variance: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the first five arguments; ``to_x`` are those of the results of ``fit``."""
    kept, measured = parents.dtype, to_distances.shape[2] > 0
    number = torch.float64 if kept == torch.float64 else torch.float32
    previous, mass, parents, variances, to_mass, to_parents, to_variances = (
        each.to(number) for each in (previous, mass, parents, variances, to_mass, to_parents, to_variances)
    )
    mean = (parents - damping * previous) / (1 - damping)
    precision = 1 / variances
    towards = to_distances if measured else None
    filled, moved, spread = _sums(poses, weight, activations, couplings, parents, towards, inner)
    filled = filled / mass  # 1, but for what was added to the mass
    if measured:  # distance = (v - pose)^2 / (2 variance)
        to_parents = to_parents - moved * precision
        to_variances = to_variances - 0.5 * spread * precision.square()  # 0.5: of the Gaussian
    # variance = floor + sum assigned (v - pose)^2 / mass
    to_parents = to_parents - 2 * to_variances * (mean - filled.unsqueeze(2) * parents)
    to_previous = damping * to_parents
    to_mean = (1 - damping) * to_parents / mass.unsqueeze(2)
    to_variances = to_variances / mass.unsqueeze(2)
    to_total = to_mass - (to_variances * (variances - min_variance) + to_mean * mean).sum(2)
    coefficients = torch.stack([parents, 2 * to_variances, to_mean, precision], 2)  # [n j . d], see hand_on
    to_poses, to_weight, to_activations, to_couplings = hand_on(
        poses, weight, couplings.unsqueeze(2), coefficients, inner,
        activations=activations, towards=towards, to_total=to_total,
    )  # fmt: skip
    return to_poses, to_weight, to_activations, to_couplings, to_previous.to(kept).contiguous()


def distances(poses: Tensor, weight: Tensor, parents: Tensor, variances: Tensor, inner: int) -> Tensor:
    """Half the squared distance of each vote from each parent in units of its variance, ``(row, parent, child)``."""
    return compare(poses, weight, parents, 0.5 / variances, inner)  # 0.5: of the Gaussian


def _sums(
    poses: Tensor,
    weight: Tensor,
    activations: Tensor,
    couplings: Tensor,
    parents: Tensor,
    to_distances: Tensor | None,
    inner: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Over the children: of what is assigned, and of ``to_distances`` times the error of a vote, and its square."""
    row, parent, _ = parents.shape
    filled = parents.new_empty(row, parent)
    moved, spread = parents.new_empty(parents.shape), parents.new_empty(parents.shape)
    group = parents_per_program(row, parent)
    start(
        _sum_up,
        (row, triton.cdiv(parent, group)),
        (poses, weight, activations, couplings, parents, to_distances),
        (filled, moved, spread),
        parent,
        PARENTS=group,
        BLOCK=32,  # ours, not measured yet on a GPU: one warp, which adds up what it has without waiting for others
        LEVELS=levels(poses, weight, inner),
        num_warps=1,
        **sizes(poses, weight, inner),
    )
    return filled, moved, spread


@triton.jit
@no_type_check
def _votes(
    poses, weight, i,
    CHILD: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr, LEVELS: tl.constexpr,
    NUMBER: tl.constexpr,
):  # fmt: skip
    """Votes of the children ``i`` for a parent, ``(block, 2^LEVELS)``."""
    p = load(poses, i, CHILD, ROWS * INNER, NUMBER)
    w = load(weight, i, CHILD, INNER * COLUMNS, NUMBER)
    return stack(make_votes(p, w, 0, ROWS, INNER, COLUMNS), ROWS * COLUMNS, LEVELS)


@triton.jit
@no_type_check
def _assigned(activations, couplings, i, CHILD: tl.constexpr, NUMBER: tl.constexpr):
    return load(activations, i, CHILD, 1, NUMBER)[0] * load(couplings, i, CHILD, 1, NUMBER)[0]


@triton.jit
@no_type_check
def _fit(
    poses, weight, activations, couplings, previous, mass, parents, variances, distances, parent,
    DAMPING: tl.constexpr, MIN_VARIANCE: tl.constexpr, MASS_EPS: tl.constexpr, MEASURE: tl.constexpr,
    PARENTS: tl.constexpr, CHILD: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr, LEVELS: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program fits PARENTS of a row, one after the other. Votes are made once if all children are one block."""
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
            assigned = _assigned(activations, coupling, lane, CHILD, NUMBER)
            votes = _votes(poses, entries, lane, CHILD, ROWS, INNER, COLUMNS, LEVELS, NUMBER)
        total = tl.full([BLOCK], 0.0, NUMBER)
        mean = tl.full([BLOCK, 1 << LEVELS], 0.0, NUMBER)
        for block in range(BLOCKS):
            if BLOCKS > 1:
                i = block * BLOCK + lane
                assigned = _assigned(activations, coupling, i, CHILD, NUMBER)
                votes = _votes(poses, entries, i, CHILD, ROWS, INNER, COLUMNS, LEVELS, NUMBER)
            total += assigned
            mean += assigned[:, None] * votes
        present = tl.sum(total, 0) + MASS_EPS
        pose = tl.sum(mean, 0) / present
        if DAMPING != 0:
            before = tl.load(previous + at * D + h, mask=h < D, other=0.0).to(NUMBER)
            pose = (1 - DAMPING) * pose + DAMPING * before
        squared = tl.full([BLOCK, 1 << LEVELS], 0.0, NUMBER)
        for block in range(BLOCKS):
            if BLOCKS > 1:
                i = block * BLOCK + lane
                assigned = _assigned(activations, coupling, i, CHILD, NUMBER)
                votes = _votes(poses, entries, i, CHILD, ROWS, INNER, COLUMNS, LEVELS, NUMBER)
            error = votes - pose[None, :]
            squared += assigned[:, None] * (error * error)
        variance = MIN_VARIANCE + tl.sum(squared, 0) / present
        tl.store(mass + at, present)
        tl.store(parents + at * D + h, pose, mask=h < D)
        tl.store(variances + at * D + h, variance, mask=h < D)
        if MEASURE:
            precision = tl.where(h < D, 0.5 / variance, 0.0)  # 0.5: of the Gaussian
            for block in range(BLOCKS):
                i = block * BLOCK + lane
                if BLOCKS > 1:
                    votes = _votes(poses, entries, i, CHILD, ROWS, INNER, COLUMNS, LEVELS, NUMBER)
                error = votes - pose[None, :]
                tl.store(distances + at * CHILD + i, tl.sum(precision[None, :] * (error * error), 1), mask=i < CHILD)


@triton.jit
@no_type_check
def _sum_up(
    poses, weight, activations, couplings, parents, to_distances, filled, moved, spread, parent,
    PARENTS: tl.constexpr, CHILD: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr, LEVELS: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program sums for PARENTS of a row, one after the other."""
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
        pose = tl.load(parents + at * D + h, mask=h < D, other=0.0).to(NUMBER)
        total = tl.full([BLOCK], 0.0, NUMBER)
        sums = tl.full([BLOCK, 1 << LEVELS], 0.0, NUMBER)
        squares = tl.full([BLOCK, 1 << LEVELS], 0.0, NUMBER)
        for block in range(tl.cdiv(CHILD, BLOCK)):
            i = block * BLOCK + lane
            total += _assigned(activations, couplings + at * CHILD, i, CHILD, NUMBER)
            if to_distances is not None:
                entries = weight + j * (INNER * COLUMNS * CHILD)
                error = _votes(poses, entries, i, CHILD, ROWS, INNER, COLUMNS, LEVELS, NUMBER) - pose[None, :]
                pull = load(to_distances + at * CHILD, i, CHILD, 1, NUMBER)[0][:, None] * error
                sums += pull
                squares += pull * error
        tl.store(filled + at, tl.sum(total, 0))
        if to_distances is not None:
            tl.store(moved + at * D + h, tl.sum(sums, 0), mask=h < D)
            tl.store(spread + at * D + h, tl.sum(squares, 0), mask=h < D)
