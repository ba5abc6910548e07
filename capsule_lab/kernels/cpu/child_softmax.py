"""Couplings of a convolutional layer in which all parents at all positions that see a child compete for it."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from capsule_lab.kernels.cpu.compiler import jit_reordering
from capsule_lab.kernels.cpu.threads import arrays, parallel_for


def softmax_by_child(log_couplings: Tensor, child: Tensor, children: int) -> Tensor:
    """Compute a softmax over all entries of an image that belong to the same child.

    Args:
        log_couplings: ``(image * position, parent, place)``.
        child: index of the child at each place of each position, ``(position, place)``.
        children: number of children.
    """
    return _for_each_image(_softmax, [log_couplings], child, children)


def softmax_by_child_backward(
    couplings: Tensor, grad_couplings: Tensor, child: Tensor, children: int
) -> Tensor:
    """Compute the gradient of the log-couplings."""
    return _for_each_image(_softmax_backward, [couplings, grad_couplings], child, children)


def e_step_by_child(log_height: Tensor, distances: Tensor, child: Tensor, children: int) -> Tensor:
    """Compute the couplings of the log-couplings ``log_height - distances``; ``log_height`` is ``(row, parent)``."""
    return softmax_by_child(log_height.unsqueeze(2) - distances, child, children)


def e_step_by_child_backward(
    couplings: Tensor, grad_couplings: Tensor, child: Tensor, children: int
) -> Tensor:
    """Compute the gradient of the distances; that of ``log_height`` is its negative sum over the children."""
    return softmax_by_child_backward(couplings, grad_couplings, child, children).neg_()


def _for_each_image(compute: Any, tensors: list[Tensor], child: Tensor, children: int) -> Tensor:
    """Run ``compute`` on parts of the images; its result has the shape of ``tensors[0]``."""
    result = tensors[0].new_empty(tensors[0].shape)
    given, out = arrays(*tensors, child), result.numpy()

    def kernel(_: int, first: int, last: int) -> None:
        compute(first, last, *given, children, out)

    parallel_for(kernel, len(result) // len(child))
    return result


@jit_reordering
def _softmax(
    first: int, last: int, log_couplings: Any, child: Any, children: int, couplings: Any
) -> None:
    positions, places = child.shape
    parent = log_couplings.shape[1]
    number = log_couplings.dtype.type
    largest = np.empty(children, log_couplings.dtype)
    total = np.empty(children, log_couplings.dtype)
    per_place = np.empty(places, log_couplings.dtype)
    for image in range(first, last):
        start = image * positions
        largest[:] = -np.inf
        total[:] = number(0)
        for y in range(positions):
            per_place[:] = log_couplings[start + y, 0]
            for j in range(1, parent):
                logs = log_couplings[start + y, j]
                for i in range(places):
                    per_place[i] = max(per_place[i], logs[i])
            for i in range(places):
                largest[child[y, i]] = max(largest[child[y, i]], per_place[i])
        for y in range(positions):
            for i in range(places):
                per_place[i] = largest[child[y, i]]
            for j in range(parent):
                logs, share = log_couplings[start + y, j], couplings[start + y, j]
                for i in range(places):
                    share[i] = np.exp(logs[i] - per_place[i])
            per_place[:] = number(0)
            for j in range(parent):
                share = couplings[start + y, j]
                for i in range(places):
                    per_place[i] += share[i]
            for i in range(places):
                total[child[y, i]] += per_place[i]
        for y in range(positions):
            for i in range(places):
                per_place[i] = number(1) / total[child[y, i]]
            for j in range(parent):
                share = couplings[start + y, j]
                for i in range(places):
                    share[i] *= per_place[i]


@jit_reordering
def _softmax_backward(
    first: int,
    last: int,
    couplings: Any,
    grad_couplings: Any,
    child: Any,
    children: int,
    grad_logs: Any,
) -> None:
    positions, places = child.shape
    parent = couplings.shape[1]
    number = couplings.dtype.type
    total = np.empty(children, couplings.dtype)
    per_place = np.empty(places, couplings.dtype)
    for image in range(first, last):
        start = image * positions
        total[:] = number(0)
        for y in range(positions):
            per_place[:] = number(0)
            for j in range(parent):
                share, grad = couplings[start + y, j], grad_couplings[start + y, j]
                for i in range(places):
                    per_place[i] += share[i] * grad[i]
            for i in range(places):
                total[child[y, i]] += per_place[i]
        for y in range(positions):
            for i in range(places):
                per_place[i] = total[child[y, i]]
            for j in range(parent):
                share, grad, grad_log = (
                    couplings[start + y, j],
                    grad_couplings[start + y, j],
                    grad_logs[start + y, j],
                )
                for i in range(places):
                    grad_log[i] = share[i] * (grad[i] - per_place[i])
