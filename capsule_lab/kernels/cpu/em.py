"""EM routing: the parents of a row fitted to the votes of its children (Hinton 2018, procedure 1)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from capsule_lab.kernels.cpu.blocks import give, hand_on, jit, load_some, make_votes, store_some, take, tiles
from capsule_lab.kernels.cpu.lanes import LANES, load, spread, store, total
from capsule_lab.kernels.cpu.threads import flat, in_parts, number_of_parts, workspace


def fit(
    poses: Tensor,
    weight: Tensor,
    activations: Tensor,
    couplings: Tensor,
    previous: Tensor,
    inner: int,
    damping: float,
    min_variance: float,
    mass_eps: float,
    measure: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mass, poses, variances and, if asked to ``measure``, distances, see ``capsule_lab.kernels.base.Fit``."""
    row, parent, child = couplings.shape
    mass = couplings.new_empty(row, parent)
    parents, variances = previous.new_empty(previous.shape), previous.new_empty(previous.shape)
    distances = couplings.new_empty(row, parent, child if measure else 0)
    sizes = _sizes(poses, previous, inner)
    given = flat(poses, _in_tiles(weight), activations, couplings, previous)
    out = flat(mass, parents, variances, distances)
    room = _workspace(poses, previous)

    def part(thread: int, first: int, last: int) -> None:
        _fit(first, last, sizes, *(each[thread] for each in room), *given, damping, min_variance, mass_eps, *out)

    in_parts(part, row)
    return mass, parents, variances, distances


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
    sizes = _sizes(poses, previous, inner)
    in_tiles = _in_tiles(weight)
    to_tiles = in_tiles.new_zeros(number_of_parts(row), *in_tiles.shape)  # a thread writes to its own
    given = flat(
        poses, in_tiles, activations, couplings, previous, mass, parents, variances,
        to_mass, to_parents, to_variances, to_distances,
    )  # fmt: skip
    out = flat(to_poses, to_activations, to_couplings, to_previous)
    pose_tiles, votes, of_child, sums = _workspace(poses, previous)
    to_pose_tiles = workspace(row, pose_tiles.shape[1], like=poses)
    coefficients = workspace(row, len(weight) * (3 * previous.shape[2] + 1), like=poses)
    room = pose_tiles, to_pose_tiles, votes, of_child, sums, coefficients, to_tiles.numpy()

    def part(thread: int, first: int, last: int) -> None:
        _fit_backward(first, last, sizes, *(each[thread] for each in room), *given, damping, min_variance, *out)

    in_parts(part, row)
    to_weight = weight.new_empty(weight.shape)
    _from_tiles(to_tiles.sum(0).numpy(), *weight.shape, *flat(to_weight))
    return to_poses, to_weight, to_activations, to_couplings, to_previous


def distances(poses: Tensor, weight: Tensor, parents: Tensor, variances: Tensor, inner: int) -> Tensor:
    """Half the squared distance of each vote from each parent in units of its variance, ``(row, parent, child)``."""
    row, parent, _ = parents.shape
    found = poses.new_empty(row, parent, poses.shape[2])
    sizes = _sizes(poses, parents, inner)
    given, out = flat(poses, _in_tiles(weight), parents, variances), flat(found)
    room = _workspace(poses, parents)

    def part(thread: int, first: int, last: int) -> None:
        _distances(first, last, sizes, *(each[thread] for each in room), *given, *out)

    in_parts(part, row)
    return found


def _sizes(poses: Tensor, parents: Tensor, inner: int) -> tuple[int, ...]:
    """Parents, children, components of a parent, and rows, inner and columns of the matrices."""
    _, parent, dim = parents.shape
    rows = poses.shape[1] // inner
    return parent, poses.shape[2], dim, rows, inner, dim // rows


def _workspace(poses: Tensor, parents: Tensor) -> tuple[Any, ...]:
    """Room of each thread: poses in tiles, votes for one parent, a number per child, two per component and lane."""
    row, entries, child = poses.shape
    dim, count = parents.shape[2], -(-child // LANES)
    return tuple(workspace(row, size * LANES, like=poses) for size in (count * entries, count * dim, count, 2 * dim))


def _in_tiles(weight: Tensor) -> Tensor:
    """Tiles of all parents, one after the other."""
    parent, entries, child = weight.shape
    found = weight.new_empty(parent * -(-child // LANES) * entries * LANES)
    _to_tiles(*flat(weight), parent, entries, child, found.numpy())
    return found


@jit
def _to_tiles(values: Any, parent: int, entries: int, child: int, in_tiles: Any) -> None:
    count = tiles(child)
    for j in range(parent):
        for t in range(count):
            to = (t * parent + j) * entries * LANES
            take(values, j * entries * child, entries, child, t * LANES, in_tiles, to)


@jit
def _from_tiles(in_tiles: Any, parent: int, entries: int, child: int, values: Any) -> None:
    count = tiles(child)
    for j in range(parent):
        for t in range(count):
            start = (t * parent + j) * entries * LANES
            give(in_tiles, start, values, j * entries * child, entries, child, t * LANES)


@jit
def _take_row(values: Any, n: int, entries: int, child: int, in_tiles: Any) -> None:
    for t in range(tiles(child)):
        take(values, n * entries * child, entries, child, t * LANES, in_tiles, t * entries * LANES)


@jit
def _measure(votes: Any, v: int, dim: int, parents: Any, at: int, precision: Any) -> Any:
    """``sum_h precision (V - parents)^2`` of the children of a tile."""
    distance = spread(votes.dtype.type(0))
    for h in range(dim):
        error = load(votes, v + h * LANES) - spread(parents[at + h])
        distance = distance + spread(precision[h]) * error * error
    return distance


@jit
def _fit(
    first: int,
    last: int,
    sizes: Any,
    pose_tiles: Any,
    votes: Any,
    assigned: Any,
    sums: Any,
    poses: Any,
    weight: Any,
    activations: Any,
    couplings: Any,
    previous: Any,
    damping: float,
    min_variance: float,
    mass_eps: float,
    mass: Any,
    parents: Any,
    variances: Any,
    distances: Any,
) -> None:
    parent, child, dim, rows, inner, columns = sizes
    count, entries, of_weight = tiles(child), rows * inner * LANES, inner * columns * LANES
    number = poses.dtype.type  # literals are float64 otherwise, and everything they touch
    half, one, zero = number(0.5), number(1), number(0)
    old, new = number(damping), number(1 - damping)
    floor, eps = number(min_variance), number(mass_eps)
    measure = distances.size > 0
    for n in range(first, last):
        _take_row(poses, n, rows * inner, child, pose_tiles)
        for j in range(parent):
            at = n * parent + j
            filled = spread(zero)
            for h in range(0, dim * LANES, LANES):
                store(sums, h, filled)
            for t in range(count):
                i, v = t * LANES, t * dim * LANES
                p, w = t * entries, (t * parent + j) * of_weight
                make_votes(pose_tiles, p, weight, w, rows, inner, columns, votes, v)
                coupling = load_some(couplings, at * child + i, child - i)
                share = coupling * load_some(activations, n * child + i, child - i)
                store(assigned, i, share)
                filled = filled + share
                for h in range(0, dim * LANES, LANES):
                    store(sums, h, load(sums, h) + share * load(votes, v + h))
            mass[at] = total(filled) + eps
            per_mass = one / mass[at]
            for h in range(dim):
                pose = new * total(load(sums, h * LANES)) * per_mass + old * previous[at * dim + h]
                parents[at * dim + h] = pose
                store(sums, h * LANES, spread(zero))
            for t in range(count):
                share = load(assigned, t * LANES)
                for h in range(dim):
                    error = load(votes, (t * dim + h) * LANES) - spread(parents[at * dim + h])
                    store(sums, h * LANES, load(sums, h * LANES) + share * error * error)
            for h in range(dim):
                variances[at * dim + h] = floor + total(load(sums, h * LANES)) * per_mass
            if measure:
                for h in range(dim):
                    sums[h] = half / variances[at * dim + h]
                for t in range(count):
                    distance = _measure(votes, t * dim * LANES, dim, parents, at * dim, sums)
                    store_some(distances, at * child + t * LANES, child - t * LANES, distance)


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
        _take_row(poses, n, rows * inner, child, pose_tiles)
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


@jit
def _distances(
    first: int,
    last: int,
    sizes: Any,
    pose_tiles: Any,
    votes: Any,
    _: Any,
    sums: Any,
    poses: Any,
    weight: Any,
    parents: Any,
    variances: Any,
    distances: Any,
) -> None:
    parent, child, dim, rows, inner, columns = sizes
    count, entries, of_weight = tiles(child), rows * inner * LANES, inner * columns * LANES
    half = poses.dtype.type(0.5)
    for n in range(first, last):
        _take_row(poses, n, rows * inner, child, pose_tiles)
        for j in range(parent):
            at = n * parent + j
            for h in range(dim):
                sums[h] = half / variances[at * dim + h]
            for t in range(count):
                p, w = t * entries, (t * parent + j) * of_weight
                make_votes(pose_tiles, p, weight, w, rows, inner, columns, votes, 0)
                distance = _measure(votes, 0, dim, parents, at * dim, sums)
                store_some(distances, at * child + t * LANES, child - t * LANES, distance)
