"""Dynamic routing: sums of weighted votes, and how much votes agree with poses (Sabour 2017, procedure 1).

Every child has weights of its own and there are many, so threads divide the children among themselves, and take as
many at a time as keep the weights of one parent in cache while all rows pass by.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsule_lab.kernels.cpu.blocks import jit, make_votes
from capsule_lab.kernels.cpu.threads import in_parts, number_of_parts

BLOCK = 288  # ours: children at a time; fastest of 64 to 576


def weighted_sum(poses: Tensor, weight: Tensor, couplings: Tensor, inner: int) -> Tensor:
    """``sum_i couplings V``, ``(row, parent, dim)``."""
    row, parent, child = couplings.shape
    dim = poses.shape[1] // inner * (weight.shape[1] // inner)
    sums = poses.new_zeros(number_of_parts(child, least=BLOCK), row, parent, dim)  # a thread writes to its own
    given = _arrays(poses, weight, couplings)
    out = sums.numpy()

    def part(thread: int, first: int, last: int) -> None:
        _weighted_sum(first, last, *given, inner, out[thread])

    in_parts(part, child, least=BLOCK)
    return sums.sum(0)


def agreement(poses: Tensor, weight: Tensor, parents: Tensor, inner: int) -> Tensor:
    """``V . parents``, ``(row, parent, child)``."""
    row, parent, _ = parents.shape
    found = poses.new_empty(row, parent, poses.shape[2])
    given, out = _arrays(poses, weight, parents), found.numpy()

    def part(_: int, first: int, last: int) -> None:
        _agreement(first, last, *given, inner, out)

    in_parts(part, poses.shape[2], least=BLOCK)
    return found


def contraction(
    poses: Tensor, weight: Tensor, by_child: Tensor, by_component: Tensor, inner: int
) -> tuple[Tensor, Tensor]:
    """Gradients of poses and weight, if that of the votes is ``by_child`` times ``by_component``.

    So it is behind ``weighted_sum``, with the couplings and the gradient of the sums, and behind ``agreement``, with
    the gradient of the agreement and the parents.
    """
    to_poses, to_weight = torch.zeros_like(poses), torch.zeros_like(weight)
    given = _arrays(poses, weight, by_child, by_component)
    out = to_poses.numpy(), to_weight.numpy()

    def part(_: int, first: int, last: int) -> None:
        _contraction(first, last, *given, inner, *out)

    in_parts(part, poses.shape[2], least=BLOCK)
    return to_poses, to_weight


def _arrays(*tensors: Tensor) -> list[np.ndarray]:
    return [tensor.detach().contiguous().numpy() for tensor in tensors]


@jit
def _copy(source: Any, first: int, out: Any) -> None:
    """Some children of a (component, child) array, one after the other."""
    size, count = out.shape
    for h in range(size):
        row, to = source[h, first : first + count], out[h]
        for i in range(count):
            to[i] = row[i]


@jit
def _weighted_sum(first: int, last: int, poses: Any, weight: Any, couplings: Any, inner: int, sums: Any) -> None:
    row, parent, dim = sums.shape
    number = sums.dtype.type
    for start in range(first, last, BLOCK):
        count = min(BLOCK, last - start)
        p = np.empty((row, poses.shape[1], count), sums.dtype)
        w = np.empty((weight.shape[1], count), sums.dtype)
        votes = np.empty((dim, count), sums.dtype)
        for n in range(row):
            _copy(poses[n], start, p[n])
        for j in range(parent):
            _copy(weight[j], start, w)
            for n in range(row):
                make_votes(p[n], w, inner, votes)
                coupling = couplings[n, j, start : start + count]
                for h in range(dim):
                    v = votes[h]
                    total = number(0)
                    for i in range(count):
                        total += coupling[i] * v[i]
                    sums[n, j, h] += total


@jit
def _agreement(first: int, last: int, poses: Any, weight: Any, parents: Any, inner: int, agreement: Any) -> None:
    row, parent, dim = parents.shape
    number = agreement.dtype.type
    for start in range(first, last, BLOCK):
        count = min(BLOCK, last - start)
        p = np.empty((row, poses.shape[1], count), agreement.dtype)
        w = np.empty((weight.shape[1], count), agreement.dtype)
        votes = np.empty((dim, count), agreement.dtype)
        for n in range(row):
            _copy(poses[n], start, p[n])
        for j in range(parent):
            _copy(weight[j], start, w)
            for n in range(row):
                make_votes(p[n], w, inner, votes)
                found = agreement[n, j, start : start + count]
                found[:] = number(0)
                for h in range(dim):
                    v, pose = votes[h], parents[n, j, h]
                    for i in range(count):
                        found[i] += v[i] * pose


@jit
def _contraction(
    first: int,
    last: int,
    poses: Any,
    weight: Any,
    by_child: Any,
    by_component: Any,
    inner: int,
    to_poses: Any,
    to_weight: Any,
) -> None:
    row, parent, dim = by_component.shape
    columns = weight.shape[1] // inner
    rows = dim // columns
    number = poses.dtype.type
    for start in range(first, last, BLOCK):
        count = min(BLOCK, last - start)
        end = start + count
        p = np.empty((row, rows * inner, count), poses.dtype)
        w = np.empty((weight.shape[1], count), poses.dtype)
        to_w = np.empty((weight.shape[1], count), poses.dtype)
        sums = np.empty(count, poses.dtype)
        for n in range(row):
            _copy(poses[n], start, p[n])
        for j in range(parent):
            _copy(weight[j], start, w)
            to_w[:] = number(0)
            for n in range(row):
                share, component = by_child[n, j, start:end], by_component[n, j]
                for r in range(rows):
                    for q in range(inner):
                        pose, to_pose = p[n, r * inner + q], to_poses[n, r * inner + q, start:end]
                        sums[:] = number(0)
                        for c in range(columns):
                            value, entry = component[r * columns + c], w[q * columns + c]
                            for i in range(count):
                                sums[i] += value * entry[i]
                        for i in range(count):
                            to_pose[i] += share[i] * sums[i]
                            sums[i] = share[i] * pose[i]
                        for c in range(columns):
                            value, to_entry = component[r * columns + c], to_w[q * columns + c]
                            for i in range(count):
                                to_entry[i] += value * sums[i]
            for k in range(weight.shape[1]):
                to_weight[j, k, start:end] = to_w[k]
