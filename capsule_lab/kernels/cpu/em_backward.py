"""EM routing, backwards: gradients of what the parents of a row were fitted to."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from capsule_lab.kernels.cpu.blocks import give, hand_on, jit, load_some, make_votes, store_some, tiles
from capsule_lab.kernels.cpu.simd import LANES, load, spread, store, total
from capsule_lab.kernels.cpu.threads import flat, in_parts, number_of_parts, workspace
from capsule_lab.kernels.cpu.tiling import from_tiles, in_tiles_of, room_of, sizes_of, take_row


def fit_backward(
    poses: Tensor,
    weight: Tensor,
    activations: Tensor,
    couplings: Tensor,
    previous: Tensor,
    mass: Tensor,
    parents: Tensor,
    variances: Tensor,
    to_mass: Tensor,
    to_parents: Tensor,
    to_variances: Tensor,
    to_distances: Tensor,
    inner: int,
    damping: float,
    min_variance: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the first five arguments; ``to_x`` are those of the results of ``fit``."""
    row = len(couplings)
    to_poses, to_activations = poses.new_empty(poses.shape), activations.new_zeros(activations.shape)
    to_couplings, to_previous = (each.new_empty(each.shape) for each in (couplings, previous))
    sizes = sizes_of(poses, previous, inner)
    in_tiles = in_tiles_of(weight)
    to_tiles = in_tiles.new_zeros(number_of_parts(row), *in_tiles.shape)  # a thread writes to its own
    given = flat(
        poses, in_tiles, activations, couplings, previous, mass, parents, variances,
        to_mass, to_parents, to_variances, to_distances,
    )  # fmt: skip
    out = flat(to_poses, to_activations, to_couplings, to_previous)
    pose_tiles, votes, of_child, sums = room_of(poses, previous)
    to_pose_tiles = workspace(row, pose_tiles.shape[1], like=poses)
    coefficients = workspace(row, len(weight) * (3 * previous.shape[2] + 1), like=poses)
    room = pose_tiles, to_pose_tiles, votes, of_child, sums, coefficients, to_tiles.numpy()

    def part(thread: int, first: int, last: int) -> None:
        _fit_backward(first, last, sizes, *(each[thread] for each in room), *given, damping, min_variance, *out)

    in_parts(part, row)
    to_weight = weight.new_empty(weight.shape)
    from_tiles(to_tiles.sum(0).numpy(), *weight.shape, *flat(to_weight))
    return to_poses, to_weight, to_activations, to_couplings, to_previous


@jit
def _fit_backward(
    first: int,
    last: int,
    sizes: Any,
    pose_tiles: Any,
    to_pose_tiles: Any,
    votes: Any,
    to_present: Any,
    sums: Any,
    coefficients: Any,
    to_weight: Any,
    poses: Any,
    weight: Any,
    activations: Any,
    couplings: Any,
    previous: Any,
    mass: Any,
    parents: Any,
    variances: Any,
    to_mass: Any,
    to_parents: Any,
    to_variances: Any,
    to_distances: Any,
    damping: float,
    min_variance: float,
    to_poses: Any,
    to_activations: Any,
    to_couplings: Any,
    to_previous: Any,
) -> None:
    parent, child, dim, rows, inner, columns = sizes
    count, entries, of_weight = tiles(child), rows * inner * LANES, inner * columns * LANES
    number = poses.dtype.type
    half, one, two, zero = number(0.5), number(1), number(2), number(0)
    old, new = number(damping), number(1 - damping)
    floor = number(min_variance)
    measured = to_distances.size > 0
    scattered = dim * LANES  # where in sums those of the squares begin
    for n in range(first, last):
        take_row(poses, n, rows * inner, child, pose_tiles)
        to_pose_tiles[:] = 0
        to_present[:] = 0
        for j in range(parent):  # sums over the children, and what follows for all of them
            at = n * parent + j
            sums[:] = 0
            filled = spread(zero)
            for t in range(count):
                i = t * LANES
                coupling = load_some(couplings, at * child + i, child - i)
                filled = filled + coupling * load_some(activations, n * child + i, child - i)
                if measured:  # distance = (v - pose)^2 / (2 variance)
                    p, w = t * entries, (t * parent + j) * of_weight
                    make_votes(pose_tiles, p, weight, w, rows, inner, columns, votes, 0)
                    towards = load_some(to_distances, at * child + i, child - i)
                    for h in range(dim):
                        x, y = h * LANES, scattered + h * LANES
                        error = load(votes, x) - spread(parents[at * dim + h])
                        pull = towards * error
                        store(sums, x, load(sums, x) + pull)
                        store(sums, y, load(sums, y) + pull * error)
            per_mass = one / mass[at]
            share = total(filled) * per_mass  # 1, but for what was added to the mass
            to_total = to_mass[at]
            of_pair = j * (3 * dim + 1)
            for h in range(dim):
                pose, variance = parents[at * dim + h], variances[at * dim + h]
                precision = one / variance
                to_pose = to_parents[at * dim + h] - total(load(sums, h * LANES)) * precision
                of_distance = half * total(load(sums, scattered + h * LANES)) * precision * precision
                to_variance = to_variances[at * dim + h] - of_distance
                # variance = floor + sum assigned (v - pose)^2 / mass
                mean = (pose - old * previous[at * dim + h]) / new
                to_pose -= to_variance * (two * (mean - share * pose))  # in this order: gradients may be near infinity
                to_previous[at * dim + h] = old * to_pose
                to_mean = new * to_pose * per_mass
                to_variance *= per_mass
                to_total -= to_variance * (variance - floor) + to_mean * mean
                coefficients[of_pair + 3 * h] = precision
                coefficients[of_pair + 3 * h + 1] = to_variance
                coefficients[of_pair + 3 * h + 2] = to_mean
            coefficients[of_pair + 3 * dim] = to_total
        for t in range(count):  # and what each child has of that
            i = t * LANES
            for j in range(parent):
                w = (t * parent + j) * of_weight
                at, p, of_pair = n * parent + j, t * entries, j * (3 * dim + 1)
                make_votes(pose_tiles, p, weight, w, rows, inner, columns, votes, 0)
                coupling = load_some(couplings, at * child + i, child - i)
                present = load_some(activations, n * child + i, child - i)
                share = coupling * present
                towards = spread(zero)
                if measured:
                    towards = load_some(to_distances, at * child + i, child - i)
                to_assigned, of_mean = spread(coefficients[of_pair + 3 * dim]), spread(zero)
                for h in range(dim):
                    value = load(votes, h * LANES)
                    error = value - spread(parents[at * dim + h])
                    precision = spread(coefficients[of_pair + 3 * h])
                    once = spread(coefficients[of_pair + 3 * h + 1]) * error
                    to_mean = spread(coefficients[of_pair + 3 * h + 2])
                    to_assigned = to_assigned + once * error
                    of_mean = of_mean + to_mean * value
                    store(votes, h * LANES, towards * error * precision + share * (once + once + to_mean))
                to_assigned = to_assigned + of_mean
                store_some(to_couplings, at * child + i, child - i, to_assigned * present)
                line = t * LANES
                store(to_present, line, load(to_present, line) + to_assigned * coupling)
                hand_on(votes, 0, pose_tiles, p, weight, w, rows, inner, columns, to_pose_tiles, p, to_weight, w)
        for t in range(count):
            i, p = t * LANES, t * entries
            give(to_pose_tiles, p, to_poses, n * rows * inner * child, rows * inner, child, i)
            line = load(to_present, t * LANES)
            store_some(to_activations, n * child + i, child - i, line)
