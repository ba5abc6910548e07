"""Couplings of a convolutional layer in which all parents at all positions that see a child compete for it.

Plain torch sums over the positions of a child by ``index_add``, whose order on a GPU differs between runs.
"""
# ruff: noqa: N803, RUF005 (Triton's constants are upper case, and its tuples only add up)

from __future__ import annotations

import functools
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsule_lab.kernels.gpu.blocks import launch, number_type

BLOCK, WARPS = 128, 4  # ours, not tuned: one child for each thread
TOGETHER = 8  # ours: concurrent loads of a thread, to hide the latency of memory


def softmax_by_child(log_couplings: Tensor, child: Tensor, children: int) -> Tensor:
    """See ``capsule_lab.kernels.cpu.child_softmax``."""
    return _for_each_child(_softmax, [log_couplings], child, children)


def softmax_by_child_backward(couplings: Tensor, grad_couplings: Tensor, child: Tensor, children: int) -> Tensor:
    """Compute the gradient of the log-couplings."""
    return _for_each_child(_softmax_backward, [couplings, grad_couplings], child, children)


def _for_each_child(kernel: Any, given: list[Tensor], child: Tensor, children: int) -> Tensor:
    """Launch ``kernel`` on tensors ``(image * position, parent, place)``; its result has the same shape."""
    (positions, places), (rows, parent, _) = child.shape, given[0].shape
    result = given[0].new_empty(given[0].shape)
    order, starts = _entries(child, 0 if child.is_inference() else child._version, children)
    launch(
        kernel, (rows // positions, triton.cdiv(children, BLOCK)), (*given, order, starts), [result], positions, parent,
        CHILDREN=children, PLACES=places, BLOCK=BLOCK, TOGETHER=TOGETHER, NUMBER=number_type(result), num_warps=WARPS,
    )  # fmt: skip
    return result


@functools.lru_cache(maxsize=32)  # ours: layers of different sizes in use at a time
def _entries(child: Tensor, version: int, children: int) -> tuple[Tensor, Tensor]:  # noqa: ARG001  # part of the key
    """Return entries ``position * places + place`` sorted by child, and the start of each child.

    The cache identifies a tensor by its identity and its version, which changes with every write.
    """
    order = child.flatten().argsort(stable=True)
    return order, torch.searchsorted(child.flatten()[order], torch.arange(children + 1, device=child.device))


@triton.jit
@no_type_check
def entry_range(starts, CHILDREN: tl.constexpr, BLOCK: tl.constexpr):
    """Return the first entry and the number of entries of each child in the block of this program."""
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first = tl.load(starts + c, mask=c < CHILDREN, other=0)
    return first, tl.load(starts + c + 1, mask=c < CHILDREN, other=0) - first


@triton.jit
@no_type_check
def address(order, entry, exists, positions, parent, PLACES: tl.constexpr):
    """Return the addresses of entries of the first parent in the couplings; the next parent is PLACES further."""
    place = tl.load(order + entry, mask=exists, other=0)
    row = tl.program_id(0).to(tl.int64) * positions + place // PLACES
    return row * parent * PLACES + place % PLACES


@triton.jit
@no_type_check
def is_entry(n, count, j, parent):
    """Return whether entry n and parent j exist; in the interpreter n and j are not tensors."""
    return (n < count) & (tl.zeros_like(count) + j < parent)


@triton.jit
@no_type_check
def load_parents(
    pointer, n, count, j, parent, other, PLACES: tl.constexpr, TOGETHER: tl.constexpr, NUMBER: tl.constexpr
):  # fmt: skip
    """Load the n-th entries of TOGETHER parents from ``j`` on concurrently; missing entries are ``other``."""
    parts = ()
    for k in tl.static_range(TOGETHER):
        part = tl.load(pointer + (j + k) * PLACES, mask=is_entry(n, count, j + k, parent), other=other)
        parts = parts + (part.to(NUMBER),)
    return parts


@triton.jit
@no_type_check
def _softmax(
    log_couplings, order, starts, couplings, positions, parent,
    CHILDREN: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr, TOGETHER: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program reads all entries of a block of children of one image twice."""
    first, count = entry_range(starts, CHILDREN, BLOCK)
    largest = tl.full([BLOCK], float("-inf"), NUMBER)
    total = tl.full([BLOCK], 0.0, NUMBER)
    for n in range(tl.max(count, 0)):
        at = address(order, first + n, n < count, positions, parent, PLACES)
        for j in range(0, parent, TOGETHER):
            logs = load_parents(log_couplings + at, n, count, j, parent, float("-inf"), PLACES, TOGETHER, NUMBER)
            new_largest = largest
            for k in tl.static_range(TOGETHER):
                new_largest = tl.maximum(new_largest, logs[k])
            shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
            total *= tl.exp(largest - shift)
            for k in tl.static_range(TOGETHER):
                total += tl.exp(logs[k] - shift)
            largest = new_largest
    for n in range(tl.max(count, 0)):
        at = address(order, first + n, n < count, positions, parent, PLACES)
        for j in range(0, parent, TOGETHER):
            logs = load_parents(log_couplings + at, n, count, j, parent, 0.0, PLACES, TOGETHER, NUMBER)
            for k in tl.static_range(TOGETHER):
                share = tl.exp(logs[k] - largest) / total
                tl.store(couplings + at + (j + k) * PLACES, share, mask=is_entry(n, count, j + k, parent))


@triton.jit
@no_type_check
def _softmax_backward(
    couplings, grad_couplings, order, starts, grad_logs, positions, parent,
    CHILDREN: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr, TOGETHER: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program subtracts from the gradient of a child's couplings its mean weighted by the couplings."""
    first, count = entry_range(starts, CHILDREN, BLOCK)
    mean = tl.full([BLOCK], 0.0, NUMBER)
    for n in range(tl.max(count, 0)):
        at = address(order, first + n, n < count, positions, parent, PLACES)
        for j in range(0, parent, TOGETHER):
            shares = load_parents(couplings + at, n, count, j, parent, 0.0, PLACES, TOGETHER, NUMBER)
            gradients = load_parents(grad_couplings + at, n, count, j, parent, 0.0, PLACES, TOGETHER, NUMBER)
            for k in tl.static_range(TOGETHER):
                mean += shares[k] * gradients[k]
    for n in range(tl.max(count, 0)):
        at = address(order, first + n, n < count, positions, parent, PLACES)
        for j in range(0, parent, TOGETHER):
            shares = load_parents(couplings + at, n, count, j, parent, 0.0, PLACES, TOGETHER, NUMBER)
            gradients = load_parents(grad_couplings + at, n, count, j, parent, 0.0, PLACES, TOGETHER, NUMBER)
            for k in tl.static_range(TOGETHER):
                gradient = shares[k] * (gradients[k] - mean)
                tl.store(grad_logs + at + (j + k) * PLACES, gradient, mask=is_entry(n, count, j + k, parent))
