"""What each vote of a child comes to, and the gradient of the votes handed on: no sums over children here."""
# ruff: noqa: N803, N806, RUF005 (Triton's constants are upper case, and its tuples only add up)

from __future__ import annotations

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsule_lab.kernels.gpu.blocks import PROGRAMS, bytes_of, load, load_rows, make_votes, put, sizes, start

# ours, none measured yet on a GPU, but chosen so that the compiler spills no registers in the layers of the papers
ROWS_AT_ONCE = 4  # for which a program loads a weight once
ROWS_OF_FIT = 1  # the same where votes are made as well
BLOCK = 64  # children of a program, which is one warp
MOST_BYTES = 256  # of numbers that a program keeps for each child: half as many children, if there are more


def compare(poses: Tensor, weight: Tensor, parents: Tensor, precision: Tensor | None, inner: int) -> Tensor:
    """``sum_d precision (V - parents)^2``, or without ``precision`` ``V . parents``: ``(row, parent, child)``."""
    row, parent, _ = parents.shape
    found = poses.new_empty(row, parent, poses.shape[2])
    block = _children(poses, weight.shape[1] + ROWS_AT_ONCE * poses.shape[1] // 2)
    start(
        _compare,
        (triton.cdiv(row, ROWS_AT_ONCE), triton.cdiv(poses.shape[2], block)),
        (poses, weight, parents, precision),
        [found],
        row,
        parent,
        AT_ONCE=ROWS_AT_ONCE,
        BLOCK=block,
        num_warps=1,
        **sizes(poses, weight, inner),
    )
    return found


def hand_on(
    poses: Tensor,
    weight: Tensor,
    by_child: Tensor,
    coefficients: Tensor,
    inner: int,
    *,
    activations: Tensor | None = None,
    towards: Tensor | None = None,
    to_total: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Gradients of poses and weight, and of a fit's activations and couplings, which are ``by_child``.

    Args:
        poses, weight, inner: that the votes are made from.
        by_child: ``(row, parent, term, child)``, of a fit one term.
        coefficients: ``(row, parent, ., dim)``. Of a fit four, a parent's pose, twice the gradient of its variance and
            that of its mean, both per mass, and its precision; otherwise as many as ``by_child`` has terms, and the
            gradient of the votes is the sum of their products.
        activations, to_total: of the children, ``(row, child)``; ``(row, parent)``: what the gradient of all assigned
            to a parent has in common. Given for a fit only.
        towards: gradient of the distances, if they were measured.
    """
    row, parent, terms, child = by_child.shape
    fit = activations is not None
    to_poses = poses.new_empty(poses.shape)
    to_activations = None if activations is None else activations.new_empty(activations.shape)
    to_couplings = by_child.new_empty(row, parent, child) if fit else None
    given = (poses, weight, by_child, coefficients, activations, towards)
    common: dict[str, Any] = {"FIT": fit, "MEASURED": towards is not None, "TERMS": terms, "num_warps": 1}
    common |= sizes(poses, weight, inner)
    rows = ROWS_OF_FIT if fit else ROWS_AT_ONCE
    block = _children(poses, weight.shape[1] + rows * poses.shape[1])
    blocks = triton.cdiv(child, block)
    start(
        _to_poses,
        (triton.cdiv(row, rows), blocks),
        (*given, to_total),
        (to_poses, to_activations, to_couplings),
        row,
        parent,
        AT_ONCE=rows,
        BLOCK=block,
        **common,
    )
    length = max(1, triton.cdiv(row * blocks * parent, PROGRAMS))  # rows of a program
    number = torch.float64 if weight.dtype == torch.float64 else torch.float32
    parts = weight.new_empty(triton.cdiv(row, length), *weight.shape, dtype=number)
    start(_to_weight, (blocks, parent, len(parts)), given, [parts], row, length, BLOCK=block, **common)
    to_weight = parts.sum(0).to(weight.dtype)
    return tuple(each for each in (to_poses, to_weight, to_activations, to_couplings) if each is not None)


def _children(poses: Tensor, kept: int) -> int:
    """How many a program goes through at a time, if it keeps so many numbers for each."""
    return BLOCK if kept * bytes_of(poses) <= MOST_BYTES else BLOCK // 2


@triton.jit
@no_type_check
def _compare(
    poses, weight, parents, precision, found, row, parent,
    AT_ONCE: tl.constexpr, CHILD: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program compares the votes of a block of children of some rows, parent by parent."""
    D: tl.constexpr = ROWS * COLUMNS
    first = tl.program_id(0).to(tl.int64) * AT_ONCE
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    p = load_rows(poses, i, first, row, CHILD, ROWS * INNER, AT_ONCE, NUMBER)
    for j in range(parent):
        w = load(weight, i, CHILD, INNER * COLUMNS, NUMBER)
        for a in tl.static_range(AT_ONCE):
            at = tl.minimum(first + a, row - 1) * parent + j
            votes = make_votes(p, w, a * ROWS * INNER, ROWS, INNER, COLUMNS)
            total = tl.full([BLOCK], 0.0, NUMBER)
            for d in tl.static_range(D):
                pose = tl.load(parents + at * D + d).to(NUMBER)
                if precision is None:
                    total += votes[d] * pose
                else:
                    error = votes[d] - pose
                    total += tl.load(precision + at * D + d).to(NUMBER) * (error * error)
            tl.store(found + at * CHILD + i, total, mask=i < tl.where(first + a < row, CHILD, 0))
        weight += INNER * COLUMNS * CHILD


@triton.jit
@no_type_check
def _gradient(
    votes, shares, towards, coefficients,
    FIT: tl.constexpr, MEASURED: tl.constexpr, TERMS: tl.constexpr, D: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """Gradient of the votes of one row and parent, and at the end that of what is assigned (of a fit: ``shares``)."""
    parts = ()
    to_assigned = tl.zeros_like(shares[0])
    for d in tl.static_range(D):
        if FIT:
            error = votes[d] - tl.load(coefficients + d)
            twice = tl.load(coefficients + D + d)
            to_mean = tl.load(coefficients + 2 * D + d)
            each = shares[0] * (twice * error + to_mean)
            if MEASURED:
                each += towards * (error * tl.load(coefficients + 3 * D + d))
            to_assigned += 0.5 * twice * error * error + to_mean * votes[d]  # 0.5: of twice
        else:
            each = shares[0] * tl.load(coefficients + d).to(NUMBER)
            for k in tl.static_range(1, TERMS):
                each += shares[k] * tl.load(coefficients + k * D + d).to(NUMBER)
        parts = parts + (each,)
    return parts + (to_assigned,)


@triton.jit
@no_type_check
def _to_poses(
    poses, weight, by_child, coefficients, activations, towards, to_total, to_poses, to_activations, to_couplings,
    row, parent,
    FIT: tl.constexpr, MEASURED: tl.constexpr, TERMS: tl.constexpr, AT_ONCE: tl.constexpr, CHILD: tl.constexpr,
    ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program sums over all parents for a block of children of some rows."""
    D: tl.constexpr = ROWS * COLUMNS
    H: tl.constexpr = ROWS * INNER
    F: tl.constexpr = 4 * D if FIT else TERMS * D
    first = tl.program_id(0).to(tl.int64) * AT_ONCE
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    to = ()
    for _ in tl.static_range(AT_ONCE * (H + 1)):
        to = to + (tl.full([BLOCK], 0.0, NUMBER),)
    if FIT:
        p = load_rows(poses, i, first, row, CHILD, H, AT_ONCE, NUMBER)
        present = load_rows(activations, i, first, row, CHILD, 1, AT_ONCE, NUMBER)
    for j in range(parent):
        w = load(weight, i, CHILD, INNER * COLUMNS, NUMBER)
        more = ()
        for a in tl.static_range(AT_ONCE):
            at = tl.minimum(first + a, row - 1) * parent + j
            count = tl.where(first + a < row, CHILD, 0)
            shares = load(by_child + at * (TERMS * CHILD), i, CHILD, TERMS, NUMBER)
            coupling = shares[0]
            votes = shares  # made for a fit only, and so are these
            toward = coupling
            if FIT:
                votes = make_votes(p, w, a * H, ROWS, INNER, COLUMNS)
                shares = (coupling * present[a],)
                if MEASURED:
                    toward = load(towards + at * CHILD, i, CHILD, 1, NUMBER)[0]
            to_votes = _gradient(votes, shares, toward, coefficients + at * F, FIT, MEASURED, TERMS, D, NUMBER)
            for r in tl.static_range(ROWS):
                for q in tl.static_range(INNER):
                    total = to[a * (H + 1) + r * INNER + q]
                    for c in tl.static_range(COLUMNS):
                        total += to_votes[r * COLUMNS + c] * w[q * COLUMNS + c]
                    more = more + (total,)
            total = to[a * (H + 1) + H]
            if FIT:
                gradient = to_votes[D] + tl.load(to_total + at)
                total += gradient * coupling
                tl.store(to_couplings + at * CHILD + i, gradient * present[a], mask=i < count)
            more = more + (total,)
        to = more
        weight += INNER * COLUMNS * CHILD
    for a in tl.static_range(AT_ONCE):
        n = first + a
        count = tl.where(n < row, CHILD, 0)
        put(to_poses + n * (H * CHILD), i, to, a * (H + 1), H, count, CHILD)
        if FIT:
            put(to_activations + n * CHILD, i, to, a * (H + 1) + H, 1, count, CHILD)


@triton.jit
@no_type_check
def _to_weight(
    poses, weight, by_child, coefficients, activations, towards, to_weight, row, length,
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
    to = ()
    for _ in tl.static_range(ENTRIES):
        to = to + (tl.full([BLOCK], 0.0, NUMBER),)
    if FIT:
        w = load(weight + j * (ENTRIES * CHILD), i, CHILD, ENTRIES, NUMBER)
    for k in range(tl.maximum(0, tl.minimum(length, row - chunk * length))):
        n = chunk * length + k
        at = n * parent + j
        p = load(poses + n * (ROWS * INNER * CHILD), i, CHILD, ROWS * INNER, NUMBER)
        shares = load(by_child + at * (TERMS * CHILD), i, CHILD, TERMS, NUMBER)
        votes = shares
        toward = shares[0]
        if FIT:
            votes = make_votes(p, w, 0, ROWS, INNER, COLUMNS)
            shares = (shares[0] * load(activations + n * CHILD, i, CHILD, 1, NUMBER)[0],)
            if MEASURED:
                toward = load(towards + at * CHILD, i, CHILD, 1, NUMBER)[0]
        to_votes = _gradient(votes, shares, toward, coefficients + at * F, FIT, MEASURED, TERMS, D, NUMBER)
        more = ()
        for q in tl.static_range(INNER):
            for c in tl.static_range(COLUMNS):
                total = to[q * COLUMNS + c]
                for r in tl.static_range(ROWS):
                    total += to_votes[r * COLUMNS + c] * p[r * INNER + q]
                more = more + (total,)
        to = more
    put(to_weight + (chunk * parent + j) * (ENTRIES * CHILD), i, to, 0, ENTRIES, CHILD, CHILD)
