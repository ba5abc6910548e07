"""Backward pass of EM routing. ``capsule_lab.kernels.cpu.em_backward`` documents the equations."""
# ruff: noqa: N803, N806 (Triton's constants are upper case)

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from capsule_lab.kernels.em_arguments import FitInputs, FitOutputs, Parents
from capsule_lab.kernels.gpu.blocks import launch, load, log2_dim, parents_per_program, sizes
from capsule_lab.kernels.gpu.em import assigned_to, block_votes
from capsule_lab.kernels.gpu.votes import votes_backward

BLOCK = 32  # ours, not tuned: one warp, which sums without waiting for others


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
        _sum_children, (row, triton.cdiv(parent, group)), (*inputs[:4], poses, grad_distances),
        (assigned, errors, squares), parent,
        PARENTS=group, BLOCK=BLOCK, LEVELS=log2_dim(inputs.poses, inputs.weight, inner), num_warps=1,
        **sizes(inputs.poses, inputs.weight, inner),
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


@triton.jit
@no_type_check
def _sum_children(
    poses, weight, activations, couplings, parents, grad_distances, assigned, errors, squares, parent,
    PARENTS: tl.constexpr, CHILD: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr, LEVELS: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program sums shares, ``grad_distances`` times errors and times squared errors for PARENTS parents of a row."""
    D: tl.constexpr = ROWS * COLUMNS
    n = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * PARENTS
    lane = tl.arange(0, BLOCK)
    h = tl.arange(0, 1 << LEVELS)
    poses += n * (ROWS * INNER * CHILD)
    activations += n * CHILD
    for k in range(tl.minimum(PARENTS, parent - first)):
        j = first + k
        at = n * parent + j
        pose = tl.load(parents + at * D + h, mask=h < D, other=0.0).to(NUMBER)
        total = tl.full([BLOCK], 0.0, NUMBER)
        error_sums = tl.full([BLOCK, 1 << LEVELS], 0.0, NUMBER)
        square_sums = tl.full([BLOCK, 1 << LEVELS], 0.0, NUMBER)
        for block in range(tl.cdiv(CHILD, BLOCK)):
            i = block * BLOCK + lane
            total += assigned_to(activations, couplings + at * CHILD, i, CHILD, NUMBER)
            if grad_distances is not None:
                entries = weight + j * (INNER * COLUMNS * CHILD)
                error = block_votes(poses, entries, i, CHILD, ROWS, INNER, COLUMNS, LEVELS, NUMBER) - pose[None, :]
                product = load(grad_distances + at * CHILD, i, CHILD, 1, NUMBER)[0][:, None] * error
                error_sums += product
                square_sums += product * error
        tl.store(assigned + at, tl.sum(total, 0))
        if grad_distances is not None:
            tl.store(errors + at * D + h, tl.sum(error_sums, 0), mask=h < D)
            tl.store(squares + at * D + h, tl.sum(square_sums, 0), mask=h < D)
