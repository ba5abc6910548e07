"""Dynamic routing: sums of weighted votes, and how much votes agree with poses (Sabour 2017, procedure 1).

Every child has weights of its own and there are many, so threads divide the children among themselves, and the weights
of some children for one parent stay in cache while all rows pass by. Both are linear in the votes, so that weights are
summed first and no vote is made at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsule_lab.kernels.cpu.blocks import give, hand_on, jit, load_some, store_some, take
from capsule_lab.kernels.cpu.simd import LANES, load, spread, store, total
from capsule_lab.kernels.cpu.threads import flat, in_parts, number_of_parts

TILES = 2  # ours: tiles of children whose weights for a parent stay in cache; fastest of 2 to 6
ROWS = 4  # ours: rows whose gradients go to the weight together


def weighted_sum(poses: Tensor, weight: Tensor, couplings: Tensor, inner: int) -> Tensor:
    """``sum_i couplings V``, ``(row, parent, dim)``."""
    row, parent, child = couplings.shape
    sizes = _sizes(poses, weight, inner)
    sums = poses.new_zeros(number_of_parts(child, least=LANES), row, parent, sizes[3] * sizes[5])
    given, out = flat(poses, weight, couplings), flat(*sums)  # a thread writes to its own

    def part(thread: int, first: int, last: int) -> None:
        _weighted_sum(first, last, sizes, *given, out[thread])

    in_parts(part, child, least=LANES, multiple=LANES)
    return sums.sum(0)


def agreement(poses: Tensor, weight: Tensor, parents: Tensor, inner: int) -> Tensor:
    """``V . parents``, ``(row, parent, child)``."""
    row, parent, _ = parents.shape
    sizes = _sizes(poses, weight, inner)
    found = poses.new_empty(row, parent, poses.shape[2])
    given, out = flat(poses, weight, parents), flat(found)

    def part(_: int, first: int, last: int) -> None:
        _agreement(first, last, sizes, *given, *out)

    in_parts(part, poses.shape[2], least=LANES, multiple=LANES)
    return found


def contraction(
    poses: Tensor, weight: Tensor, by_child: Sequence[Tensor], by_component: Sequence[Tensor], inner: int
) -> tuple[Tensor, Tensor]:
    """Gradients of poses and weight, if that of the votes is a sum of products ``by_child`` times ``by_component``.

    So it is behind ``weighted_sum``, with the couplings and the gradient of the sums, and behind ``agreement``, with
    the gradient of the agreement and the parents.
    """
    to_poses, to_weight = poses.new_empty(poses.shape), weight.new_empty(weight.shape)
    sizes = _sizes(poses, weight, inner)
    given = *flat(poses, weight), tuple(flat(*by_child)), *flat(torch.stack(list(by_component), 2))
    out = flat(to_poses, to_weight)

    def part(_: int, first: int, last: int) -> None:
        _contraction(first, last, sizes, *given, *out)

    in_parts(part, poses.shape[2], least=LANES, multiple=LANES)
    return to_poses, to_weight


def _sizes(poses: Tensor, weight: Tensor, inner: int) -> tuple[int, ...]:
    """Rows of the batch, parents, children, and rows, inner and columns of the matrices."""
    row, entries, child = poses.shape
    return row, len(weight), child, entries // inner, inner, weight.shape[1] // inner


@jit
def _weighted_sum(first: int, last: int, sizes: Any, poses: Any, weight: Any, couplings: Any, sums: Any) -> None:
    row, parent, child, rows, inner, columns = sizes
    of_pose, of_weight = rows * inner, inner * columns
    zero = poses.dtype.type(0)
    w = np.empty(TILES * of_weight * LANES, poses.dtype)
    weighted = np.empty(TILES * inner * LANES, poses.dtype)
    for block in range(first, last, TILES * LANES):
        count = min(TILES, (last - block + LANES - 1) // LANES)
        for j in range(parent):
            for t in range(count):
                take(weight, j * of_weight * child, of_weight, child, block + t * LANES, w, t * of_weight * LANES)
            for n in range(row):
                at = n * parent + j
                for r in range(rows):
                    for t in range(count):
                        i = block + t * LANES
                        share = load_some(couplings, at * child + i, child - i)
                        for q in range(inner):
                            pose = load_some(poses, (n * of_pose + r * inner + q) * child + i, child - i)
                            store(weighted, (t * inner + q) * LANES, share * pose)
                    to = at * rows * columns + r * columns
                    for c in range(0, columns - 3, 4):  # four sums at a time: each waits for itself
                        a = b = d = e = spread(zero)
                        for t in range(count):
                            for q in range(inner):
                                x, k = (
                                    load(weighted, (t * inner + q) * LANES),
                                    (t * of_weight + q * columns + c) * LANES,
                                )
                                a = a + x * load(w, k)
                                b = b + x * load(w, k + LANES)
                                d = d + x * load(w, k + 2 * LANES)
                                e = e + x * load(w, k + 3 * LANES)
                        sums[to + c] += total(a)
                        sums[to + c + 1] += total(b)
                        sums[to + c + 2] += total(d)
                        sums[to + c + 3] += total(e)
                    for c in range(columns - columns % 4, columns):
                        a = spread(zero)
                        for t in range(count):
                            for q in range(inner):
                                k = (t * of_weight + q * columns + c) * LANES
                                a = a + load(weighted, (t * inner + q) * LANES) * load(w, k)
                        sums[to + c] += total(a)


@jit
def _agreement(first: int, last: int, sizes: Any, poses: Any, weight: Any, parents: Any, agreement: Any) -> None:
    row, parent, child, rows, inner, columns = sizes
    of_pose, of_weight = rows * inner, inner * columns
    zero = poses.dtype.type(0)
    w = np.empty(of_weight * LANES, poses.dtype)
    for i in range(first, last, LANES):
        for j in range(parent):
            take(weight, j * of_weight * child, of_weight, child, i, w, 0)
            for n in range(row):
                at = n * parent + j
                found = spread(zero)
                for r in range(rows):
                    for q in range(inner):
                        towards = spread(zero)
                        for c in range(columns):
                            component = spread(parents[at * rows * columns + r * columns + c])
                            towards = towards + component * load(w, (q * columns + c) * LANES)
                        pose = load_some(poses, (n * of_pose + r * inner + q) * child + i, child - i)
                        found = found + pose * towards
                store_some(agreement, at * child + i, child - i, found)


@jit
def _contraction(
    first: int,
    last: int,
    sizes: Any,
    poses: Any,
    weight: Any,
    by_child: Any,
    by_component: Any,
    to_poses: Any,
    to_weight: Any,
) -> None:
    row, parent, child, rows, inner, columns = sizes
    of_pose, of_weight, dim, terms = rows * inner, inner * columns, rows * columns, len(by_child)
    zero = poses.dtype.type(0)
    p, to_p = np.empty(row * of_pose * LANES, poses.dtype), np.empty(row * of_pose * LANES, poses.dtype)
    w, to_w = np.empty(of_weight * LANES, poses.dtype), np.empty(of_weight * LANES, poses.dtype)
    to_votes, shares = np.empty(ROWS * dim * LANES, poses.dtype), np.empty(terms * LANES, poses.dtype)
    for start in range(first, last, LANES):
        to_p[:] = 0
        for n in range(row):
            take(poses, n * of_pose * child, of_pose, child, start, p, n * of_pose * LANES)
        for j in range(parent):
            take(weight, j * of_weight * child, of_weight, child, start, w, 0)
            to_w[:] = 0
            for some in range(0, row, ROWS):  # as if the poses of several rows were one, which has more rows
                together = min(ROWS, row - some)
                for k in range(together):
                    at = (some + k) * parent + j
                    for term in range(terms):
                        share = load_some(by_child[term], at * child + start, child - start)
                        store(shares, term * LANES, share)
                    for h in range(dim):
                        to_vote = spread(zero)
                        for term in range(terms):
                            component = spread(by_component[(at * terms + term) * dim + h])
                            to_vote = to_vote + load(shares, term * LANES) * component
                        store(to_votes, (k * dim + h) * LANES, to_vote)
                at = some * of_pose * LANES
                hand_on(to_votes, 0, p, at, w, 0, together * rows, inner, columns, to_p, at, to_w, 0)
            give(to_w, 0, to_weight, j * of_weight * child, of_weight, child, start)
        for n in range(row):
            give(to_p, n * of_pose * LANES, to_poses, n * of_pose * child, of_pose, child, start)
