"""Backward pass of EM routing: gradients of the inputs of the fit of a row.

For one parent (omitting j), children i and components h, with g[x] the gradient of x, the forward pass is

    w_i = c_i a_i                               couplings times activations
    m = mass_eps + sum_i w_i
    mean_h = sum_i w_i V_ih / m
    pose_h = (1 - damping) mean_h + damping previous_h
    e_ih = V_ih - pose_h
    var_h = min_variance + sum_i w_i e_ih^2 / m
    D_i = sum_h e_ih^2 / (2 var_h)              distances

First the gradients of the parents, through the distances and then through the variances, with
s = sum_i w_i / m, which is 1 except for mass_eps:

    g[pose_h] -= sum_i g[D_i] e_ih / var_h
    g[var_h]  -= sum_i g[D_i] e_ih^2 / (2 var_h^2)
    g[pose_h] -= 2 g[var_h] (mean_h - s pose_h)           as sum_i w_i e_ih / m = mean_h - s pose_h
    g[previous_h] = damping g[pose_h]
    alpha_h = g[var_h] / m
    beta_h = (1 - damping) g[pose_h] / m                  g[mean_h] / m
    g[m] -= sum_h alpha_h (var_h - min_variance) + beta_h mean_h

Then the gradients of each child, whose votes are V = P W (pose times weight):

    g[w_i] = g[m] + sum_h alpha_h e_ih^2 + beta_h V_ih
    g[V_ih] = g[D_i] e_ih / var_h + w_i (2 alpha_h e_ih + beta_h)
    g[c_i] = a_i g[w_i];    g[a_i] = sum_j c_i g[w_i];    g[P] = sum_j g[V] W^T;    g[W] = sum_n P^T g[V]
"""

from __future__ import annotations

from typing import Any, NamedTuple

from capsule_lab.kernels.cpu.compiler import jit
from capsule_lab.kernels.cpu.simd import LANES, broadcast, load, reduce_add, store
from capsule_lab.kernels.cpu.threads import flat, number_of_parts, parallel_for, workspace
from capsule_lab.kernels.cpu.tiles import (
    Scratch,
    compute_votes,
    load_partial,
    load_row,
    number_of_tiles,
    scratch_for,
    sizes_of,
    store_partial,
    store_tile,
    tiles_of_weight,
    votes_backward,
    weight_of_tiles,
)
from capsule_lab.kernels.em_arguments import FitInputs, FitOutputs, Parents


class Coefficients(NamedTuple):
    """Coefficients of the equations above for all parents of a row, ``(parent * dim,)``; the last is ``(parent,)``."""

    precision: Any  # 1 / var_h
    alpha: Any
    beta: Any
    grad_total: Any  # g[m], the common part of all g[w_i]


class GradTiles(NamedTuple):
    """Gradients that are summed in tiles: those of the poses of a row and of the weight."""

    poses: Any
    weight: Any


def fit_backward(
    inputs: FitInputs,
    parents: Parents,
    grad_outputs: FitOutputs,
    inner: int,
    damping: float,
    min_variance: float,
) -> FitInputs:
    """Compute the gradients of ``inputs``; ``parents`` are the first three results of ``fit``."""
    grads = FitInputs(*(each.new_empty(each.shape) for each in inputs))
    sizes = sizes_of(inputs.poses, inputs.weight, inner)
    row, parent, dim = inputs.previous.shape
    weight_tiles = tiles_of_weight(inputs.weight)
    threads = number_of_parts(row)
    grad_weight_tiles = weight_tiles.new_zeros(threads, *weight_tiles.shape)
    scratch = scratch_for(sizes, like=inputs.poses)
    grad_pose_tiles = workspace(row, scratch.pose_tiles.shape[1], like=inputs.poses)
    grad_tiles = GradTiles(grad_pose_tiles, grad_weight_tiles.numpy())
    counts = Coefficients(parent * dim, parent * dim, parent * dim, parent)
    coefficients = Coefficients(*(workspace(row, count, like=inputs.poses) for count in counts))
    given = FitInputs(*flat(*inputs._replace(weight=weight_tiles)))
    fitted = Parents(*flat(*parents))
    grad_fitted = FitOutputs(*flat(*grad_outputs))
    out = FitInputs(*flat(*grads))

    def kernel(thread: int, first: int, last: int) -> None:
        _fit_backward(
            first, last, sizes,
            Scratch(*(each[thread] for each in scratch)),
            Coefficients(*(each[thread] for each in coefficients)),
            GradTiles(*(each[thread] for each in grad_tiles)),
            given, fitted, grad_fitted, out, damping, min_variance,
        )  # fmt: skip

    parallel_for(kernel, row)
    return grads._replace(weight=weight_of_tiles(grad_weight_tiles.sum(0), like=inputs.weight))


@jit
def _fit_backward(
    first: int, last: int, sizes: Any, scratch: Any, coefficients: Any, grad_tiles: Any, inputs: Any, parents: Any,
    grad_outputs: Any, grad_inputs: Any, damping: float, min_variance: float,
) -> None:  # fmt: skip
    # records are unpacked only once: numba updates reference counts atomically at every unpacking
    _, parent, child, rows, inner, columns = sizes
    pose_tiles, votes, grad_activation_tiles, sums = scratch
    precision, alpha, beta, grad_total = coefficients
    grad_pose_tiles, grad_weight = grad_tiles
    poses, weight, activations, couplings, previous = inputs
    mass, means, variances = parents
    grad_mass, grad_means, grad_variances, grad_distances = grad_outputs
    grad_poses, _, grad_activations, grad_couplings, grad_previous = grad_inputs
    shape, dim, entries, count = (
        (rows, inner, columns),
        rows * columns,
        rows * inner,
        number_of_tiles(child),
    )
    of_weight, squares = inner * columns * LANES, dim * LANES
    number = poses.dtype.type
    half, one, two, zero = number(0.5), number(1), number(2), number(0)
    old, new, floor = number(damping), number(1 - damping), number(min_variance)
    measured = grad_distances.size > 0
    for n in range(first, last):
        load_row(poses, n, entries, child, pose_tiles)
        grad_pose_tiles[:] = 0
        grad_activation_tiles[:] = 0
        for j in range(parent):  # gradients of the parents, and coefficients
            at = n * parent + j
            sums[:] = 0  # sums of g[D] e and, from ``squares`` on, of g[D] e^2
            assigned = broadcast(zero)
            for t in range(count):
                i = t * LANES
                coupling = load_partial(couplings, at * child + i, child - i)
                assigned = assigned + coupling * load_partial(activations, n * child + i, child - i)
                if measured:
                    p, w = t * entries * LANES, (t * parent + j) * of_weight
                    compute_votes(pose_tiles, p, weight, w, shape, votes, 0)
                    grad_distance = load_partial(grad_distances, at * child + i, child - i)
                    for h in range(dim):
                        x, y = h * LANES, squares + h * LANES
                        error = load(votes, x) - broadcast(means[at * dim + h])
                        product = grad_distance * error
                        store(sums, x, load(sums, x) + product)
                        store(sums, y, load(sums, y) + product * error)
            per_mass = one / mass[at]
            share = reduce_add(assigned) * per_mass
            total = grad_mass[at]
            for h in range(dim):
                pose, variance = means[at * dim + h], variances[at * dim + h]
                inverse = one / variance
                grad_pose = grad_means[at * dim + h] - reduce_add(load(sums, h * LANES)) * inverse
                of_distances = (
                    half * reduce_add(load(sums, squares + h * LANES)) * inverse * inverse
                )
                grad_variance = grad_variances[at * dim + h] - of_distances
                mean = (pose - old * previous[at * dim + h]) / new
                # other orders overflow earlier
                grad_pose -= grad_variance * (two * (mean - share * pose))
                grad_previous[at * dim + h] = old * grad_pose
                grad_mean = new * grad_pose * per_mass
                grad_variance *= per_mass
                total -= grad_variance * (variance - floor) + grad_mean * mean
                precision[j * dim + h] = inverse
                alpha[j * dim + h] = grad_variance
                beta[j * dim + h] = grad_mean
            grad_total[j] = total
        for t in range(count):  # gradients of the children
            i, p = t * LANES, t * entries * LANES
            for j in range(parent):
                at, w = n * parent + j, (t * parent + j) * of_weight
                compute_votes(pose_tiles, p, weight, w, shape, votes, 0)
                coupling = load_partial(couplings, at * child + i, child - i)
                activation = load_partial(activations, n * child + i, child - i)
                share_of_child = coupling * activation
                grad_distance = broadcast(zero)
                if measured:
                    grad_distance = load_partial(grad_distances, at * child + i, child - i)
                grad_assigned, of_means = broadcast(grad_total[j]), broadcast(zero)
                for h in range(dim):
                    vote = load(votes, h * LANES)
                    error = vote - broadcast(means[at * dim + h])
                    precision_h, beta_h = (
                        broadcast(precision[j * dim + h]),
                        broadcast(beta[j * dim + h]),
                    )
                    alpha_error = broadcast(alpha[j * dim + h]) * error
                    grad_assigned = grad_assigned + alpha_error * error
                    of_means = of_means + beta_h * vote
                    of_fit = share_of_child * (alpha_error + alpha_error + beta_h)
                    store(votes, h * LANES, grad_distance * error * precision_h + of_fit)
                grad_assigned = grad_assigned + of_means
                store_partial(grad_couplings, at * child + i, child - i, grad_assigned * activation)
                store(
                    grad_activation_tiles,
                    i,
                    load(grad_activation_tiles, i) + grad_assigned * coupling,
                )
                votes_backward(
                    votes, 0, pose_tiles, p, weight, w, shape, grad_pose_tiles, p, grad_weight, w
                )
            store_tile(grad_pose_tiles, p, grad_poses, n * entries * child, entries, child, i)
            store_tile(grad_activation_tiles, i, grad_activations, n * child, 1, child, i)
