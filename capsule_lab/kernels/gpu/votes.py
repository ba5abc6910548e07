"""Sums over the components of each vote, and gradients of poses and weights from the gradient of votes.

Compilation time grows with the number of loads times the number of operations that depend on each other. Therefore
kernels load and compute tensors ``(rows, columns, block)`` instead of single components, and sizes that only affect
addresses are arguments: a compiled kernel serves all layers with votes of the same size.
"""
# ruff: noqa: N803, N806, RUF005 (Triton's constants are upper case, and its tuples only add up)

from __future__ import annotations

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsule_lab.kernels.gpu.blocks import (
    PROGRAMS,
    children_from,
    launch,
    load_children,
    load_columns,
    load_components,
    load_matrix_rows,
    number_type,
    padded,
)

# ours, not tuned, but chosen so that the compiler spills no registers in the layers of the papers
WARP = 32  # children of the smallest program
ROWS_PER_PROGRAM = 4  # a program loads a weight once for this many rows
REGISTERS = 168  # limit for a thread where it suffices: a multiprocessor of Hopper holds 12 such warps, not 8
MOST_PRODUCTS = 64  # limit of sums of products that a program keeps per child
MOST_BYTES = 256  # limit of bytes that a program of two children per thread keeps per child
MOST_LOADED = 16  # components of parents that a thread loads at once; the compiler distributes 32 over threads


def sum_components(
    poses: Tensor, weight: Tensor, parents: Tensor, precision: Tensor | None, inner: int
) -> Tensor:
    """Return ``sum_d precision (V - parents)^2`` or, without precision, ``V . parents``, ``(row, parent, child)``."""
    row, parent, _ = parents.shape
    child = poses.shape[2]
    result = poses.new_empty(row, parent, child)
    together = _parents_together(parent, weight, inner)
    block = _block_size(poses, poses.shape[1] + together * weight.shape[1])
    programs = triton.cdiv(parent, together), triton.cdiv(child, block)
    length = _rows_per_program(row, programs[0] * programs[1])
    launch(
        _sum_components, (*programs, triton.cdiv(row, length)), (poses, weight, parents, precision), [result],
        row, parent, child, length, TOGETHER=together, BLOCK=block, num_warps=1,
        maxnreg=REGISTERS if together == 1 else None, **_tile_sizes(poses, weight, inner),
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
    tile = _tile_sizes(poses, weight, inner)
    grads: list[Tensor] = [poses.new_empty(poses.shape)]
    if activations is None or grad_mass is None:
        grid = triton.cdiv(row, ROWS_PER_PROGRAM), triton.cdiv(child, WARP)
        launch(
            _grad_poses, grid, (weight, by_child, coefficients), tuple(grads), row, parent,
            GROUP=ROWS_PER_PROGRAM, TERMS=terms, CHILD=child, ROWS=tile["ROWS"], INNER=inner, COLUMNS=tile["COLUMNS"],
            INNER_PADDED=padded(inner), WIDTH=min(4, tile["COLUMNS_PADDED"]), BLOCK=WARP, NUMBER=tile["NUMBER"],
            num_warps=1,
        )  # fmt: skip
    else:
        grads += [activations.new_empty(activations.shape), by_child.new_empty(row, parent, child)]
        grad_assigned = grad_mass + (coefficients[:, :, 0] * coefficients[:, :, 2]).sum(2)
        products = tile["ROWS"] * weight.shape[1] <= MOST_PRODUCTS
        launch(
            _grad_poses_of_fit, (row, triton.cdiv(child, WARP)),
            (poses, weight, by_child, coefficients, activations, grad_distances, grad_assigned), tuple(grads),
            parent, child,
            PRODUCTS=products, ROWS_PADDED=padded(tile["ROWS"]), BLOCK=WARP, num_warps=1,
            maxnreg=REGISTERS if products else None, **tile,
        )  # fmt: skip
    block = _block_size(poses, poses.shape[1] + 2 * weight.shape[1])
    programs = triton.cdiv(child, block), parent
    length = _rows_per_program(row, programs[0] * parent)
    number = torch.float64 if weight.dtype == torch.float64 else torch.float32
    parts = weight.new_empty(triton.cdiv(row, length), *weight.shape, dtype=number)
    launch(
        _grad_weight, (*programs, len(parts)),
        (poses, weight, by_child, coefficients, activations, grad_distances), [parts], row, child, length,
        TERMS=terms, BLOCK=block, num_warps=1, **tile,
    )  # fmt: skip
    grads.insert(1, parts.sum(0).to(weight.dtype))
    return tuple(grads)


def _tile_sizes(poses: Tensor, weight: Tensor, inner: int) -> dict[str, Any]:
    """Return the constants of the matrix product that is a vote."""
    columns = weight.shape[1] // inner
    return {
        "ROWS": poses.shape[1] // inner,
        "INNER": inner,
        "COLUMNS": columns,
        "COLUMNS_PADDED": padded(columns),
        "NUMBER": number_type(poses),
    }


def _block_size(poses: Tensor, kept: int) -> int:
    """Return the number of children of a program that keeps ``kept`` numbers per child."""
    return 2 * WARP if kept * _bytes(poses) <= MOST_BYTES else WARP


def _bytes(tensor: Tensor) -> int:
    return number_type(tensor).primitive_bitwidth // 8


def _rows_per_program(row: int, programs: int) -> int:
    """Return rows per program for PROGRAMS programs, if ``programs`` process the same rows."""
    return max(1, triton.cdiv(row * programs, PROGRAMS))


def _parents_together(parent: int, weight: Tensor, inner: int) -> int:
    """Return the number of parents, a power of two that divides ``parent``, whose weights a program keeps."""
    columns = padded(weight.shape[1] // inner)
    most = max(1, min(MOST_BYTES // (inner * columns * _bytes(weight)), MOST_LOADED // columns))
    return min(parent & -parent, 1 << (most.bit_length() - 1))


@triton.jit(do_not_specialize=["row", "parent", "child", "length"])
@no_type_check
def _sum_components(
    poses, weight, parents, precision, result, row, parent, child, length,
    TOGETHER: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr,
    COLUMNS_PADDED: tl.constexpr, BLOCK: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program keeps the weights of TOGETHER parents for a block of children and goes through ``length`` rows."""
    D: tl.constexpr = ROWS * COLUMNS
    first = tl.program_id(0).to(tl.int64) * TOGETHER
    j = tl.arange(0, TOGETHER)
    i = children_from(tl.program_id(1) * BLOCK, BLOCK)
    start = tl.program_id(2).to(tl.int64) * length
    c = tl.arange(0, COLUMNS_PADDED)
    is_column = (c < COLUMNS)[None, :]
    weight += first * (INNER * COLUMNS) * child
    exists = is_column[:, :, None] & (i < child)[None, None, :]
    w = ()
    for q in tl.static_range(INNER):
        entry = (j * (INNER * COLUMNS))[:, None] + (q * COLUMNS + c)[None, :]
        entry = entry[:, :, None] * child + i[None, None, :]
        w = w + (tl.load(weight + entry, mask=exists, other=0.0).to(NUMBER),)
    for k in range(tl.maximum(0, tl.minimum(length, row - start))):
        n = start + k
        p = load_components(poses + n * (ROWS * INNER) * child, i, child, ROWS * INNER, NUMBER)
        at = n * parent + first
        terms = tl.zeros([TOGETHER, COLUMNS_PADDED, BLOCK], NUMBER)
        for r in tl.static_range(ROWS):
            d = (j * D)[:, None] + (r * COLUMNS + c)[None, :]
            pose = tl.load(parents + at * D + d, mask=is_column, other=0.0).to(NUMBER)[:, :, None]
            if precision is None:
                votes = w[0] * p[r * INNER]
                for q in tl.static_range(1, INNER):
                    votes += w[q] * p[r * INNER + q]
                terms += votes * pose
            else:
                gap = pose
                for q in tl.static_range(INNER):
                    gap = gap - w[q] * p[r * INNER + q]
                factor = tl.load(precision + at * D + d, mask=is_column, other=0.0).to(NUMBER)[
                    :, :, None
                ]
                terms += factor * (gap * gap)
        offset = j[:, None] * child + i[None, :]
        tl.store(result + at * child + offset, tl.sum(terms, 1), mask=(i < child)[None, :])


@triton.jit
@no_type_check
def load_fit(coefficients, d, exists, D: tl.constexpr):
    """Load pose, 2 alpha, beta and precision for the components ``d`` of a parent, the same for all children."""
    pose = tl.load(coefficients + d, mask=exists, other=0.0)
    two_alpha = tl.load(coefficients + D + d, mask=exists, other=0.0)
    beta = tl.load(coefficients + 2 * D + d, mask=exists, other=0.0)
    return pose, two_alpha, beta, tl.load(coefficients + 3 * D + d, mask=exists, other=0.0)


@triton.jit(do_not_specialize=["parent", "child"])
@no_type_check
def _grad_poses_of_fit(
    poses, weight, couplings, coefficients, activations, grad_distances, grad_mass,
    grad_poses, grad_activations, grad_couplings, parent, child,
    PRODUCTS: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS_PADDED: tl.constexpr, COLUMNS_PADDED: tl.constexpr, BLOCK: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program sums over all parents for a block of children of one row.

    With PRODUCTS, it adds the products of all components, ``(rows, columns, block)`` for each q, and sums over columns
    once at the end: a sum over columns for each parent would be additions that are not part of a product.
    ``grad_mass`` includes the gradient of the assigned shares that is the same for all children.
    """
    D: tl.constexpr = ROWS * COLUMNS
    H: tl.constexpr = ROWS * INNER
    n = tl.program_id(0).to(tl.int64)
    i = children_from(tl.program_id(1) * BLOCK, BLOCK)
    r = tl.arange(0, ROWS_PADDED)
    c = tl.arange(0, COLUMNS_PADDED)
    d = r[:, None] * COLUMNS + c[None, :]
    exists = (r < ROWS)[:, None] & (c < COLUMNS)[None, :]
    p = load_columns(poses + n * H * child, i, child, ROWS, INNER, ROWS_PADDED, NUMBER)
    activation = load_children(activations + n * child, i, child, NUMBER)
    sums = ()
    for _ in tl.static_range(INNER):
        if PRODUCTS:
            sums = sums + (tl.zeros([ROWS_PADDED, COLUMNS_PADDED, BLOCK], NUMBER),)
        else:
            sums = sums + (tl.zeros([ROWS_PADDED, BLOCK], NUMBER),)
    grad_activation = tl.zeros([BLOCK], NUMBER)
    for j in range(parent):
        at = n * parent + j
        w = load_matrix_rows(weight, i, child, INNER, COLUMNS, COLUMNS_PADDED, NUMBER)
        coupling = load_children(couplings + at * child, i, child, NUMBER)
        pose, two_alpha, beta, precision = load_fit(coefficients + at * (4 * D), d, exists, D)
        gap = pose[:, :, None]
        for q in tl.static_range(INNER):
            gap = gap - p[q][:, None, :] * w[q][None, :, :]
        slope = beta[:, :, None] - gap * two_alpha[:, :, None]
        grad_votes = coupling * activation * slope
        if grad_distances is not None:
            grad_distance = load_children(grad_distances + at * child, i, child, NUMBER)
            grad_votes -= grad_distance * (precision[:, :, None] * gap)
        twice = tl.sum(tl.sum(gap * (slope + beta[:, :, None]), 1), 0)
        gradient = tl.load(grad_mass + at) - 0.5 * twice
        grad_activation += gradient * coupling
        tl.store(grad_couplings + at * child + i, gradient * activation, mask=i < child)
        new_sums = ()
        for q in tl.static_range(INNER):
            product = grad_votes * w[q][None, :, :]
            product = product if PRODUCTS else tl.sum(product, 1)
            new_sums = new_sums + (sums[q] + product,)
        sums = new_sums
        weight += INNER * COLUMNS * child
    exists = (r < ROWS)[:, None] & (i < child)[None, :]
    for q in tl.static_range(INNER):
        offset = (r * INNER + q)[:, None] * child + i[None, :]
        total = tl.sum(sums[q], 1) if PRODUCTS else sums[q]
        tl.store(grad_poses + n * H * child + offset, total, mask=exists)
    tl.store(grad_activations + n * child + i, grad_activation, mask=i < child)


@triton.jit(do_not_specialize=["row", "parent"])
@no_type_check
def _grad_poses(
    weight, by_child, by_component, grad_poses, row, parent,
    GROUP: tl.constexpr, TERMS: tl.constexpr, CHILD: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr,
    COLUMNS: tl.constexpr, INNER_PADDED: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    NUMBER: tl.constexpr,
):  # fmt: skip
    """A program sums over all parents for a block of children of GROUP rows, WIDTH columns of the weight at a time."""
    D: tl.constexpr = ROWS * COLUMNS
    H: tl.constexpr = ROWS * INNER
    first = tl.program_id(0).to(tl.int64) * GROUP
    i = children_from(tl.program_id(1) * BLOCK, BLOCK)
    q = tl.arange(0, INNER_PADDED)
    is_entry = (q < INNER)[:, None, None] & (i < CHILD)[None, None, :]
    sums = ()
    for _ in tl.static_range(GROUP * ROWS):
        sums = sums + (tl.zeros([INNER_PADDED, BLOCK], NUMBER),)
    for j in range(parent):
        factors = ()
        for a in tl.static_range(GROUP):
            at = (tl.minimum(first + a, row - 1) * parent + j) * TERMS
            factors = factors + load_components(by_child + at * CHILD, i, CHILD, TERMS, NUMBER)
        for start in range(0, COLUMNS, WIDTH):
            c = start + tl.arange(0, WIDTH)
            entry = (q * COLUMNS)[:, None] + c[None, :]
            exists = is_entry & (c < COLUMNS)[None, :, None]
            w = tl.load(weight + (entry[:, :, None] * CHILD + i), mask=exists, other=0.0).to(NUMBER)
            new_sums = ()
            for a in tl.static_range(GROUP):
                at = (tl.minimum(first + a, row - 1) * parent + j) * (TERMS * D)
                for r in tl.static_range(ROWS):
                    d = at + r * COLUMNS
                    grad_votes = gradient_of_votes(
                        factors, by_component + d, c, a * TERMS, TERMS, D, COLUMNS, NUMBER
                    )
                    new_sums = new_sums + (
                        sums[a * ROWS + r] + tl.sum(w * grad_votes[None, :, :], 1),
                    )
            sums = new_sums
        weight += INNER * COLUMNS * CHILD
    for a in tl.static_range(GROUP):
        exists = (q < INNER)[:, None] & (i < tl.where(first + a < row, CHILD, 0))[None, :]
        for r in tl.static_range(ROWS):
            h = (r * INNER + q)[:, None] * CHILD + i[None, :]
            tl.store(grad_poses + (first + a) * (H * CHILD) + h, sums[a * ROWS + r], mask=exists)


@triton.jit
@no_type_check
def gradient_of_votes(
    factors, by_component, c,
    FIRST: tl.constexpr, TERMS: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """Sum the products of TERMS factors of children, from FIRST on, with as many of the columns ``c`` of a vote."""
    exists = c < COLUMNS
    gradient = (
        factors[FIRST] * tl.load(by_component + c, mask=exists, other=0.0).to(NUMBER)[:, None]
    )
    for k in tl.static_range(1, TERMS):
        gradient += (
            factors[FIRST + k]
            * tl.load(by_component + k * D + c, mask=exists, other=0.0).to(NUMBER)[:, None]
        )
    return gradient


@triton.jit(do_not_specialize=["row", "child", "length"])
@no_type_check
def _grad_weight(
    poses, weight, by_child, coefficients, activations, grad_distances, grad_weight, row, child, length,
    TERMS: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr,
    COLUMNS_PADDED: tl.constexpr, BLOCK: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program sums over ``length`` of the rows for a block of children and one parent."""
    FIT: tl.constexpr = activations is not None
    D: tl.constexpr = ROWS * COLUMNS
    i = children_from(tl.program_id(0) * BLOCK, BLOCK)
    j = tl.program_id(1).to(tl.int64)
    parent = tl.num_programs(1)
    chunk = tl.program_id(2).to(tl.int64)
    start = chunk * length
    c = tl.arange(0, COLUMNS_PADDED)
    exists = c < COLUMNS
    sums = ()
    for _ in tl.static_range(INNER):
        sums = sums + (tl.zeros([COLUMNS_PADDED, BLOCK], NUMBER),)
    if FIT:
        entries = weight + j * (INNER * COLUMNS) * child
        w = load_matrix_rows(entries, i, child, INNER, COLUMNS, COLUMNS_PADDED, NUMBER)
    for k in range(tl.maximum(0, tl.minimum(length, row - start))):
        n = start + k
        at = (n * parent + j) * TERMS
        p = load_components(poses + n * (ROWS * INNER) * child, i, child, ROWS * INNER, NUMBER)
        factors = load_components(by_child + at * child, i, child, TERMS, NUMBER)
        if FIT:
            assigned = factors[0] * load_children(activations + n * child, i, child, NUMBER)
        if grad_distances is not None:
            grad_distance = load_children(grad_distances + at * child, i, child, NUMBER)
        for r in tl.static_range(ROWS):
            if FIT:
                d = r * COLUMNS + c
                pose, two_alpha, beta, precision = load_fit(
                    coefficients + at * (4 * D), d, exists, D
                )
                gap = pose[:, None]
                for q in tl.static_range(INNER):
                    gap = gap - w[q] * p[r * INNER + q]
                grad_votes = assigned * (beta[:, None] - gap * two_alpha[:, None])
                if grad_distances is not None:
                    grad_votes -= grad_distance * (precision[:, None] * gap)
            else:
                by_component = coefficients + at * D + r * COLUMNS
                grad_votes = gradient_of_votes(
                    factors, by_component, c, 0, TERMS, D, COLUMNS, NUMBER
                )
            new_sums = ()
            for q in tl.static_range(INNER):
                new_sums = new_sums + (sums[q] + grad_votes * p[r * INNER + q],)
            sums = new_sums
    grad_weight += (chunk * parent + j) * (INNER * COLUMNS) * child
    for q in tl.static_range(INNER):
        offset = (q * COLUMNS + c)[:, None] * child + i[None, :]
        tl.store(grad_weight + offset, sums[q], mask=exists[:, None] & (i < child)[None, :])
