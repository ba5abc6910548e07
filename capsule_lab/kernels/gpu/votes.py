"""Sums over the components of each vote, and gradients of poses and weights from the gradient of votes."""
# ruff: noqa: N803, N806, RUF005 (Triton's constants are upper case, and its tuples only add up)

from __future__ import annotations

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsule_lab.kernels.gpu.blocks import PROGRAMS, compute_votes, launch, load, load_rows, number_type, sizes, store

# ours, not tuned, but chosen so that the compiler spills no registers in the layers of the papers
ROWS_PER_PROGRAM = 4  # a program loads a weight once for this many rows
ROWS_OF_FIT = 1  # the same for a fit, which also computes votes
BLOCK = 64  # children per program, which is one warp
MOST_BYTES = 256  # limit of bytes that a program keeps per child; above it a program has BLOCK // 2 children


def sum_components(poses: Tensor, weight: Tensor, parents: Tensor, precision: Tensor | None, inner: int) -> Tensor:
    """Return ``sum_d precision (V - parents)^2`` or, without precision, ``V . parents``, ``(row, parent, child)``."""
    row, parent, _ = parents.shape
    result = poses.new_empty(row, parent, poses.shape[2])
    block = _block_size(poses, weight.shape[1] + ROWS_PER_PROGRAM * poses.shape[1] // 2)
    grid = triton.cdiv(row, ROWS_PER_PROGRAM), triton.cdiv(poses.shape[2], block)
    launch(
        _sum_components, grid, (poses, weight, parents, precision), [result], row, parent,
        GROUP=ROWS_PER_PROGRAM, BLOCK=block, num_warps=1, **sizes(poses, weight, inner),
    )  # fmt: skip
    return result


def votes_backward(
    poses: Tensor,
    weight: Tensor,
    by_child: Tensor,
    coefficients: Tensor,
    inner: int,
    *,
    activations: Tensor | None = None,
    grad_distances: Tensor | None = None,
    grad_mass: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Compute gradients of poses and weight and, for a fit, of activations and couplings (``by_child``).

    Args:
        poses, weight, inner: determine the votes.
        by_child: ``(row, parent, term, child)``; one term for a fit.
        coefficients: ``(row, parent, ., dim)``. Four for a fit: pose of the parent, 2 alpha, beta and precision, see
            ``capsule_lab.kernels.cpu.em_backward``; otherwise one per term of ``by_child``, and the gradient of the
            votes is the sum of their products.
        activations, grad_mass: of children ``(row, child)`` and parents ``(row, parent)``; only for a fit.
        grad_distances: gradient of the distances, if they were measured.
    """
    row, parent, terms, child = by_child.shape
    fit = activations is not None
    grad_poses = poses.new_empty(poses.shape)
    grad_activations = None if activations is None else activations.new_empty(activations.shape)
    grad_couplings = by_child.new_empty(row, parent, child) if fit else None
    group = ROWS_OF_FIT if fit else ROWS_PER_PROGRAM
    block = _block_size(poses, weight.shape[1] + group * poses.shape[1])
    programs = triton.cdiv(child, block)
    given = (poses, weight, by_child, coefficients, activations, grad_distances)
    common: dict[str, Any] = {"FIT": fit, "MEASURED": grad_distances is not None, "TERMS": terms}
    common |= {"BLOCK": block, "num_warps": 1, **sizes(poses, weight, inner)}
    grads_of_children = grad_poses, grad_activations, grad_couplings
    grid = triton.cdiv(row, group), programs
    launch(_grad_poses, grid, (*given, grad_mass), grads_of_children, row, parent, GROUP=group, **common)
    length = max(1, triton.cdiv(row * programs * parent, PROGRAMS))  # rows per program
    number = torch.float64 if weight.dtype == torch.float64 else torch.float32
    parts = weight.new_empty(triton.cdiv(row, length), *weight.shape, dtype=number)
    launch(_grad_weight, (programs, parent, len(parts)), given, [parts], row, length, **common)
    grads = grad_poses, parts.sum(0).to(weight.dtype), grad_activations, grad_couplings
    return tuple(gradient for gradient in grads if gradient is not None)


def _block_size(poses: Tensor, kept: int) -> int:
    """Return the number of children of a program that keeps ``kept`` numbers per child."""
    return BLOCK if kept * (number_type(poses).primitive_bitwidth // 8) <= MOST_BYTES else BLOCK // 2


@triton.jit
@no_type_check
def _sum_components(
    poses, weight, parents, precision, result, row, parent,
    GROUP: tl.constexpr, CHILD: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program computes the sums for a block of children of some rows, parent by parent."""
    D: tl.constexpr = ROWS * COLUMNS
    first = tl.program_id(0).to(tl.int64) * GROUP
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    p = load_rows(poses, i, first, row, CHILD, ROWS * INNER, GROUP, NUMBER)
    for j in range(parent):
        w = load(weight, i, CHILD, INNER * COLUMNS, NUMBER)
        for a in tl.static_range(GROUP):
            at = tl.minimum(first + a, row - 1) * parent + j
            votes = compute_votes(p, w, a * ROWS * INNER, ROWS, INNER, COLUMNS)
            total = tl.full([BLOCK], 0.0, NUMBER)
            for d in tl.static_range(D):
                pose = tl.load(parents + at * D + d).to(NUMBER)
                if precision is None:
                    total += votes[d] * pose
                else:
                    error = votes[d] - pose
                    total += tl.load(precision + at * D + d).to(NUMBER) * (error * error)
            tl.store(result + at * CHILD + i, total, mask=i < tl.where(first + a < row, CHILD, 0))
        weight += INNER * COLUMNS * CHILD


@triton.jit
@no_type_check
def _gradient(
    votes, factors, grad_distances, coefficients,
    FIT: tl.constexpr, MEASURED: tl.constexpr, TERMS: tl.constexpr, D: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """Gradients of the votes of one row and parent; the last is that of ``factors[0]``, the assigned share in a fit."""
    parts = ()
    grad_assigned = tl.zeros_like(factors[0])
    for d in tl.static_range(D):
        if FIT:
            error = votes[d] - tl.load(coefficients + d)
            two_alpha = tl.load(coefficients + D + d)
            beta = tl.load(coefficients + 2 * D + d)
            grad_vote = factors[0] * (two_alpha * error + beta)
            if MEASURED:
                grad_vote += grad_distances * (error * tl.load(coefficients + 3 * D + d))
            grad_assigned += 0.5 * two_alpha * error * error + beta * votes[d]
        else:
            grad_vote = factors[0] * tl.load(coefficients + d).to(NUMBER)
            for k in tl.static_range(1, TERMS):
                grad_vote += factors[k] * tl.load(coefficients + k * D + d).to(NUMBER)
        parts = parts + (grad_vote,)
    return parts + (grad_assigned,)


@triton.jit
@no_type_check
def _grad_poses(
    poses, weight, by_child, coefficients, activations, grad_distances, grad_mass,
    grad_poses, grad_activations, grad_couplings, row, parent,
    FIT: tl.constexpr, MEASURED: tl.constexpr, TERMS: tl.constexpr, GROUP: tl.constexpr, CHILD: tl.constexpr,
    ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program sums over all parents for a block of children of some rows."""
    D: tl.constexpr = ROWS * COLUMNS
    H: tl.constexpr = ROWS * INNER
    F: tl.constexpr = 4 * D if FIT else TERMS * D
    first = tl.program_id(0).to(tl.int64) * GROUP
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sums = ()
    for _ in tl.static_range(GROUP * (H + 1)):
        sums = sums + (tl.full([BLOCK], 0.0, NUMBER),)
    if FIT:
        p = load_rows(poses, i, first, row, CHILD, H, GROUP, NUMBER)
        activation = load_rows(activations, i, first, row, CHILD, 1, GROUP, NUMBER)
    for j in range(parent):
        w = load(weight, i, CHILD, INNER * COLUMNS, NUMBER)
        new_sums = ()
        for a in tl.static_range(GROUP):
            at = tl.minimum(first + a, row - 1) * parent + j
            count = tl.where(first + a < row, CHILD, 0)
            factors = load(by_child + at * (TERMS * CHILD), i, CHILD, TERMS, NUMBER)
            coupling = factors[0]
            votes = factors  # placeholder of the same type; votes and grad_distance are computed only for a fit
            grad_distance = coupling
            if FIT:
                votes = compute_votes(p, w, a * H, ROWS, INNER, COLUMNS)
                factors = (coupling * activation[a],)
                if MEASURED:
                    grad_distance = load(grad_distances + at * CHILD, i, CHILD, 1, NUMBER)[0]
            grad_votes = _gradient(
                votes, factors, grad_distance, coefficients + at * F, FIT, MEASURED, TERMS, D, NUMBER
            )
            for r in tl.static_range(ROWS):
                for q in tl.static_range(INNER):
                    total = sums[a * (H + 1) + r * INNER + q]
                    for c in tl.static_range(COLUMNS):
                        total += grad_votes[r * COLUMNS + c] * w[q * COLUMNS + c]
                    new_sums = new_sums + (total,)
            total = sums[a * (H + 1) + H]
            if FIT:
                gradient = grad_votes[D] + tl.load(grad_mass + at)
                total += gradient * coupling
                tl.store(grad_couplings + at * CHILD + i, gradient * activation[a], mask=i < count)
            new_sums = new_sums + (total,)
        sums = new_sums
        weight += INNER * COLUMNS * CHILD
    for a in tl.static_range(GROUP):
        n = first + a
        count = tl.where(n < row, CHILD, 0)
        store(grad_poses + n * (H * CHILD), i, sums, a * (H + 1), H, count, CHILD)
        if FIT:
            store(grad_activations + n * CHILD, i, sums, a * (H + 1) + H, 1, count, CHILD)


@triton.jit
@no_type_check
def _grad_weight(
    poses, weight, by_child, coefficients, activations, grad_distances, grad_weight, row, length,
    FIT: tl.constexpr, MEASURED: tl.constexpr, TERMS: tl.constexpr, CHILD: tl.constexpr, ROWS: tl.constexpr,
    INNER: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program sums over ``length`` of the rows for a block of children and one parent."""
    D: tl.constexpr = ROWS * COLUMNS
    ENTRIES: tl.constexpr = INNER * COLUMNS
    F: tl.constexpr = 4 * D if FIT else TERMS * D
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(1).to(tl.int64)
    parent = tl.num_programs(1)
    chunk = tl.program_id(2).to(tl.int64)
    sums = ()
    for _ in tl.static_range(ENTRIES):
        sums = sums + (tl.full([BLOCK], 0.0, NUMBER),)
    if FIT:
        w = load(weight + j * (ENTRIES * CHILD), i, CHILD, ENTRIES, NUMBER)
    for k in range(tl.maximum(0, tl.minimum(length, row - chunk * length))):
        n = chunk * length + k
        at = n * parent + j
        p = load(poses + n * (ROWS * INNER * CHILD), i, CHILD, ROWS * INNER, NUMBER)
        factors = load(by_child + at * (TERMS * CHILD), i, CHILD, TERMS, NUMBER)
        votes = factors
        grad_distance = factors[0]
        if FIT:
            votes = compute_votes(p, w, 0, ROWS, INNER, COLUMNS)
            factors = (factors[0] * load(activations + n * CHILD, i, CHILD, 1, NUMBER)[0],)
            if MEASURED:
                grad_distance = load(grad_distances + at * CHILD, i, CHILD, 1, NUMBER)[0]
        grad_votes = _gradient(votes, factors, grad_distance, coefficients + at * F, FIT, MEASURED, TERMS, D, NUMBER)
        new_sums = ()
        for q in tl.static_range(INNER):
            for c in tl.static_range(COLUMNS):
                total = sums[q * COLUMNS + c]
                for r in tl.static_range(ROWS):
                    total += grad_votes[r * COLUMNS + c] * p[r * INNER + q]
                new_sums = new_sums + (total,)
        sums = new_sums
    store(grad_weight + (chunk * parent + j) * (ENTRIES * CHILD), i, sums, 0, ENTRIES, CHILD, CHILD)
