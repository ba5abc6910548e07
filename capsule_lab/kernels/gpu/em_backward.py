"""Backward pass of EM routing. ``capsule_lab.kernels.cpu.em_backward`` documents the equations."""
# ruff: noqa: N803, N806 (Triton's constants are upper case)

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from capsule_lab.kernels.em_arguments import FitInputs, FitOutputs, Parents
from capsule_lab.kernels.gpu.blocks import launch, parents_per_program
from capsule_lab.kernels.gpu.em import load_assigned
from capsule_lab.kernels.gpu.tiles import load_children, tile_children, tile_components, tile_sizes, tile_votes
from capsule_lab.kernels.gpu.votes import votes_backward

LANES = 32  # ours, not tuned: one warp, which sums without waiting for others


def fit_backward(
    inputs: FitInputs, parents: Parents, grad_outputs: FitOutputs, inner: int, damping: float, min_variance: float
) -> FitInputs:
    """Compute the gradients of ``inputs``; ``parents`` are the first three results of ``fit``."""
    dtype, measured = inputs.previous.dtype, grad_outputs.distances.shape[2] > 0
    number = torch.float64 if dtype == torch.float64 else torch.float32
    mass, poses, variances = (tensor.to(number) for tensor in parents)
    grad_mass, grad_poses, grad_variances = (gradient.to(number) for gradient in grad_outputs[:3])
    previous = inputs.previous.to(number)
    grad_distances = grad_outputs.distances if measured else None
    mean = (poses - damping * previous) / (1 - damping)
    precision = 1 / variances
    assigned, errors, squares = (tensor.new_empty(tensor.shape) for tensor in (mass, poses, poses))
    row, parent = mass.shape
    group = parents_per_program(row, parent)
    launch(
        _sum_children, (row, triton.cdiv(parent, group)), (*inputs[:4], poses, grad_outputs.distances),
        (assigned, errors, squares), parent, inputs.poses.shape[2], group, measured,
        LANES=LANES, num_warps=1, **tile_sizes(inputs.poses, inputs.weight, inner),
    )  # fmt: skip
    if measured:
        grad_poses = grad_poses - errors * precision
        grad_variances = grad_variances - 0.5 * squares * precision.square()
    share = (assigned / mass).unsqueeze(2)
    grad_poses = grad_poses - 2 * grad_variances * (mean - share * poses)
    grad_previous = damping * grad_poses
    alpha = grad_variances / mass.unsqueeze(2)
    beta = (1 - damping) * grad_poses / mass.unsqueeze(2)
    grad_mass = grad_mass - (alpha * (variances - min_variance) + beta * mean).sum(2)
    coefficients = torch.stack([poses, 2 * alpha, beta, precision], 2)  # [n j . d]
    grads = votes_backward(
        inputs.poses, inputs.weight, inputs.couplings.unsqueeze(2), coefficients, inner,
        activations=inputs.activations, grad_distances=grad_distances, grad_mass=grad_mass,
    )  # fmt: skip
    return FitInputs._make([*grads, grad_previous.to(dtype).contiguous()])


@triton.jit(do_not_specialize=["parent", "child", "group"])
@no_type_check
def _sum_children(
    poses, weight, activations, couplings, parents, grad_distances, assigned, errors, squares,
    parent, child, group, measured,
    ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr, ROW_SLOTS: tl.constexpr,
    COLUMN_SLOTS: tl.constexpr, LANES: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program sums shares and, if ``measured``, ``grad_distances`` times errors and times squared errors.

    It does so for ``group`` parents of a row.
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
                votes = tile_votes(poses, entries, i, child, ROWS, INNER, COLUMNS, ROW_SLOTS, COLUMN_SLOTS, NUMBER)
                error = votes - pose[:, :, None, None]
                product = load_children(grad_distances + at * child, i, child, NUMBER)[None, None, :, :] * error
                error_sums += product
                square_sums += product * error
        tl.store(assigned + at, tl.sum(tl.sum(total, 1), 0))
        if measured:
            tl.store(errors + at * D + d, tl.sum(tl.sum(error_sums, 3), 2), mask=exists)
            tl.store(squares + at * D + d, tl.sum(tl.sum(square_sums, 3), 2), mask=exists)
