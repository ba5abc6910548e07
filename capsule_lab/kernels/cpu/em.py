"""EM routing: the parents of a row fitted to the votes of its children (Hinton 2018, procedure 1)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from capsule_lab.kernels.cpu.blocks import hand_on, jit, make_votes
from capsule_lab.kernels.cpu.threads import arrays, in_parts, number_of_parts, workspace


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
    dim = previous.shape[2]
    mass = couplings.new_empty(row, parent)
    parents, variances = previous.new_empty(previous.shape), previous.new_empty(previous.shape)
    distances = couplings.new_empty(row, parent, child if measure else 0)
    given = arrays(poses, weight, activations, couplings, previous)
    out = arrays(mass, parents, variances, distances)
    work = workspace(row, dim + 1, poses)

    def part(thread: int, first: int, last: int) -> None:
        _fit(first, last, work[thread], *given, inner, damping, min_variance, mass_eps, *out)

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
    to_poses, to_activations = (each.new_zeros(each.shape) for each in (poses, activations))
    to_couplings, to_previous = (each.new_empty(each.shape) for each in (couplings, previous))
    to_weight = weight.new_zeros(number_of_parts(row), *weight.shape)  # a thread writes to its own
    given = arrays(
        poses, weight, activations, couplings, previous, mass, parents, variances,
        to_mass, to_parents, to_variances, to_distances,
    )  # fmt: skip
    out = arrays(to_poses, to_activations, to_couplings, to_previous)
    weights = to_weight.numpy()
    work = workspace(row, previous.shape[2] + 2, poses)

    def part(thread: int, first: int, last: int) -> None:
        _fit_backward(first, last, work[thread], *given, inner, damping, min_variance, *out, weights[thread])

    in_parts(part, row)
    return to_poses, to_weight.sum(0), to_activations, to_couplings, to_previous


def distances(poses: Tensor, weight: Tensor, parents: Tensor, variances: Tensor, inner: int) -> Tensor:
    """Half the squared distance of each vote from each parent in units of its variance, ``(row, parent, child)``."""
    row, parent, dim = parents.shape
    found = poses.new_empty(row, parent, poses.shape[2])
    given, out = arrays(poses, weight, parents, variances), found.numpy()
    work = workspace(row, dim, poses)

    def part(thread: int, first: int, last: int) -> None:
        _distances(first, last, work[thread], *given, inner, out)

    in_parts(part, row)
    return found


@jit
def _fit(
    first: int,
    last: int,
    work: Any,
    poses: Any,
    weight: Any,
    activations: Any,
    couplings: Any,
    previous: Any,
    inner: int,
    damping: float,
    min_variance: float,
    mass_eps: float,
    mass: Any,
    parents: Any,
    variances: Any,
    distances: Any,
) -> None:
    _, parent, child = couplings.shape
    dim = parents.shape[2]
    number = couplings.dtype.type  # literals are float64 otherwise, and everything they touch
    half, one = number(0.5), number(1)
    old, new = number(damping), number(1 - damping)
    floor, eps = number(min_variance), number(mass_eps)
    measure = distances.shape[2] > 0
    votes, assigned = work[:dim], work[dim]
    for n in range(first, last):
        present = activations[n]
        for j in range(parent):
            make_votes(poses[n], weight[j], inner, votes)
            coupling = couplings[n, j]
            total = number(0)
            for i in range(child):
                assigned[i] = coupling[i] * present[i]
                total += assigned[i]
            total += eps
            mass[n, j] = total
            per_mass = one / total
            if measure:
                distance = distances[n, j]
                distance[:] = number(0)
            for h in range(dim):
                v = votes[h]
                mean = number(0)
                for i in range(child):
                    mean += assigned[i] * v[i]
                pose = new * mean * per_mass + old * previous[n, j, h]
                squared = number(0)
                for i in range(child):
                    error = v[i] - pose
                    squared += assigned[i] * error * error
                variance = floor + squared * per_mass
                parents[n, j, h] = pose
                variances[n, j, h] = variance
                if measure:
                    precision = half / variance
                    for i in range(child):
                        error = v[i] - pose
                        distance[i] += precision * error * error


@jit
def _fit_backward(
    first: int,
    last: int,
    work: Any,
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
    inner: int,
    damping: float,
    min_variance: float,
    to_poses: Any,
    to_activations: Any,
    to_couplings: Any,
    to_previous: Any,
    to_weight: Any,
) -> None:
    _, parent, child = couplings.shape
    dim = parents.shape[2]
    number = couplings.dtype.type
    half, one, two = number(0.5), number(1), number(2)
    old, new = number(damping), number(1 - damping)
    floor = number(min_variance)
    measured = to_distances.shape[2] > 0
    votes, assigned, to_assigned = work[:dim], work[dim], work[dim + 1]
    for n in range(first, last):
        present = activations[n]
        for j in range(parent):
            make_votes(poses[n], weight[j], inner, votes)
            coupling = couplings[n, j]
            filled = number(0)
            for i in range(child):
                assigned[i] = coupling[i] * present[i]
                to_assigned[i] = number(0)
                filled += assigned[i]
            per_mass = one / mass[n, j]
            filled *= per_mass  # 1, but for what was added to the mass
            to_total = to_mass[n, j]
            for h in range(dim):
                v = votes[h]
                pose, variance, before = parents[n, j, h], variances[n, j, h], previous[n, j, h]
                mean = (pose - old * before) / new
                to_variance, to_pose = to_variances[n, j, h], to_parents[n, j, h]
                precision = one / variance
                if measured:  # distance = (v - pose)^2 / (2 variance)
                    to_distance = to_distances[n, j]
                    moved, spread = number(0), number(0)
                    for i in range(child):
                        error = v[i] - pose
                        pull = to_distance[i] * error
                        moved += pull
                        spread += pull * error
                    to_pose -= moved * precision
                    to_variance -= half * spread * precision * precision
                # variance = floor + sum assigned (v - pose)^2 / mass
                to_pose -= two * to_variance * (mean - filled * pose)
                to_previous[n, j, h] = old * to_pose
                to_mean = new * to_pose * per_mass
                to_variance *= per_mass
                to_total -= to_variance * (variance - floor) + to_mean * mean
                twice = two * to_variance
                if measured:
                    for i in range(child):
                        value = v[i]
                        error = value - pose
                        to_assigned[i] += to_variance * error * error + to_mean * value
                        v[i] = to_distance[i] * error * precision + assigned[i] * (twice * error + to_mean)
                else:
                    for i in range(child):
                        value = v[i]
                        error = value - pose
                        to_assigned[i] += to_variance * error * error + to_mean * value
                        v[i] = assigned[i] * (twice * error + to_mean)
            to_coupling, to_present = to_couplings[n, j], to_activations[n]
            for i in range(child):
                gradient = to_assigned[i] + to_total
                to_present[i] += gradient * coupling[i]
                to_coupling[i] = gradient * present[i]
            hand_on(votes, poses[n], weight[j], inner, to_poses[n], to_weight[j])


@jit
def _distances(
    first: int, last: int, votes: Any, poses: Any, weight: Any, parents: Any, variances: Any, inner: int, distances: Any
) -> None:
    _, parent, child = distances.shape
    dim = parents.shape[2]
    number = distances.dtype.type
    half = number(0.5)
    for n in range(first, last):
        for j in range(parent):
            make_votes(poses[n], weight[j], inner, votes)
            distance = distances[n, j]
            distance[:] = number(0)
            for h in range(dim):
                v, pose, precision = votes[h], parents[n, j, h], half / variances[n, j, h]
                for i in range(child):
                    error = v[i] - pose
                    distance[i] += precision * error * error
