"""Backward pass of EM routing. ``capsule_lab.kernels.cpu.em_backward`` documents the equations."""
# ruff: noqa: N803, N806 (Triton's constants are upper case)

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from capsule_lab.kernels.em_arguments import FitInputs, FitOutputs, Parents
from capsule_lab.kernels.gpu.blocks import launch, load_children, parents_per_program
from capsule_lab.kernels.gpu.em import load_assigned
from capsule_lab.kernels.gpu.tiles import tile_children, tile_components, tile_sizes, tile_votes
from capsule_lab.kernels.gpu.votes import votes_backward

LANES = 32  # ours, not tuned: one warp, which sums without waiting for others


def fit_backward(
    inputs: FitInputs,
    parents: Parents,
    grad_outputs: FitOutputs,
    inner: int,
    damping: float,
    min_variance: float,
) -> FitInputs:
    """Compute the gradients of ``inputs``; ``parents`` are the first three results of ``fit``."""
    poses, weight, activations, couplings, previous = inputs
    grad_mass, grad_parents, grad_variances, grad_distances = grad_outputs
    row, parent, child = couplings.shape
    measured = grad_distances.shape[2] > 0
    constants = tile_sizes(poses, weight, inner)
    number = torch.float64 if poses.dtype == torch.float64 else torch.float32
    coefficients = previous.new_empty(row, parent, 4, previous.shape[2], dtype=number)
    grad_assigned = previous.new_empty(row, parent, dtype=number)
    grad_previous = previous.new_empty(previous.shape)
    group = parents_per_program(row, parent)
    launch(
        _parent_gradients, (row, triton.cdiv(parent, group)),
        (*inputs, *parents, grad_mass, grad_parents, grad_variances, grad_distances),
        (coefficients, grad_assigned, grad_previous), parent, child, group, measured,
        DAMPING=damping, MIN_VARIANCE=min_variance, LANES=LANES, num_warps=1, **constants,
    )  # fmt: skip
    grads = votes_backward(
        poses, weight, couplings.unsqueeze(2), coefficients, inner,
        activations=activations, grad_distances=grad_distances if measured else None, grad_mass=grad_assigned,
    )  # fmt: skip
    return FitInputs._make([*grads, grad_previous])


@triton.jit
@no_type_check
def load_numbers(pointer, d, exists, NUMBER: tl.constexpr):
    """Load a number for each component of a parent; 1, by which everything can be divided, beyond the last."""
    return tl.load(pointer + d, mask=exists, other=1.0).to(NUMBER)


@triton.jit(do_not_specialize=["parent", "child", "group"])
@no_type_check
def _parent_gradients(
    poses, weight, activations, couplings, previous, mass, parents, variances,
    grad_mass, grad_parents, grad_variances, grad_distances,
    coefficients, grad_assigned, grad_previous, parent, child, group, measured,
    DAMPING: tl.constexpr, MIN_VARIANCE: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr,
    ROW_SLOTS: tl.constexpr, COLUMN_SLOTS: tl.constexpr, LANES: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program sums over the children of a row and computes the gradients of ``group`` of its parents.

    ``coefficients`` are pose, 2 alpha, beta and precision, ``grad_assigned`` is the part of the gradient of the
    assigned shares that all children have. ``measured``: whether there are gradients of distances.
    """
    D: tl.constexpr = ROWS * COLUMNS
    n = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * group
    d, exists = tile_components(ROWS, COLUMNS, ROW_SLOTS, COLUMN_SLOTS)
    poses += n * (ROWS * INNER * child)
    activations += n * child
    for j in range(first, tl.minimum(first + group, parent)):
        at = n * parent + j
        entries = weight + j * (INNER * COLUMNS * child)
        pose = tl.load(parents + at * D + d, mask=exists, other=0.0).to(NUMBER)
        total = tl.full([1, LANES], 0.0, NUMBER)
        error_sums = tl.full([ROW_SLOTS, COLUMN_SLOTS, 1, LANES], 0.0, NUMBER)
        square_sums = tl.full([ROW_SLOTS, COLUMN_SLOTS, 1, LANES], 0.0, NUMBER)
        for start in range(0, child, LANES):
            i = tile_children(start, 1, LANES)
            total += load_assigned(activations, couplings + at * child, i, child, NUMBER)
            if measured:
                votes = tile_votes(
                    poses, entries, i, child, ROWS, INNER, COLUMNS, ROW_SLOTS, COLUMN_SLOTS, NUMBER
                )
                error = votes - pose[:, :, None, None]
                product = (
                    load_children(grad_distances + at * child, i, child, NUMBER)[None, None, :, :]
                    * error
                )
                error_sums += product
                square_sums += product * error
        error_sum = tl.sum(tl.sum(error_sums, 3), 2)
        square_sum = tl.sum(tl.sum(square_sums, 3), 2)
        filled = tl.load(mass + at).to(NUMBER)
        variance = load_numbers(variances + at * D, d, exists, NUMBER)
        precision = 1 / variance
        grad_pose = load_numbers(grad_parents + at * D, d, exists, NUMBER) - error_sum * precision
        grad_variance = load_numbers(grad_variances + at * D, d, exists, NUMBER)
        grad_variance -= 0.5 * square_sum * precision * precision
        mean = pose
        if DAMPING != 0:
            before = tl.load(previous + at * D + d, mask=exists, other=0.0).to(NUMBER)
            mean = (pose - DAMPING * before) / (1 - DAMPING)
        share = tl.sum(tl.sum(total, 1), 0) / filled
        grad_pose -= 2 * grad_variance * (mean - share * pose)
        alpha = grad_variance / filled
        beta = (1 - DAMPING) * grad_pose / filled
        of_mass = alpha * (variance - MIN_VARIANCE) + beta * mean
        of_mass = tl.sum(tl.sum(tl.where(exists, of_mass, 0.0), 1), 0)
        tl.store(grad_assigned + at, tl.load(grad_mass + at).to(NUMBER) - of_mass)
        tl.store(grad_previous + at * D + d, DAMPING * grad_pose, mask=exists)
        of_parent = coefficients + at * (4 * D) + d
        tl.store(of_parent, pose, mask=exists)
        tl.store(of_parent + D, 2 * alpha, mask=exists)
        tl.store(of_parent + 2 * D, beta, mask=exists)
        tl.store(of_parent + 3 * D, precision, mask=exists)
