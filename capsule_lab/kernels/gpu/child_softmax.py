"""Couplings of a convolutional layer in which all parents at all positions that see a child compete for it.

Plain torch sums over the positions of a child by ``index_add``, whose order on a GPU differs between runs.
"""
# ruff: noqa: N803 (Triton's constants are upper case)

from __future__ import annotations

import functools
from typing import Any, cast, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsule_lab.kernels.gpu.blocks import children_from, launch, number_type

BLOCK, WARPS = 128, 4  # ours, not tuned: one child for each thread
TOGETHER = 8  # ours: concurrent loads of a thread, to hide the latency of memory


def softmax_by_child(log_couplings: Tensor, child: Tensor, children: int) -> Tensor:
    """See ``capsule_lab.kernels.cpu.child_softmax``."""
    return _for_each_child(_softmax, [log_couplings, None], child, children)


def softmax_by_child_backward(
    couplings: Tensor, grad_couplings: Tensor, child: Tensor, children: int
) -> Tensor:
    """Compute the gradient of the log-couplings."""
    return _for_each_child(
        _softmax_backward, [couplings, grad_couplings], child, children, NEGATIVE=False
    )


def e_step_by_child(log_height: Tensor, distances: Tensor, child: Tensor, children: int) -> Tensor:
    """See ``capsule_lab.kernels.cpu.child_softmax``."""
    return _for_each_child(_softmax, [distances, log_height], child, children)


def e_step_by_child_backward(
    couplings: Tensor, grad_couplings: Tensor, child: Tensor, children: int
) -> Tensor:
    """Compute the gradient of the distances; that of ``log_height`` is its negative sum over the children."""
    return _for_each_child(
        _softmax_backward, [couplings, grad_couplings], child, children, NEGATIVE=True
    )


def _for_each_child(
    kernel: Any, given: list[Tensor | None], child: Tensor, children: int, **constants: bool
) -> Tensor:
    """Launch ``kernel``; the first of ``given`` and the result are ``(image * position, parent, place)``."""
    like = cast("Tensor", given[0])
    (positions, places), (rows, parent, _) = child.shape, like.shape
    result = like.new_empty(like.shape)
    order, starts = _entries(child, 0 if child.is_inference() else child._version, children, parent)
    launch(
        kernel, (rows // positions, triton.cdiv(children, BLOCK)), (*given, order, starts), [result],
        positions, parent, children, places,
        BLOCK=BLOCK, TOGETHER=TOGETHER, NUMBER=number_type(result), num_warps=WARPS, **constants,
    )  # fmt: skip
    return result


@functools.lru_cache(maxsize=32)  # ours: layers of different sizes in use at a time
def _entries(child: Tensor, version: int, children: int, parent: int) -> tuple[Tensor, Tensor]:  # noqa: ARG001  # version
    """Return where in an image the first parent's entries are, sorted by child, and the start of each child.

    The cache identifies a tensor by its identity and its version, which changes with every write.
    """
    order = child.flatten().argsort(stable=True)
    starts = torch.searchsorted(
        child.flatten()[order], torch.arange(children + 1, device=child.device)
    )
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
    """Return where in an image the entries of the first TOGETHER parents are, ``(TOGETHER, block)``.

    With the hint, which may be untrue because a thread has one child, Triton 3.6 distributes children, not parents,
    over threads, as later versions do without it. ``load_logs`` has another one.
    """
    first = tl.load(order + entry, mask=exists, other=0)
    at = first[None, :] + (tl.arange(0, TOGETHER) * places)[:, None]
    return tl.max_contiguous(at, [1, first.shape[0]])


@triton.jit
@no_type_check
def is_entry(exists, j, parent, TOGETHER: tl.constexpr):
    """Return whether entries of TOGETHER parents from ``j`` on exist, ``(TOGETHER, block)``."""
    return exists[None, :] & (j + tl.arange(0, TOGETHER) < parent)[:, None]


@triton.jit
@no_type_check
def load_logs(given, log_height, at, places, j, exists, other, NUMBER: tl.constexpr):
    """Load log-couplings of the parents from ``j`` on; with ``log_height``, ``given`` are distances."""
    if log_height is None:
        logs = tl.load(given + j * places + at, mask=exists, other=other).to(NUMBER)
    else:
        row = tl.max_contiguous(at // places, [1, at.shape[1]])
        height = tl.load(log_height + j + row, mask=exists, other=other).to(NUMBER)
        logs = height - tl.load(given + j * places + at, mask=exists, other=0.0).to(NUMBER)
    return logs


@triton.jit(do_not_specialize=["positions", "parent", "children", "places"])
@no_type_check
def _softmax(
    log_couplings, log_height, order, starts, couplings, positions, parent, children, places,
    BLOCK: tl.constexpr, TOGETHER: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program reads all entries of a block of children of one image twice; ``log_height``: see ``load_logs``."""
    image = tl.program_id(0).to(tl.int64) * positions * parent
    log_couplings += image * places
    couplings += image * places
    if log_height is not None:
        log_height += image
    first, count = entry_range(starts, children, BLOCK)
    largest = tl.full([BLOCK], float("-inf"), NUMBER)
    total = tl.full([BLOCK], 0.0, NUMBER)
    for n in range(tl.max(count, 0)):
        at = offsets(order, first + n, n < count, places, TOGETHER)
        for j in range(0, parent, TOGETHER):
            exists = is_entry(n < count, j, parent, TOGETHER)
            logs = load_logs(
                log_couplings, log_height, at, places, j, exists, float("-inf"), NUMBER
            )
            new_largest = tl.maximum(largest, tl.max(logs, 0))
            shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
            total = total * tl.exp(largest - shift) + tl.sum(tl.exp(logs - shift[None, :]), 0)
            largest = new_largest
    for n in range(tl.max(count, 0)):
        at = offsets(order, first + n, n < count, places, TOGETHER)
        for j in range(0, parent, TOGETHER):
            exists = is_entry(n < count, j, parent, TOGETHER)
            logs = load_logs(log_couplings, log_height, at, places, j, exists, 0.0, NUMBER)
            shares = tl.exp(logs - largest[None, :]) / total[None, :]
            tl.store(couplings + j * places + at, shares, mask=exists)


@triton.jit(do_not_specialize=["positions", "parent", "children", "places"])
@no_type_check
def _softmax_backward(
    couplings, grad_couplings, order, starts, grad_logs, positions, parent, children, places,
    NEGATIVE: tl.constexpr, BLOCK: tl.constexpr, TOGETHER: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program subtracts from the gradient of a child's couplings its mean weighted by the couplings.

    NEGATIVE: return the gradient of the negative log-couplings.
    """
    image = tl.program_id(0).to(tl.int64) * positions * parent * places
    first, count = entry_range(starts, children, BLOCK)
    mean = tl.full([BLOCK], 0.0, NUMBER)
    for n in range(tl.max(count, 0)):
        at = offsets(order, first + n, n < count, places, TOGETHER)
        for j in range(0, parent, TOGETHER):
            exists = is_entry(n < count, j, parent, TOGETHER)
            shares = tl.load(couplings + (image + j * places) + at, mask=exists, other=0.0).to(
                NUMBER
            )
            gradients = tl.load(
                grad_couplings + (image + j * places) + at, mask=exists, other=0.0
            ).to(NUMBER)
            mean += tl.sum(shares * gradients, 0)
    for n in range(tl.max(count, 0)):
        at = offsets(order, first + n, n < count, places, TOGETHER)
        for j in range(0, parent, TOGETHER):
            exists = is_entry(n < count, j, parent, TOGETHER)
            shares = tl.load(couplings + (image + j * places) + at, mask=exists, other=0.0).to(
                NUMBER
            )
            gradients = tl.load(
                grad_couplings + (image + j * places) + at, mask=exists, other=0.0
            ).to(NUMBER)
            difference = mean[None, :] - gradients if NEGATIVE else gradients - mean[None, :]
            tl.store(grad_logs + (image + j * places) + at, shares * difference, mask=exists)
