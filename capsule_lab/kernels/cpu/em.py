"""EM routing: fit of the parents of a row to the votes of its children (Hinton 2018, procedure 1)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from capsule_lab.kernels.cpu.compiler import jit
from capsule_lab.kernels.cpu.simd import LANES, broadcast, load, reduce_add, store
from capsule_lab.kernels.cpu.threads import flat, parallel_for
from capsule_lab.kernels.cpu.tiles import (
    Scratch,
    compute_votes,
    load_partial,
    load_row,
    number_of_tiles,
    scratch_for,
    sizes_of,
    store_partial,
    tiles_of_weight,
)
from capsule_lab.kernels.em_arguments import FitInputs, FitOptions, FitOutputs


def fit(inputs: FitInputs, options: FitOptions) -> FitOutputs:
    """Compute mass, poses, variances and, with ``measure``, distances."""
    couplings, previous = inputs.couplings, inputs.previous
    row, parent, child = couplings.shape
    outputs = FitOutputs(
        mass=couplings.new_empty(row, parent),
        poses=previous.new_empty(previous.shape),
        variances=previous.new_empty(previous.shape),
        distances=couplings.new_empty(row, parent, child if options.measure else 0),
    )
    sizes = sizes_of(inputs.poses, inputs.weight, options.inner)
    scratch = scratch_for(sizes, like=inputs.poses)
    given = FitInputs(*flat(*inputs._replace(weight=tiles_of_weight(inputs.weight))))
    out = FitOutputs(*flat(*outputs))

    def kernel(thread: int, first: int, last: int) -> None:
        _fit(
            first, last, sizes, Scratch(*(array[thread] for array in scratch)), given, options, out
        )

    parallel_for(kernel, row)
    return outputs


def distances(
    poses: Tensor, weight: Tensor, parents: Tensor, variances: Tensor, inner: int
) -> Tensor:
    """Compute half the squared distances of votes from parents in units of the variance, ``(row, parent, child)``."""
    sizes = sizes_of(poses, weight, inner)
    result = poses.new_empty(sizes.row, sizes.parent, sizes.child)
    scratch = scratch_for(sizes, like=poses)
    given, out = flat(poses, tiles_of_weight(weight), parents, variances), flat(result)

    def kernel(thread: int, first: int, last: int) -> None:
        _distances(first, last, sizes, Scratch(*(array[thread] for array in scratch)), *given, *out)

    parallel_for(kernel, sizes.row)
    return result


@jit
def _squared_distance(votes: Any, v: int, dim: int, parents: Any, at: int, precision: Any) -> Any:
    """Compute ``sum_h precision (V - parents)^2`` for the children of a tile."""
    distance = broadcast(votes.dtype.type(0))
    for h in range(dim):
        error = load(votes, v + h * LANES) - broadcast(parents[at + h])
        distance = distance + broadcast(precision[h]) * error * error
    return distance


@jit
def _fit(
    first: int, last: int, sizes: Any, scratch: Any, inputs: Any, options: Any, outputs: Any
) -> None:
    _, parent, child, rows, inner, columns = sizes
    pose_tiles, votes, assigned, sums = scratch
    poses, weight, activations, couplings, previous = inputs
    mass, parents, variances, distances = outputs
    shape, dim, count = (rows, inner, columns), rows * columns, number_of_tiles(child)
    of_pose, of_weight = rows * inner * LANES, inner * columns * LANES
    number = poses.dtype.type  # otherwise literals, and all results with them, are float64
    half, one, zero = number(0.5), number(1), number(0)
    old, new = number(options.damping), number(1 - options.damping)
    min_variance, mass_eps = number(options.min_variance), number(options.mass_eps)
    for n in range(first, last):
        load_row(poses, n, rows * inner, child, pose_tiles)
        for j in range(parent):
            at = n * parent + j
            total = broadcast(zero)  # mass of the assigned children
            for h in range(0, dim * LANES, LANES):
                store(sums, h, total)
            for t in range(count):
                i, v = t * LANES, t * dim * LANES
                compute_votes(
                    pose_tiles, t * of_pose, weight, (t * parent + j) * of_weight, shape, votes, v
                )
                coupling = load_partial(couplings, at * child + i, child - i)
                share = coupling * load_partial(activations, n * child + i, child - i)
                store(assigned, i, share)
                total = total + share
                for h in range(0, dim * LANES, LANES):
                    store(sums, h, load(sums, h) + share * load(votes, v + h))
            mass[at] = reduce_add(total) + mass_eps
            per_mass = one / mass[at]
            for h in range(dim):
                pose = (
                    new * reduce_add(load(sums, h * LANES)) * per_mass
                    + old * previous[at * dim + h]
                )
                parents[at * dim + h] = pose
                store(sums, h * LANES, broadcast(zero))
            for t in range(count):
                share = load(assigned, t * LANES)
                for h in range(dim):
                    error = load(votes, (t * dim + h) * LANES) - broadcast(parents[at * dim + h])
                    store(sums, h * LANES, load(sums, h * LANES) + share * error * error)
            for h in range(dim):
                variances[at * dim + h] = (
                    min_variance + reduce_add(load(sums, h * LANES)) * per_mass
                )
            if options.measure:
                for h in range(dim):
                    sums[h] = half / variances[at * dim + h]
                for t in range(count):
                    distance = _squared_distance(
                        votes, t * dim * LANES, dim, parents, at * dim, sums
                    )
                    store_partial(distances, at * child + t * LANES, child - t * LANES, distance)


@jit
def _distances(
    first: int, last: int, sizes: Any, scratch: Any, poses: Any, weight: Any, parents: Any, variances: Any,
    distances: Any,
) -> None:  # fmt: skip
    _, parent, child, rows, inner, columns = sizes
    pose_tiles, votes, _, sums = scratch
    shape, dim = (rows, inner, columns), rows * columns
    of_pose, of_weight = rows * inner * LANES, inner * columns * LANES
    half = poses.dtype.type(0.5)
    for n in range(first, last):
        load_row(poses, n, rows * inner, child, pose_tiles)
        for j in range(parent):
            at = n * parent + j
            for h in range(dim):
                sums[h] = half / variances[at * dim + h]
            for t in range(number_of_tiles(child)):
                compute_votes(
                    pose_tiles, t * of_pose, weight, (t * parent + j) * of_weight, shape, votes, 0
                )
                distance = _squared_distance(votes, 0, dim, parents, at * dim, sums)
                store_partial(distances, at * child + t * LANES, child - t * LANES, distance)
