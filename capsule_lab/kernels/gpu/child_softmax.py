"""Couplings of a convolutional layer in which all parents at all positions that see a child compete for it.

Plain torch sums over the positions of a child by ``index_add``, whose order on a GPU differs between runs.
"""
# ruff: noqa: N803 (Triton's constants are upper case)

from __future__ import annotations

import functools
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsule_lab.kernels.gpu.blocks import children_from, launch, number_type

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
    order, starts = _entries(child, 0 if child.is_inference() else child._version, children, parent)
    launch(
        kernel, (rows // positions, triton.cdiv(children, BLOCK)), (*given, order, starts), [result],
        positions, parent, children, places,
        BLOCK=BLOCK, TOGETHER=TOGETHER, NUMBER=number_type(result), num_warps=WARPS,
    )  # fmt: skip
    return result


@functools.lru_cache(maxsize=32)  # ours: layers of different sizes in use at a time
def _entries(child: Tensor, version: int, children: int, parent: int) -> tuple[Tensor, Tensor]:  # noqa: ARG001  # version
    """Return where in an image the first parent's entries are, sorted by child, and the start of each child.

    The cache identifies a tensor by its identity and its version, which changes with every write.
    """
    order = child.flatten().argsort(stable=True)
    starts = torch.searchsorted(child.flatten()[order], torch.arange(children + 1, device=child.device))
    places = child.shape[1]
    return (order // places * (parent * places) + order % places).int(), starts


@triton.jit
@no_type_check
def entry_range(starts, children, BLOCK: tl.constexpr):
    """Return the first entry and the number of entries of each child in the block of this program."""
    c = children_from(tl.program_id(1) * BLOCK, BLOCK)
    first = tl.load(starts + c, mask=c < children, other=0)
    return first, tl.load(starts + c + 1, mask=c < children, other=0) - first


@triton.jit
@no_type_check
def offsets(order, entry, exists, places, TOGETHER: tl.constexpr):
    """Return where in an image the entries of the first TOGETHER parents are, ``(TOGETHER, block)``."""
    first = tl.load(order + entry, mask=exists, other=0)
    return first[None, :] + (tl.arange(0, TOGETHER) * places)[:, None]


@triton.jit
@no_type_check
def is_entry(exists, j, parent, TOGETHER: tl.constexpr):
    """Return whether entries of TOGETHER parents from ``j`` on exist, ``(TOGETHER, block)``."""
    return exists[None, :] & (j + tl.arange(0, TOGETHER) < parent)[:, None]


@triton.jit(do_not_specialize=["positions", "parent", "children", "places"])
@no_type_check
def _softmax(
    log_couplings, order, starts, couplings, positions, parent, children, places,
    BLOCK: tl.constexpr, TOGETHER: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program reads all entries of a block of children of one image twice."""
    image = tl.program_id(0).to(tl.int64) * positions * parent * places
    first, count = entry_range(starts, children, BLOCK)
    largest = tl.full([BLOCK], float("-inf"), NUMBER)
    total = tl.full([BLOCK], 0.0, NUMBER)
    for n in range(tl.max(count, 0)):
        at = offsets(order, first + n, n < count, places, TOGETHER)
        for j in range(0, parent, TOGETHER):
            exists = is_entry(n < count, j, parent, TOGETHER)
            logs = tl.load(log_couplings + (image + j * places) + at, mask=exists, other=float("-inf")).to(NUMBER)
            new_largest = tl.maximum(largest, tl.max(logs, 0))
            shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
            total = total * tl.exp(largest - shift) + tl.sum(tl.exp(logs - shift[None, :]), 0)
            largest = new_largest
    for n in range(tl.max(count, 0)):
        at = offsets(order, first + n, n < count, places, TOGETHER)
        for j in range(0, parent, TOGETHER):
            exists = is_entry(n < count, j, parent, TOGETHER)
            logs = tl.load(log_couplings + (image + j * places) + at, mask=exists, other=0.0).to(NUMBER)
            shares = tl.exp(logs - largest[None, :]) / total[None, :]
            tl.store(couplings + (image + j * places) + at, shares, mask=exists)


@triton.jit(do_not_specialize=["positions", "parent", "children", "places"])
@no_type_check
def _softmax_backward(
    couplings, grad_couplings, order, starts, grad_logs, positions, parent, children, places,
    BLOCK: tl.constexpr, TOGETHER: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program subtracts from the gradient of a child's couplings its mean weighted by the couplings."""
    image = tl.program_id(0).to(tl.int64) * positions * parent * places
    first, count = entry_range(starts, children, BLOCK)
    mean = tl.full([BLOCK], 0.0, NUMBER)
    for n in range(tl.max(count, 0)):
        at = offsets(order, first + n, n < count, places, TOGETHER)
        for j in range(0, parent, TOGETHER):
            exists = is_entry(n < count, j, parent, TOGETHER)
            shares = tl.load(couplings + (image + j * places) + at, mask=exists, other=0.0).to(NUMBER)
            gradients = tl.load(grad_couplings + (image + j * places) + at, mask=exists, other=0.0).to(NUMBER)
            mean += tl.sum(shares * gradients, 0)
    for n in range(tl.max(count, 0)):
        at = offsets(order, first + n, n < count, places, TOGETHER)
        for j in range(0, parent, TOGETHER):
            exists = is_entry(n < count, j, parent, TOGETHER)
            shares = tl.load(couplings + (image + j * places) + at, mask=exists, other=0.0).to(NUMBER)
            gradients = tl.load(grad_couplings + (image + j * places) + at, mask=exists, other=0.0).to(NUMBER)
            tl.store(grad_logs + (image + j * places) + at, shares * (gradients - mean[None, :]), mask=exists)
