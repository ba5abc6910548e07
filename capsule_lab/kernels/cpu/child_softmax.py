"""Couplings of a convolutional layer, where all parents at all positions that see a child compete for it."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from capsule_lab.kernels.cpu.blocks import jit_reordering
from capsule_lab.kernels.cpu.threads import arrays, in_parts


def shares(log_couplings: Tensor, child: Tensor, children: int) -> Tensor:
    """Softmax over all entries of an image that belong to the same child.

    Args:
        log_couplings: ``(image * position, parent, place)``.
        child: which child each place of each position is, ``(position, place)``.
        children: how many there are.
    """
    couplings = log_couplings.new_empty(log_couplings.shape)
    given, out = arrays(log_couplings, child), couplings.numpy()

    def part(_: int, first: int, last: int) -> None:
        _shares(first, last, *given, children, out)

    in_parts(part, len(log_couplings) // len(child))
    return couplings


def shares_backward(couplings: Tensor, to_couplings: Tensor, child: Tensor, children: int) -> Tensor:
    """Gradient of the log-couplings."""
    to_logs = couplings.new_empty(couplings.shape)
    given, out = arrays(couplings, to_couplings, child), to_logs.numpy()

    def part(_: int, first: int, last: int) -> None:
        _shares_backward(first, last, *given, children, out)

    in_parts(part, len(couplings) // len(child))
    return to_logs


@jit_reordering
def _shares(first: int, last: int, log_couplings: Any, child: Any, children: int, couplings: Any) -> None:
    positions, places = child.shape
    parent = log_couplings.shape[1]
    number = log_couplings.dtype.type
    largest = np.empty(children, log_couplings.dtype)
    total = np.empty(children, log_couplings.dtype)
    here = np.empty(places, log_couplings.dtype)
    for image in range(first, last):
        start = image * positions
        largest[:] = -np.inf
        total[:] = number(0)
        for y in range(positions):
            here[:] = log_couplings[start + y, 0]
            for j in range(1, parent):
                logs = log_couplings[start + y, j]
                for i in range(places):
                    here[i] = max(here[i], logs[i])
            for i in range(places):
                largest[child[y, i]] = max(largest[child[y, i]], here[i])
        for y in range(positions):
            for i in range(places):
                here[i] = largest[child[y, i]]
            for j in range(parent):
                logs, share = log_couplings[start + y, j], couplings[start + y, j]
                for i in range(places):
                    share[i] = np.exp(logs[i] - here[i])
            here[:] = number(0)
            for j in range(parent):
                share = couplings[start + y, j]
                for i in range(places):
                    here[i] += share[i]
            for i in range(places):
                total[child[y, i]] += here[i]
        for y in range(positions):
            for i in range(places):
                here[i] = number(1) / total[child[y, i]]
            for j in range(parent):
                share = couplings[start + y, j]
                for i in range(places):
                    share[i] *= here[i]


@jit_reordering
def _shares_backward(
    first: int, last: int, couplings: Any, to_couplings: Any, child: Any, children: int, to_logs: Any
) -> None:
    positions, places = child.shape
    parent = couplings.shape[1]
    number = couplings.dtype.type
    total = np.empty(children, couplings.dtype)
    here = np.empty(places, couplings.dtype)
    for image in range(first, last):
        start = image * positions
        total[:] = number(0)
        for y in range(positions):
            here[:] = number(0)
            for j in range(parent):
                share, to_share = couplings[start + y, j], to_couplings[start + y, j]
                for i in range(places):
                    here[i] += share[i] * to_share[i]
            for i in range(places):
                total[child[y, i]] += here[i]
        for y in range(positions):
            for i in range(places):
                here[i] = total[child[y, i]]
            for j in range(parent):
                share, to_share, to_log = couplings[start + y, j], to_couplings[start + y, j], to_logs[start + y, j]
                for i in range(places):
                    to_log[i] = share[i] * (to_share[i] - here[i])
