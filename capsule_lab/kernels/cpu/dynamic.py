"""Dynamic routing: sums of weighted votes, and how much votes agree with poses (Sabour 2017, procedure 1).

Every child has weights of its own and there are many, so threads divide the children among themselves, and take as
many at a time as keep the weights of one parent in cache while all rows pass by. Both are linear in the votes, so
that weights are summed first and not even a block of votes is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsule_lab.kernels.cpu.blocks import give, hand_on, jit_reordering, take
from capsule_lab.kernels.cpu.lanes import LANES, load, spread, store
from capsule_lab.kernels.cpu.threads import arrays, flat, in_parts, number_of_parts

BLOCK = 288  # ours: children at a time; fastest of 64 to 576
ROWS = 4  # ours: rows whose gradients go to the weight together
LEAST = 64  # ours: children that a thread is worth


def weighted_sum(poses: Tensor, weight: Tensor, couplings: Tensor, inner: int) -> Tensor:
    """``sum_i couplings V``, ``(row, parent, dim)``."""
    row, parent, child = couplings.shape
    dim = poses.shape[1] // inner * (weight.shape[1] // inner)
    sums = poses.new_zeros(number_of_parts(child, least=LEAST), row, parent, dim)  # a thread writes to its own
    given, out = arrays(poses, weight, couplings), sums.numpy()

    def part(thread: int, first: int, last: int) -> None:
        _weighted_sum(first, last, *given, inner, out[thread])

    in_parts(part, child, least=LEAST)
    return sums.sum(0)


def agreement(poses: Tensor, weight: Tensor, parents: Tensor, inner: int) -> Tensor:
    """``V . parents``, ``(row, parent, child)``."""
    row, parent, _ = parents.shape
    found = poses.new_zeros(row, parent, poses.shape[2])
    given, out = arrays(poses, weight, parents), found.numpy()

    def part(_: int, first: int, last: int) -> None:
        _agreement(first, last, *given, inner, out)

    in_parts(part, poses.shape[2], least=LEAST)
    return found


def contraction(
    poses: Tensor, weight: Tensor, by_child: Sequence[Tensor], by_component: Sequence[Tensor], inner: int
) -> tuple[Tensor, Tensor]:
    """Gradients of poses and weight, if that of the votes is a sum of products ``by_child`` times ``by_component``.

    So it is behind ``weighted_sum``, with the couplings and the gradient of the sums, and behind ``agreement``, with
    the gradient of the agreement and the parents.
    """
    to_poses, to_weight = poses.new_empty(poses.shape), weight.new_empty(weight.shape)
    row, parent, child = by_child[0].shape
    sizes = row, parent, child, len(by_child), poses.shape[1] // inner, inner, weight.shape[1] // inner
    given = flat(poses, weight, torch.stack(list(by_child), 2), torch.stack(list(by_component), 2))
    out = flat(to_poses, to_weight)

    def part(_: int, first: int, last: int) -> None:
        _contraction(first, last, sizes, *given, *out)

    in_parts(part, poses.shape[2], least=LEAST, multiple=LANES)
    return to_poses, to_weight


@jit_reordering
def _copy(source: Any, first: int, out: Any) -> None:
    """Some children of a (component, child) array, one after the other."""
    for h in range(out.shape[0]):
        row, to = source[h, first : first + out.shape[1]], out[h]
        for i in range(to.size):
            to[i] = row[i]


@jit_reordering
def _combine(to: Any, values: Any, at: int, weight: Any, first: int, count: int) -> None:
    """``to[i] = sum_c values[at + c] weight[first + c, i]`` over ``count``."""
    rest = count % 4
    to[:] = 0
    for c in range(rest):
        value, row = values[at + c], weight[first + c]
        for i in range(to.size):
            to[i] += value * row[i]
    for c in range(rest, count, 4):
        a, b, d, e = values[at + c], values[at + c + 1], values[at + c + 2], values[at + c + 3]
        wa, wb, wd, we = weight[first + c], weight[first + c + 1], weight[first + c + 2], weight[first + c + 3]
        for i in range(to.size):
            to[i] += a * wa[i] + b * wb[i] + d * wd[i] + e * we[i]


@jit_reordering
def _weighted_sum(first: int, last: int, poses: Any, weight: Any, couplings: Any, inner: int, sums: Any) -> None:
    row, parent, dim = sums.shape
    columns = weight.shape[1] // inner
    number = sums.dtype.type
    for start in range(first, last, BLOCK):
        count = min(BLOCK, last - start)
        p = np.empty((row, poses.shape[1], count), sums.dtype)
        w = np.empty((weight.shape[1], count), sums.dtype)
        share = np.empty((inner, count), sums.dtype)
        for n in range(row):
            _copy(poses[n], start, p[n])
        for j in range(parent):
            _copy(weight[j], start, w)
            for n in range(row):
                coupling = couplings[n, j, start : start + count]
                for r in range(dim // columns):
                    for q in range(inner):
                        pose, to = p[n, r * inner + q], share[q]
                        for i in range(count):
                            to[i] = coupling[i] * pose[i]
                    for c in range(columns):
                        total = number(0)
                        rest = inner % 4
                        for q in range(rest):
                            total += _dot(share[q], w[q * columns + c])
                        for q in range(rest, inner, 4):
                            total += _dot4(share, q, w, q * columns + c, columns)
                        sums[n, j, r * columns + c] += total


@jit_reordering
def _dot(a: Any, b: Any) -> Any:
    total = a.dtype.type(0)
    for i in range(a.size):
        total += a[i] * b[i]
    return total


@jit_reordering
def _dot4(a: Any, at: int, b: Any, bt: int, by: int) -> Any:
    total = a.dtype.type(0)
    a0, a1, a2, a3 = a[at], a[at + 1], a[at + 2], a[at + 3]
    b0, b1, b2, b3 = b[bt], b[bt + by], b[bt + 2 * by], b[bt + 3 * by]
    for i in range(a0.size):
        total += a0[i] * b0[i] + a1[i] * b1[i] + a2[i] * b2[i] + a3[i] * b3[i]
    return total


@jit_reordering
def _agreement(first: int, last: int, poses: Any, weight: Any, parents: Any, inner: int, agreement: Any) -> None:
    row, parent, dim = parents.shape
    columns = weight.shape[1] // inner
    for start in range(first, last, BLOCK):
        count = min(BLOCK, last - start)
        p = np.empty((row, poses.shape[1], count), agreement.dtype)
        w = np.empty((weight.shape[1], count), agreement.dtype)
        towards = np.empty(count, agreement.dtype)
        for n in range(row):
            _copy(poses[n], start, p[n])
        for j in range(parent):
            _copy(weight[j], start, w)
            for n in range(row):
                found = agreement[n, j, start : start + count]
                for r in range(dim // columns):
                    for q in range(inner):
                        _combine(towards, parents[n, j], r * columns, w, q * columns, columns)
                        pose = p[n, r * inner + q]
                        for i in range(count):
                            found[i] += pose[i] * towards[i]


@jit_reordering
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
    row, parent, child, terms, rows, inner, columns = sizes
    of_pose, of_weight, dim = rows * inner, inner * columns, rows * columns
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
                    at = ((some + k) * parent + j) * terms
                    take(by_child, at * child, terms, child, start, shares, 0)
                    for h in range(dim):
                        total = spread(zero)
                        for term in range(terms):
                            total = total + load(shares, term * LANES) * spread(by_component[(at + term) * dim + h])
                        store(to_votes, (k * dim + h) * LANES, total)
                at = some * of_pose * LANES
                hand_on(to_votes, 0, p, at, w, 0, together * rows, inner, columns, to_p, at, to_w, 0)
            give(to_w, 0, to_weight, j * of_weight * child, of_weight, child, start)
        for n in range(row):
            give(to_p, n * of_pose * LANES, to_poses, n * of_pose * child, of_pose, child, start)
