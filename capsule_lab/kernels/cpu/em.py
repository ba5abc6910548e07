"""EM routing: the parents of a row fitted to the votes of its children (Hinton 2018, procedure 1)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from capsule_lab.kernels.cpu.blocks import jit, load_some, make_votes, store_some, tiles
from capsule_lab.kernels.cpu.simd import LANES, load, spread, store, total
from capsule_lab.kernels.cpu.threads import flat, in_parts
from capsule_lab.kernels.cpu.tiling import in_tiles_of, room_of, sizes_of, take_row


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
    sizes = sizes_of(poses, previous, inner)
    given = flat(poses, in_tiles_of(weight), activations, couplings, previous)
    out = flat(mass, parents, variances, distances)
    room = room_of(poses, previous)

    def part(thread: int, first: int, last: int) -> None:
        _fit(first, last, sizes, *(each[thread] for each in room), *given, damping, min_variance, mass_eps, *out)

    in_parts(part, row)
    return mass, parents, variances, distances


def distances(poses: Tensor, weight: Tensor, parents: Tensor, variances: Tensor, inner: int) -> Tensor:
    """Half the squared distance of each vote from each parent in units of its variance, ``(row, parent, child)``."""
    row, parent, _ = parents.shape
    found = poses.new_empty(row, parent, poses.shape[2])
    sizes = sizes_of(poses, parents, inner)
    given, out = flat(poses, in_tiles_of(weight), parents, variances), flat(found)
    room = room_of(poses, parents)

    def part(thread: int, first: int, last: int) -> None:
        _distances(first, last, sizes, *(each[thread] for each in room), *given, *out)

    in_parts(part, row)
    return found


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
        take_row(poses, n, rows * inner, child, pose_tiles)
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
        take_row(poses, n, rows * inner, child, pose_tiles)
        for j in range(parent):
            at = n * parent + j
            for h in range(dim):
                sums[h] = half / variances[at * dim + h]
            for t in range(count):
                p, w = t * entries, (t * parent + j) * of_weight
                make_votes(pose_tiles, p, weight, w, rows, inner, columns, votes, 0)
                distance = _measure(votes, 0, dim, parents, at * dim, sums)
                store_some(distances, at * child + t * LANES, child - t * LANES, distance)
