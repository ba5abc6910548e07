"""Dynamic routing: sums of weighted votes, and agreement of votes with poses (Sabour 2017, procedure 1).

Every child has separate weights and there are many children, so threads divide the children. The weights of a few
children for one parent stay in cache during the loop over all rows. Both sums are linear in the votes, so the kernels
sum weights first and do not compute votes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsule_lab.kernels.cpu.compiler import jit
from capsule_lab.kernels.cpu.simd import LANES, broadcast, load, reduce_add, store
from capsule_lab.kernels.cpu.threads import flat, number_of_parts, parallel_for
from capsule_lab.kernels.cpu.tiles import (
    load_partial,
    load_tile,
    sizes_of,
    store_partial,
    store_tile,
    votes_backward,
)

TILES = 2  # ours: tiles of children whose weights for a parent stay in cache; fastest in 2 to 6
ROWS = 4  # ours: rows whose gradients are added to the weight together


def weighted_sum(poses: Tensor, weight: Tensor, couplings: Tensor, inner: int) -> Tensor:
    """Compute ``sum_i couplings V``, ``(row, parent, dim)``."""
    row, parent, child = couplings.shape
    sizes = sizes_of(poses, weight, inner)
    sums = poses.new_zeros(
        number_of_parts(child, grain=LANES), row, parent, sizes.rows * sizes.columns
    )
    given, out = flat(poses, weight, couplings), flat(*sums)  # one result per thread

    def kernel(thread: int, first: int, last: int) -> None:
        _weighted_sum(first, last, sizes, *given, out[thread])

    parallel_for(kernel, child, grain=LANES, multiple=LANES)
    return sums.sum(0)


def agreement(poses: Tensor, weight: Tensor, parents: Tensor, inner: int) -> Tensor:
    """Compute ``V . parents``, ``(row, parent, child)``."""
    row, parent, _ = parents.shape
    sizes = sizes_of(poses, weight, inner)
    result = poses.new_empty(row, parent, poses.shape[2])
    given, out = flat(poses, weight, parents), flat(result)

    def kernel(_: int, first: int, last: int) -> None:
        _agreement(first, last, sizes, *given, *out)

    parallel_for(kernel, poses.shape[2], grain=LANES, multiple=LANES)
    return result


def contraction(
    poses: Tensor,
    weight: Tensor,
    by_child: Sequence[Tensor],
    by_component: Sequence[Tensor],
    inner: int,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of poses and weight if the gradient of votes is a sum of ``by_child`` x ``by_component``.

    The factors are the couplings and the gradient of the sums for ``weighted_sum``, and the gradient of the agreement
    and the parents for ``agreement``.
    """
    grad_poses, grad_weight = poses.new_empty(poses.shape), weight.new_empty(weight.shape)
    sizes = sizes_of(poses, weight, inner)
    given = *flat(poses, weight), tuple(flat(*by_child)), *flat(torch.stack(list(by_component), 2))
    out = flat(grad_poses, grad_weight)

    def kernel(_: int, first: int, last: int) -> None:
        _contraction(first, last, sizes, *given, *out)

    parallel_for(kernel, poses.shape[2], grain=LANES, multiple=LANES)
    return grad_poses, grad_weight


@jit
def _weighted_sum(
    first: int, last: int, sizes: Any, poses: Any, weight: Any, couplings: Any, sums: Any
) -> None:
    row, parent, child, rows, inner, columns = sizes
    of_pose, of_weight = rows * inner, inner * columns
    zero = poses.dtype.type(0)
    w = np.empty(TILES * of_weight * LANES, poses.dtype)
    weighted = np.empty(TILES * inner * LANES, poses.dtype)
    for block in range(first, last, TILES * LANES):
        count = min(TILES, (last - block + LANES - 1) // LANES)
        for j in range(parent):
            for t in range(count):
                load_tile(
                    weight,
                    j * of_weight * child,
                    of_weight,
                    child,
                    block + t * LANES,
                    w,
                    t * of_weight * LANES,
                )
            for n in range(row):
                at = n * parent + j
                for r in range(rows):
                    for t in range(count):
                        i = block + t * LANES
                        share = load_partial(couplings, at * child + i, child - i)
                        for q in range(inner):
                            pose = load_partial(
                                poses, (n * of_pose + r * inner + q) * child + i, child - i
                            )
                            store(weighted, (t * inner + q) * LANES, share * pose)
                    to = at * rows * columns + r * columns
                    # four independent sums hide the latency of additions
                    for c in range(0, columns - 3, 4):
                        a = b = d = e = broadcast(zero)
                        for t in range(count):
                            for q in range(inner):
                                x = load(weighted, (t * inner + q) * LANES)
                                k = (t * of_weight + q * columns + c) * LANES
                                a = a + x * load(w, k)
                                b = b + x * load(w, k + LANES)
                                d = d + x * load(w, k + 2 * LANES)
                                e = e + x * load(w, k + 3 * LANES)
                        sums[to + c] += reduce_add(a)
                        sums[to + c + 1] += reduce_add(b)
                        sums[to + c + 2] += reduce_add(d)
                        sums[to + c + 3] += reduce_add(e)
                    for c in range(columns - columns % 4, columns):
                        a = broadcast(zero)
                        for t in range(count):
                            for q in range(inner):
                                k = (t * of_weight + q * columns + c) * LANES
                                a = a + load(weighted, (t * inner + q) * LANES) * load(w, k)
                        sums[to + c] += reduce_add(a)


@jit
def _agreement(
    first: int, last: int, sizes: Any, poses: Any, weight: Any, parents: Any, agreement: Any
) -> None:
    row, parent, child, rows, inner, columns = sizes
    of_pose, of_weight = rows * inner, inner * columns
    zero = poses.dtype.type(0)
    w = np.empty(of_weight * LANES, poses.dtype)
    for i in range(first, last, LANES):
        for j in range(parent):
            load_tile(weight, j * of_weight * child, of_weight, child, i, w, 0)
            for n in range(row):
                at = n * parent + j
                total = broadcast(zero)
                for r in range(rows):
                    for q in range(inner):
                        product = broadcast(zero)
                        for c in range(columns):
                            component = broadcast(parents[at * rows * columns + r * columns + c])
                            product = product + component * load(w, (q * columns + c) * LANES)
                        pose = load_partial(
                            poses, (n * of_pose + r * inner + q) * child + i, child - i
                        )
                        total = total + pose * product
                store_partial(agreement, at * child + i, child - i, total)


@jit
def _contraction(
    first: int, last: int, sizes: Any, poses: Any, weight: Any, by_child: Any, by_component: Any, grad_poses: Any,
    grad_weight: Any,
) -> None:  # fmt: skip
    row, parent, child, rows, inner, columns = sizes
    of_pose, of_weight, dim, terms = rows * inner, inner * columns, rows * columns, len(by_child)
    zero = poses.dtype.type(0)
    p, grad_p = (
        np.empty(row * of_pose * LANES, poses.dtype),
        np.empty(row * of_pose * LANES, poses.dtype),
    )
    w, grad_w = np.empty(of_weight * LANES, poses.dtype), np.empty(of_weight * LANES, poses.dtype)
    grad_votes, shares = (
        np.empty(ROWS * dim * LANES, poses.dtype),
        np.empty(terms * LANES, poses.dtype),
    )
    for start in range(first, last, LANES):
        grad_p[:] = 0
        for n in range(row):
            load_tile(poses, n * of_pose * child, of_pose, child, start, p, n * of_pose * LANES)
        for j in range(parent):
            load_tile(weight, j * of_weight * child, of_weight, child, start, w, 0)
            grad_w[:] = 0
            # treat the poses of several rows as one pose with more rows
            for some in range(0, row, ROWS):
                together = min(ROWS, row - some)
                for k in range(together):
                    at = (some + k) * parent + j
                    for term in range(terms):
                        share = load_partial(by_child[term], at * child + start, child - start)
                        store(shares, term * LANES, share)
                    for h in range(dim):
                        grad_vote = broadcast(zero)
                        for term in range(terms):
                            component = broadcast(by_component[(at * terms + term) * dim + h])
                            grad_vote = grad_vote + load(shares, term * LANES) * component
                        store(grad_votes, (k * dim + h) * LANES, grad_vote)
                at = some * of_pose * LANES
                votes_backward(
                    grad_votes,
                    0,
                    p,
                    at,
                    w,
                    0,
                    (together * rows, inner, columns),
                    grad_p,
                    at,
                    grad_w,
                    0,
                )
            store_tile(grad_w, 0, grad_weight, j * of_weight * child, of_weight, child, start)
        for n in range(row):
            store_tile(
                grad_p, n * of_pose * LANES, grad_poses, n * of_pose * child, of_pose, child, start
            )
