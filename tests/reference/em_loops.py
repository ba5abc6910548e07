"""Slow float64 transcriptions of EM routing (Hinton, Sabour and Frosst, ICLR 2018): the reference of the fast ones.

Plain loops on Python floats, which are float64, over an explicit graph: children, parents and the edges between them,
each with its vote. Dense layers and convolutional layers are only two ways to draw the edges. Nothing here comes from
the package, so that a mistake there cannot repeat itself here. Do not make it faster.

"Procedure 1" is the paper's. "Notes" are the project's notes on EM routing; their section 3.2 is the official code
of 2018 ("legacy"), 3.3 its later fast path, 3.4 its class layer, 3.6 what other ports do. Symbols there -> names
here: R_ij couplings, a_i and a_j activations, V_ij votes, mu_j poses, v_j = sigma_j^2 variances, m_j masses,
L_j = sum_h ln v_j^h log-volumes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.reference.reference import Reference

LN_2PI = math.log(2 * math.pi)

COSTS = ("paper", "official_legacy", "official_fast", "standardised")
NORMALISATIONS = ("all_parents", "window", "official_legacy", "official_fast")


# ------------------------------------------------------------------------------------------------ the graph


@dataclass(frozen=True)
class Child:
    activation: float
    type: int = 0


@dataclass(frozen=True)
class Parent:
    """``position`` is the window that the parent looks through; all parents of a dense layer share one."""

    type: int
    position: Hashable = ()


@dataclass(frozen=True)
class Edge:
    """A child (by index) seen by a parent (by index).

    ``stride_one_child`` is what the official normaliser of 2018 takes the child to be: parent index + kernel offset,
    as if the stride were 1. Nothing else looks at it.
    """

    child: int
    parent: int
    vote: list[float]
    stride_one_child: Hashable = None


class Iteration(NamedTuple):
    """One iteration: an M-step, and the couplings that it started from."""

    couplings: list[float]  # of each edge, before they are multiplied by the child's activation
    masses: list[float]  # of each parent, mass_epsilon included
    poses: list[list[float]]
    variances: list[list[float]]  # min_variance included
    logits: list[float]  # of each parent's activation: the sigmoid's argument
    log_activations: list[float]
    activations: list[float]


# --------------------------------------------------------------------------------------------------- scalars


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def log_sigmoid(x: float) -> float:
    return min(0.0, x) - math.log1p(math.exp(-abs(x)))


def inverse_temperatures(final: float, iterations: int) -> list[float]:
    """``lam_t = lam_final (1 - 0.95^(t + 1))``, notes 3.2 step 1."""
    return [final * (1 - 0.95 ** (t + 1)) for t in range(iterations)]


def log_density(vote: list[float], pose: list[float], variance: list[float]) -> float:
    """``ln p_j``, the logarithm of a Gaussian with diagonal covariance at the vote (Procedure 1, E-step, line 2)."""
    total = 0.0
    for v, mu, var in zip(vote, pose, variance, strict=True):
        total += -((v - mu) ** 2) / (2 * var) - 0.5 * (math.log(var) + LN_2PI)
    return total


# ---------------------------------------------------------------------------------------------------- M-step


def activation_logits(
    masses: list[float],
    variances: list[list[float]],
    parents: list[Parent],
    beta_u: Sequence[float],
    beta_a: Sequence[float],
    cost: str,
    inverse_temperature: float,
) -> list[float]:
    """Argument of the sigmoid, M-step lines 4 and 5 of Procedure 1; the betas belong to the parent's type."""
    if cost == "standardised":
        return standardised_logits(masses, variances, parents, beta_u, beta_a, inverse_temperature)
    logits = []
    for parent, mass, variance in zip(parents, masses, variances, strict=True):
        dim = len(variance)
        u, a = beta_u[parent.type], beta_a[parent.type]
        log_volume = sum(math.log(var) for var in variance)  # L_j
        if cost == "paper":
            # cost^h = (beta_u + ln sigma_j^h) sum_i R_ij; a_j = logistic(lambda (beta_a - sum_h cost^h))
            logits.append(inverse_temperature * (a - sum((u + 0.5 * math.log(var)) * mass for var in variance)))
        elif cost == "official_legacy":  # notes 3.2 step 7 and 3.4: beta_u is b_s, beta_a is b_a
            bracket = -log_volume - dim * u * (LN_2PI + 1)
            logits.append(inverse_temperature * (mass * bracket - 5000 * a))
        elif cost == "official_fast":  # notes 3.3, second point
            bracket = -log_volume - dim * (math.log(u**2 + 5e-4) + LN_2PI + 1)
            logits.append(inverse_temperature * (mass * bracket - 800 * a))
        else:
            raise ValueError(cost)
    return logits


def standardised_logits(
    masses: list[float],
    variances: list[list[float]],
    parents: list[Parent],
    beta_u: Sequence[float],
    beta_a: Sequence[float],
    inverse_temperature: float,
) -> list[float]:
    """Notes 3.6, column Hui: costs are standardised over the parent types at the same position."""
    costs = []
    for parent, mass, variance in zip(parents, masses, variances, strict=True):
        costs.append(sum((beta_u[parent.type] + 0.5 * math.log(var)) * mass for var in variance))
    logits = []
    for parent, own in zip(parents, costs, strict=True):
        rivals = [c for other, c in zip(parents, costs, strict=True) if other.position == parent.position]
        mean = sum(rivals) / len(rivals)
        deviation = math.sqrt(sum((c - mean) ** 2 for c in rivals) / len(rivals))  # population: divided by n
        logits.append(inverse_temperature * (beta_a[parent.type] + (mean - own) / (deviation + 1e-4)))
    return logits


# ---------------------------------------------------------------------------------------------------- E-step


def softmax_in_groups(log_weights: list[float], groups: list[Hashable]) -> list[float]:
    """``exp(w)`` over the sum of ``exp(w)`` in the same group, by log-sum-exp (notes 3.5)."""
    members: dict[Hashable, list[float]] = {}
    for weight, group in zip(log_weights, groups, strict=True):
        members.setdefault(group, []).append(weight)
    log_totals = {}
    for group, weights in members.items():
        largest = max(weights)
        log_totals[group] = largest + math.log(sum(math.exp(weight - largest) for weight in weights))
    return [math.exp(weight - log_totals[group]) for weight, group in zip(log_weights, groups, strict=True)]


def ratio_in_groups(
    log_weights: list[float],
    maximum_groups: list[Hashable],
    total_groups: list[Hashable],
    finish: Callable[[float], float],
) -> list[float]:
    """``e = exp(w - largest w of its maximum group)``, then e over ``finish(sum of e in its total group)``."""
    largest: dict[Hashable, float] = {}
    for weight, group in zip(log_weights, maximum_groups, strict=True):
        largest[group] = max(weight, largest.get(group, -math.inf))
    shares = [math.exp(weight - largest[group]) for weight, group in zip(log_weights, maximum_groups, strict=True)]
    totals: dict[Hashable, float] = {}
    for share, group in zip(shares, total_groups, strict=True):
        totals[group] = totals.get(group, 0.0) + share
    return [share / finish(totals[group]) for share, group in zip(shares, total_groups, strict=True)]


def normalise(
    log_weights: list[float], children: list[Child], parents: list[Parent], edges: list[Edge], normalisation: str
) -> list[float]:
    """E-step line 3 of Procedure 1, ``R_ij = a_j p_j / sum_k a_k p_k``, or what the ports put in its place."""
    if normalisation == "all_parents":  # k over every parent that sees the child: Procedure 1, notes 3.4 and 3.5
        return softmax_in_groups(log_weights, [edge.child for edge in edges])
    if normalisation == "window":  # k over the types at one position only (Hui, yl-1993, SR-CapsNet)
        return softmax_in_groups(log_weights, [(edge.child, parents[edge.parent].position) for edge in edges])
    if normalisation == "official_legacy":  # notes 3.2 steps 9 and 10: over positions, for each parent type by itself
        pairs = [(children[edge.child].type, parents[edge.parent].type) for edge in edges]
        pretended = [edge.child if edge.stride_one_child is None else edge.stride_one_child for edge in edges]
        shared = [(child, parents[edge.parent].type) for child, edge in zip(pretended, edges, strict=True)]
        return ratio_in_groups(log_weights, pairs, shared, lambda total: total + 1e-7)
    if normalisation == "official_fast":  # notes 3.3: one maximum for each child type, all parents, floored
        types = [children[edge.child].type for edge in edges]
        return ratio_in_groups(log_weights, types, [edge.child for edge in edges], lambda total: max(total, 1e-6))
    raise ValueError(normalisation)


def initial_couplings(parents: list[Parent], edges: list[Edge], initial: str) -> list[float]:
    """Procedure 1, line 2. "types": 1/C (official, Hui); "parents": 1/(parents that see the child) (IBM)."""
    if initial == "types":
        types = {parent.type for parent in parents}
        return [1 / len(types) for _ in edges]
    if initial == "parents":
        seen: dict[int, int] = {}
        for edge in edges:
            seen[edge.child] = seen.get(edge.child, 0) + 1
        return [1 / seen[edge.child] for edge in edges]
    raise ValueError(initial)


# --------------------------------------------------------------------------------------------- the procedure


def em_routing_graph(
    children: list[Child],
    parents: list[Parent],
    edges: list[Edge],
    beta_u: Sequence[float],
    beta_a: Sequence[float],
    *,
    inverse_temperatures: Sequence[float],
    cost: str = "paper",
    normalisation: str = "all_parents",
    initial: str = "parents",
    damping: float = 0.0,
    min_variance: float = 5e-4,
    mass_epsilon: float = 1e-7,
    activation: str = "description_length",
) -> list[Iteration]:
    """Procedure 1 on one image, as many iterations as there are inverse temperatures; the last one is the result.

    ``beta_u`` and ``beta_a`` have one number per parent type; under the official costs they are the code's ``b_s`` and
    ``b_a``. ``damping`` is the previous mean's share of the new one, 0.1 in the official code, 0 in the paper; the mean
    before the first is 0. The paper has neither ``min_variance`` nor ``mass_epsilon`` (official: 5e-4, and 1e-7 in
    convolutional or 1e-5 in class layers): both are added, never a bound. A mass of exactly 0 gives mean 0.
    """
    couplings = initial_couplings(parents, edges, initial)
    dim = len(edges[0].vote)
    of_parent: list[list[tuple[int, Edge]]] = [[] for _ in parents]
    for e, edge in enumerate(edges):
        of_parent[edge.parent].append((e, edge))

    poses = [[0.0] * dim for _ in parents]
    iterations: list[Iteration] = []
    for inverse_temperature in inverse_temperatures:
        if iterations:  # E-step; the one after the last M-step would change nothing that is returned
            last = iterations[-1]
            log_weights = []
            for edge in edges:  # ln (a_j p_j)
                j = edge.parent
                log_weights.append(last.log_activations[j] + log_density(edge.vote, last.poses[j], last.variances[j]))
            couplings = normalise(log_weights, children, parents, edges, normalisation)

        masses, new_poses, variances = [], [], []
        for j in range(len(parents)):  # M-step
            weights = [couplings[e] * children[edge.child].activation for e, edge in of_parent[j]]  # R_ij <- R_ij a_i
            mass = sum(weights) + mass_epsilon
            divisor = mass if mass > 0 else 1.0
            pose, variance = [], []
            for h in range(dim):
                moment = 0.0  # mu_j^h = sum_i R_ij V_ij^h / sum_i R_ij
                for weight, (_, edge) in zip(weights, of_parent[j], strict=True):
                    moment += weight * edge.vote[h]
                mu = (1 - damping) * (moment / divisor) + damping * poses[j][h]
                spread = 0.0  # (sigma_j^h)^2 = sum_i R_ij (V_ij^h - mu_j^h)^2 / sum_i R_ij
                for weight, (_, edge) in zip(weights, of_parent[j], strict=True):
                    spread += weight * (edge.vote[h] - mu) ** 2
                pose.append(mu)
                variance.append(spread / divisor + min_variance)
            masses.append(mass)
            new_poses.append(pose)
            variances.append(variance)
        poses = new_poses

        if activation == "description_length":
            logits = activation_logits(masses, variances, parents, beta_u, beta_a, cost, inverse_temperature)
            log_activations = [log_sigmoid(logit) for logit in logits]
            activations = [sigmoid(logit) for logit in logits]
        elif activation == "mixing_proportions":  # notes 3.1, last point: they sum to 1 over the layer
            whole = sum(masses)
            activations = [mass / whole for mass in masses]
            log_activations = [math.log(mass) - math.log(whole) for mass in masses]
            logits = [math.log(mass) - math.log(whole - mass) if whole > mass else math.inf for mass in masses]
        else:
            raise ValueError(activation)
        iterations.append(Iteration(couplings, masses, poses, variances, logits, log_activations, activations))
    return iterations


# ----------------------------------------------------------------------------------------------------- votes


def matrix_vote(pose: Sequence[float], transform: Sequence[Sequence[float]]) -> list[float]:
    """``V = M W``, the pose on the left, ``pose[4 r + x]`` and ``vote[4 r + c]`` row by row (notes 2.3)."""
    vote = []
    for r in range(4):
        for c in range(4):
            total = 0.0
            for x in range(4):
                total += pose[4 * r + x] * transform[x][c]
            vote.append(total)
    return vote


def vector_vote(pose: Sequence[float], transform: Sequence[Sequence[float]]) -> list[float]:
    """``V_d = sum_n u_n W_nd``, the vector of the paper's ablation."""
    vote = []
    for d in range(len(transform[0])):
        total = 0.0
        for n in range(len(pose)):
            total += pose[n] * transform[n][d]
        vote.append(total)
    return vote


Vote = Callable[[Sequence[float], Sequence[Sequence[float]]], list[float]]


def _votes(poses: Tensor, weight: Tensor, vote: Vote) -> Tensor:
    transforms = weight.double().permute(0, 3, 1, 2).tolist()  # [i j x c]
    return torch.tensor(
        [
            [[vote(pose, transform) for transform in transforms[i]] for i, pose in enumerate(image)]
            for image in poses.double().tolist()
        ],
        dtype=torch.float64,
    )


def matrix_votes_loops(poses: Tensor, weight: Tensor) -> Tensor:
    """Poses ``(b, i, 16)`` and transforms ``(i, x 4, c 4, j)`` to votes ``(b, i, j, 16)``."""
    return _votes(poses, weight, matrix_vote)


def vector_votes_loops(poses: Tensor, weight: Tensor) -> Tensor:
    """Poses ``(b, i, n)`` and transforms ``(i, n, d, j)`` to votes ``(b, i, j, d)``."""
    return _votes(poses, weight, vector_vote)


def class_votes_loops(
    poses: Tensor, weight: Tensor, *, offsets: Tensor | None = None, vote: Vote = matrix_vote
) -> Tensor:
    """Grid of poses ``(b, B, n, h, w)`` to votes ``(b, B * h * w, class, n)``, children ordered type, row, column.

    Every position uses the same transform of ``weight`` ``(B, x, c, class)``; ``offsets`` ``(n, h, w)`` are then added
    to the votes from each position (Coordinate Addition, notes 2.4).
    """
    _, types, dim, height, width = poses.shape
    transforms = weight.double().permute(0, 3, 1, 2).tolist()  # [B class x c]
    added = torch.zeros(dim, height, width) if offsets is None else offsets
    images = []
    for image in poses.double().permute(0, 1, 3, 4, 2).tolist():
        children = []
        for b in range(types):
            for row in range(height):
                for column in range(width):
                    of_child = []
                    for transform in transforms[b]:
                        of_child.append(vote(image[b][row][column], transform))
                        for d in range(len(of_child[-1])):
                            of_child[-1][d] += added[d, row, column].item()
                    children.append(of_child)
        images.append(children)
    return torch.tensor(images, dtype=torch.float64)


def receptive_field_centres(size: int, layers: Sequence[tuple[int, int]]) -> list[float]:
    """Coordinate of every position left of ``size`` pixels by unpadded ``(kernel, stride)`` layers (notes 2.4).

    The pixels' are ``(index - size / 2) / 100``; each layer takes the mean under its kernel.
    """
    centres = [(pixel - size / 2) / 100 for pixel in range(size)]
    for kernel, stride in layers:
        starts = range(0, len(centres) - kernel + 1, stride)
        centres = [sum(centres[start : start + kernel]) / kernel for start in starts]
    return centres


# ---------------------------------------------------------------------------------------------------- layers


class Record(NamedTuple):
    """One iteration of a layer. Shapes for dense layers, then for convolutional ones.

    Couplings are those of this iteration's M-step; they are 0 between a parent and a child that it does
    not see. ``parent`` below stands for ``(C, oh, ow)`` in a convolutional layer.
    """

    couplings: Tensor  # (b, i, j); (b, B, h, w, C, oh, ow)
    masses: Tensor  # (b, parent)
    logits: Tensor  # (b, parent)
    log_activations: Tensor  # (b, parent)
    activations: Tensor  # (b, parent)
    poses: Tensor  # (b, j, d); (b, C, d, oh, ow)
    variances: Tensor  # as poses


def dense_em_loops(
    votes: Tensor, activations: Tensor, beta_u: Tensor, beta_a: Tensor, **options: object
) -> list[Record]:
    """Every child sees every parent: votes ``(b, i, j, d)``, activations ``(b, i)``, betas ``(j,)``.

    ``options`` are those of ``em_routing_graph``, of which a dense layer means nothing by the official normalisations:
    the official class layer uses "all_parents". One record per iteration; the last has the result.
    """
    _, count, types, _ = votes.shape
    parents = [Parent(type=j) for j in range(types)]
    images = []
    for vote, activation in zip(votes.double().tolist(), activations.double().tolist(), strict=True):
        children = [Child(activation[i]) for i in range(count)]
        edges = [Edge(i, j, vote[i][j]) for i in range(count) for j in range(types)]
        iterations = em_routing_graph(children, parents, edges, beta_u.tolist(), beta_a.tolist(), **options)
        images.append((edges, iterations))
    return _records(images, count, types)


def conv_em_loops(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    stride: int,
    vote: Vote = matrix_vote,
    **options: object,
) -> list[Record]:
    """Unpadded convolution: poses ``(b, B, n, h, w)``, activations ``(b, B, h, w)``, weight ``(B, kh, kw, x, c, C)``.

    The parents at ``(row, column)`` see the children at ``stride * row + kernel row``, ``stride * column + kernel
    column``. Betas ``(C,)``; ``options`` are those of ``em_routing_graph``.
    """
    _, child_types, _, height, width = poses.shape
    _, kernel_height, kernel_width, _, _, parent_types = weight.shape
    out_height = (height - kernel_height) // stride + 1
    out_width = (width - kernel_width) // stride + 1
    transforms = weight.double().permute(0, 1, 2, 5, 3, 4).tolist()  # [B kh kw C x c]

    def child_index(b: int, row: int, column: int) -> int:
        return (b * height + row) * width + column

    def parent_index(c: int, row: int, column: int) -> int:
        return (c * out_height + row) * out_width + column

    parents = [
        Parent(type=c, position=(row, column))
        for c in range(parent_types)
        for row in range(out_height)
        for column in range(out_width)
    ]
    images = []
    for pose, activation in zip(
        poses.double().permute(0, 1, 3, 4, 2).tolist(), activations.double().tolist(), strict=True
    ):
        children = [
            Child(activation[b][row][column], type=b)
            for b in range(child_types)
            for row in range(height)
            for column in range(width)
        ]
        edges = []
        for c in range(parent_types):
            for row in range(out_height):
                for column in range(out_width):
                    for b in range(child_types):
                        for y in range(kernel_height):
                            for x in range(kernel_width):
                                below, right = stride * row + y, stride * column + x
                                edges.append(
                                    Edge(
                                        child_index(b, below, right),
                                        parent_index(c, row, column),
                                        vote(pose[b][below][right], transforms[b][y][x][c]),
                                        stride_one_child=(b, row + y, column + x),
                                    )
                                )
        iterations = em_routing_graph(children, parents, edges, beta_u.tolist(), beta_a.tolist(), **options)
        images.append((edges, iterations))
    grid = (out_height, out_width)
    return [
        Record(
            couplings=record.couplings.unflatten(2, (parent_types, *grid)).unflatten(1, (child_types, height, width)),
            **{
                name: getattr(record, name).unflatten(1, (parent_types, *grid))
                for name in ("masses", "logits", "log_activations", "activations")
            },
            **{
                name: getattr(record, name).unflatten(1, (parent_types, *grid)).permute(0, 1, 4, 2, 3)
                for name in ("poses", "variances")
            },
        )
        for record in _records(images, len(children), len(parents))
    ]


def _records(images: list[tuple[list[Edge], list[Iteration]]], children: int, parents: int) -> list[Record]:
    """Stack the images: one record per iteration, children and parents still by index."""
    records = []
    for t in range(len(images[0][1])):
        couplings = torch.zeros(len(images), children, parents, dtype=torch.float64)
        for b, (edges, iterations) in enumerate(images):
            for edge, coupling in zip(edges, iterations[t].couplings, strict=True):
                couplings[b, edge.child, edge.parent] = coupling
        others = {
            name: torch.tensor([getattr(iterations[t], name) for _, iterations in images], dtype=torch.float64)
            for name in Record._fields
            if name != "couplings"
        }
        records.append(Record(couplings=couplings, **others))
    return records


def temperatures(iterations: int, inverse_temperature: float, temperature_schedule: str) -> list[float]:
    """Inverse temperature of each iteration; the tutorial's two are those of notes 3.6, column Hui."""
    if temperature_schedule == "saturating":
        return inverse_temperatures(inverse_temperature, iterations)
    last = {"constant": 1, "increment": iterations, "linear": min(iterations, 3)}[temperature_schedule]
    if iterations == 1:
        return [inverse_temperature]
    return [inverse_temperature * (1 + t * (last - 1) / (iterations - 1)) for t in range(iterations)]


def in_terms_of_the_loops(options: dict[str, Any]) -> dict[str, Any]:
    """Options of ``em_routing_graph`` from arguments of ``EMRouting``; the betas go another way."""
    known = {
        name: options[name]
        for name in ("cost", "normalisation", "initial", "damping", "min_variance", "activation")
        if name in options
    }
    schedule = {name: options[name] for name in ("iterations", "inverse_temperature", "temperature_schedule")}
    return {**known, "mass_epsilon": options["mass_eps"], "inverse_temperatures": temperatures(**schedule)}


def betas_of_the_loops(routing: Any, parents: int, dim: int) -> tuple[Tensor, Tensor]:
    """One pair per parent; the official code's 800 is 50 times 16 components, and ``em_loops`` has the 800.

    Its 5e-4 stands where the package has ``min_variance``: ``beta_u^2 + min_variance`` is what both are given.
    """
    beta_u, beta_a = (beta.detach().double().expand(parents).clone() for beta in (routing.beta_u, routing.beta_a))
    if routing.options["cost"] == "official_fast":
        beta_a = beta_a * dim / 16
        moved = beta_u.square() + routing.options["min_variance"] - 5e-4
        assert (moved > 0).all(), "em_loops has no option for a variance this small"
        beta_u = moved.sqrt()
    return beta_u, beta_a


def parents_by_loops(votes: Tensor, activations: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    options = {**in_terms_of_the_loops(module.options), "normalisation": "all_parents"}  # in a dense layer
    betas = betas_of_the_loops(module, votes.shape[2], votes.shape[3])
    last = dense_em_loops(votes.detach(), activations.detach(), *betas, **options)[-1]
    return last.poses, last.activations


def shipped() -> dict[str, dict[str, Any]]:
    """``conf/routing/em*.yaml``, but for what the contract varies."""
    from tests.reference.em_bridge import PRESETS, class_preset, preset

    found = {name: preset(name) for name in PRESETS} | {f"{name}-classes": class_preset(name) for name in PRESETS}
    others = ("iterations", "backend")
    return {name: {key: row[key] for key in row if key not in others} for name, row in found.items()}


REFERENCE = Reference(
    parents_by_loops,
    switches={
        "iterations": (3, 1, 2, 5),
        "cost": ("official_fast", "paper", "official_legacy", "standardised"),
        "normalisation": NORMALISATIONS,
        "temperature_schedule": ("saturating", "linear", "increment", "constant"),
        "initial": ("parents", "types"),
        "activation": ("description_length", "mixing_proportions"),
        "damping": (0.0, 0.5),
        "shared_betas": (False, True),
        "min_variance": (5e-4, 0.1),
        "mass_eps": (1e-7, 0.1),
        "inverse_temperature": (None, 0.02),
    },
    elsewhere=("beta_u", "beta_a"),
    given=shipped,
)
