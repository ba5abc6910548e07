"""Slow float64 transcriptions of EM routing (Hinton, Sabour and Frosst, ICLR 2018): the reference of the fast ones.

Plain loops over an explicit graph: children, parents and the edges between them, each with its vote. Dense layers and
convolutional layers differ only in their edges. See ``loops`` for the rules of all transcriptions.

"Procedure 1" is the paper's. "Official" is the authors' TensorFlow code: "legacy" is its default path of 2018, "fast"
its later path; see docs/algorithms/em_routing.md. Symbols -> names here: R_ij couplings, a_i and a_j activations,
V_ij votes, mu_j poses, v_j = sigma_j^2 variances, m_j masses, L_j = sum_h ln v_j^h log-volumes.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.reference.contract import Reference
from tests.reference.loops import double, zeros

Vector = list[float]
LN_2PI = math.log(2 * math.pi)
COSTS = ("official_fast", "paper", "official_legacy", "standardised")
NORMALISATIONS = ("all_parents", "window", "official_legacy", "official_fast")


# ------------------------------------------------------------------------------------------------ the graph


class Child(NamedTuple):
    activation: float
    type: int = 0


class Parent(NamedTuple):
    """``position`` is the parent's window; all parents of a dense layer have the same."""

    type: int
    position: Hashable = ()


class Edge(NamedTuple):
    """A child (by index) seen by a parent (by index).

    ``stride_one_child`` is the child that the official normaliser of 2018 assumes: parent index + kernel offset, as
    if the stride were 1. Only that normaliser uses it.
    """

    child: int
    parent: int
    vote: Vector
    stride_one_child: Hashable = None


class Record(NamedTuple):
    """One iteration: an M-step, and the couplings before it.

    Of ``em_routing_graph`` lists of edges or parents. Of layers tensors, where ``parent`` is ``j`` in a dense and
    ``(C, oh, ow)`` in a convolutional one; couplings are 0 between a parent and a child that it does not see.
    """

    couplings: Any  # (b, i, j); (b, B, h, w, C, oh, ow); before they are multiplied by the child's activation
    masses: Any  # (b, parent), mass_epsilon included
    logits: Any  # (b, parent): the sigmoid's argument
    log_activations: Any  # (b, parent)
    activations: Any  # (b, parent)
    poses: Any  # (b, j, d); (b, C, d, oh, ow)
    variances: Any  # as poses, min_variance included


# --------------------------------------------------------------------------------------------------- scalars


def sigmoid(x: float) -> float:
    smaller = math.exp(-abs(x))
    numerator = 1.0 if x >= 0 else smaller
    return numerator / (1 + smaller)


def log_sigmoid(x: float) -> float:
    smaller = math.exp(-abs(x))
    return min(0.0, x) - math.log1p(smaller)


def inverse_temperatures(final: float, iterations: int, schedule: str = "saturating") -> Vector:
    """One per iteration: the official ``final (1 - 0.95^(t + 1))``, or a schedule of J. Hui's tutorial."""
    if schedule == "saturating":
        return [final * (1 - 0.95 ** (t + 1)) for t in range(iterations)]
    last_factors = {
        "constant": 1,
        "increment": iterations,
        "linear": min(iterations, 3),
    }
    rise = last_factors[schedule] - 1
    steps = max(1, iterations - 1)
    return [final * (1 + t * rise / steps) for t in range(iterations)]


def log_density(vote: Vector, pose: Vector, variance: Vector) -> float:
    """``ln p_j``, the logarithm of a Gaussian with diagonal covariance at the vote (Procedure 1, E-step, line 2)."""
    total = 0.0
    for v, mu, var in zip(vote, pose, variance, strict=True):
        squared = (v - mu) ** 2
        log_norm = math.log(var) + LN_2PI
        total -= squared / (2 * var) + 0.5 * log_norm
    return total


# ---------------------------------------------------------------------------------------------------- M-step


def activation_logits(
    masses: Vector,
    variances: list[Vector],
    parents: list[Parent],
    beta_u: Sequence[float],
    beta_a: Sequence[float],
    cost: str,
    inverse_temperature: float,
) -> Vector:
    """Argument of the sigmoid, M-step lines 4 and 5 of Procedure 1; the betas belong to the parent's type."""
    costs = []  # sum_h cost^h of Procedure 1, cost^h = (beta_u + ln sigma_j^h) sum_i R_ij
    log_volumes = []  # L_j
    for parent, mass, variance in zip(parents, masses, variances, strict=True):
        cost_of_parent = 0.0
        log_volume = 0.0
        for var in variance:
            log_var = math.log(var)
            cost_of_parent += (beta_u[parent.type] + 0.5 * log_var) * mass
            log_volume += log_var
        costs.append(cost_of_parent)
        log_volumes.append(log_volume)
    dim = len(variances[0])
    logits = []
    of_parents = zip(parents, masses, log_volumes, costs, strict=True)
    for parent, mass, log_volume, own in of_parents:
        u = beta_u[parent.type]
        a = beta_a[parent.type]
        if cost == "paper":  # a_j = logistic(lambda (beta_a - sum_h cost^h))
            evidence = a - own
        elif cost == "official_legacy":  # beta_u is the code's b_s, beta_a its b_a
            bracket = -log_volume - dim * u * (LN_2PI + 1)
            evidence = mass * bracket - 5000 * a
        elif cost == "official_fast":
            log_floored = math.log(u**2 + 5e-4)
            bracket = -log_volume - dim * (log_floored + LN_2PI + 1)
            evidence = mass * bracket - 800 * a
        else:  # J. Hui's tutorial: costs are standardised over the parent types at the same position
            rivals = []
            for other, cost_of_other in zip(parents, costs, strict=True):
                if other.position == parent.position:
                    rivals.append(cost_of_other)
            mean = statistics.fmean(rivals)
            deviation = statistics.pstdev(rivals)
            evidence = a + (mean - own) / (deviation + 1e-4)
        logits.append(inverse_temperature * evidence)
    return logits


# ---------------------------------------------------------------------------------------------------- E-step


def ratio_in_groups(
    log_weights: Vector,
    maximum_groups: list[Hashable],
    total_groups: list[Hashable],
    finish: Callable[[float], float] = float,
) -> Vector:
    """``e = exp(w - largest w of its maximum group)``, then e over ``finish(sum of e in its total group)``."""
    largest: dict[Hashable, float] = {}
    for weight, group in zip(log_weights, maximum_groups, strict=True):
        largest[group] = max(weight, largest.get(group, -math.inf))
    shares = []
    totals: dict[Hashable, float] = {}
    groups = zip(log_weights, maximum_groups, total_groups, strict=True)
    for weight, maximum_group, total_group in groups:
        share = math.exp(weight - largest[maximum_group])
        shares.append(share)
        totals[total_group] = totals.get(total_group, 0.0) + share
    ratios = []
    for share, group in zip(shares, total_groups, strict=True):
        divisor = finish(totals[group])
        ratios.append(share / divisor)
    return ratios


def normalise(
    log_weights: Vector,
    children: list[Child],
    parents: list[Parent],
    edges: list[Edge],
    normalisation: Any,
) -> Vector:
    """E-step line 3 of Procedure 1, ``R_ij = a_j p_j / sum_k a_k p_k``, or its replacement in a port."""
    if callable(normalisation):
        return normalisation(log_weights, children, parents, edges)
    of_child: list[Hashable] = [edge.child for edge in edges]
    types = [children[edge.child].type for edge in edges]
    parent_types = [parents[edge.parent].type for edge in edges]
    if normalisation == "all_parents":
        # Procedure 1, official class layer: k over every parent that sees the child
        return ratio_in_groups(log_weights, of_child, of_child)
    if normalisation == "window":
        # k over the types at one position only (Hui, yl-1993, SR-CapsNet)
        positions = [parents[edge.parent].position for edge in edges]
        groups = list(zip(of_child, positions, strict=True))
        return ratio_in_groups(log_weights, groups, groups)
    if normalisation == "official_legacy":  # over positions, separately for each parent type
        pairs = list(zip(types, parent_types, strict=True))
        shared = []
        for edge, kind in zip(edges, parent_types, strict=True):
            child = edge.child if edge.stride_one_child is None else edge.stride_one_child
            shared.append((child, kind))
        return ratio_in_groups(log_weights, pairs, shared, lambda total: total + 1e-7)
    # official_fast: a maximum per child type, floored
    return ratio_in_groups(log_weights, types, of_child, lambda total: max(total, 1e-6))


def initial_couplings(parents: list[Parent], edges: list[Edge], initial: str) -> Vector:
    """Procedure 1, line 2. "types": 1/C (official, Hui); "parents": 1/(parents that see the child) (IBM)."""
    if initial == "types":
        types = {parent.type for parent in parents}
        return [1 / len(types)] * len(edges)
    seen = Counter(edge.child for edge in edges)
    return [1 / seen[edge.child] for edge in edges]


# --------------------------------------------------------------------------------------------- the procedure


def edges_of_parents(parents: list[Parent], edges: list[Edge]) -> list[list[int]]:
    """Indices of the edges of each parent."""
    indices: list[list[int]] = [[] for _ in parents]
    for e, edge in enumerate(edges):
        indices[edge.parent].append(e)
    return indices


def log_weights_of(edges: list[Edge], last: Record) -> Vector:
    """E-step before its normalisation: ``ln (a_j p_j)`` of each edge."""
    log_weights = []
    for edge in edges:
        j = edge.parent
        density = log_density(edge.vote, last.poses[j], last.variances[j])
        log_weights.append(last.log_activations[j] + density)
    return log_weights


def mixing_proportions(masses: Vector) -> tuple[Vector, Vector, Vector]:
    """Logits, logarithms and values of the proportions, which sum to 1 over the layer."""
    whole = sum(masses)
    logits = []
    log_proportions = []
    proportions = []
    for mass in masses:
        log_mass = math.log(mass)
        others = whole - mass
        log_others = math.log(others) if others > 0 else -math.inf
        logits.append(log_mass - log_others)
        log_proportions.append(log_mass - math.log(whole))
        proportions.append(mass / whole)
    return logits, log_proportions, proportions


def em_routing_graph(
    children: list[Child],
    parents: list[Parent],
    edges: list[Edge],
    beta_u: Sequence[float],
    beta_a: Sequence[float],
    *,
    inverse_temperatures: Sequence[float],
    cost: str = "paper",
    normalisation: Any = "all_parents",
    initial: str = "parents",
    damping: float = 0.0,
    min_variance: float = 5e-4,
    mass_epsilon: float = 1e-7,
    activation: str = "description_length",
) -> list[Record]:
    """Procedure 1 on one image, as many iterations as there are inverse temperatures; the last one is the result.

    ``beta_u`` and ``beta_a`` have one number per parent type; under the official costs they are the code's ``b_s`` and
    ``b_a``. ``damping`` is the previous mean's share of the new one, 0.1 in the official code, 0 in the paper; the mean
    before the first is 0. The paper has neither ``min_variance`` nor ``mass_epsilon`` (official: 5e-4, and 1e-7 in
    convolutional or 1e-5 in class layers): both are added, never a bound. A mass of exactly 0 gives mean 0.
    """
    couplings = initial_couplings(parents, edges, initial)
    dim = len(edges[0].vote)
    edges_of = edges_of_parents(parents, edges)

    poses = zeros(len(parents), dim)
    iterations: list[Record] = []
    for inverse_temperature in inverse_temperatures:
        if iterations:  # E-step; one after the last M-step would not change the result
            log_weights = log_weights_of(edges, iterations[-1])
            couplings = normalise(log_weights, children, parents, edges, normalisation)

        masses = []
        new_poses = []
        variances = []
        for j in range(len(parents)):  # M-step
            votes = [edges[e].vote for e in edges_of[j]]
            weights = []  # R_ij <- R_ij a_i
            for e in edges_of[j]:
                child = children[edges[e].child]
                weights.append(couplings[e] * child.activation)
            mass = sum(weights) + mass_epsilon
            before = poses[j]
            pose, variance = gaussian(
                votes,
                weights,
                mass,
                min_variance,
                previous=before,
                damping=damping,
            )
            masses.append(mass)
            new_poses.append(pose)
            variances.append(variance)
        poses = new_poses

        if activation == "description_length":
            logits = activation_logits(
                masses, variances, parents, beta_u, beta_a, cost, inverse_temperature
            )
            log_activations = [log_sigmoid(logit) for logit in logits]
            activations = [sigmoid(logit) for logit in logits]
        else:
            logits, log_activations, activations = mixing_proportions(masses)
        fields = couplings, masses, logits, log_activations, activations, poses, variances
        iterations.append(Record(*fields))
    return iterations


def gaussian(
    votes: list[Vector],
    weights: Vector,
    mass: float,
    min_variance: float,
    *,
    previous: Vector | None = None,
    damping: float = 0.0,
) -> tuple[Vector, Vector]:
    """M-step, lines 2 and 3 of Procedure 1, of one parent: mean and variance of every component."""
    divisor = mass if mass > 0 else 1.0
    pose = []
    variance = []
    for h, component in enumerate(zip(*votes, strict=True)):
        moment = 0.0  # mu_j^h = sum_i R_ij V_ij^h / sum_i R_ij
        for weight, v in zip(weights, component, strict=True):
            moment += weight * v
        mu = moment / divisor
        if previous is not None:
            mu = (1 - damping) * mu + damping * previous[h]
        spread = 0.0  # (sigma_j^h)^2, over sum_i R_ij
        for weight, v in zip(weights, component, strict=True):
            spread += weight * (v - mu) ** 2
        pose.append(mu)
        variance.append(spread / divisor + min_variance)
    return pose, variance


# ----------------------------------------------------------------------------------------------------- votes


def matrix_vote(pose: Sequence[float], transform: Sequence[Sequence[float]]) -> Vector:
    """``V = M W``, the pose on the left, ``pose[4 r + x]`` and ``vote[4 r + c]`` row by row.

    A pose with as many entries as the transform has rows is a matrix of one row: the vector pose of the ablation.
    """
    inner = len(transform)
    rows = len(pose) // inner
    columns = len(transform[0])
    vote = [0.0] * (rows * columns)
    for r, c, x in product(range(rows), range(columns), range(inner)):
        vote[columns * r + c] += pose[inner * r + x] * transform[x][c]
    return vote


vector_vote = matrix_vote
Vote = Callable[[Sequence[float], Sequence[Sequence[float]]], Vector]


def votes_loops(poses: Tensor, weight: Tensor) -> Tensor:
    """Poses ``(b, i, n)`` and transforms ``(i, x, c, j)`` to votes ``(b, i, j, d)``."""
    transforms = weight.double().permute(0, 3, 1, 2).tolist()  # [i j x c]
    votes = []
    for image in poses.double().tolist():
        of_image = []
        for pose, of_child in zip(image, transforms, strict=True):
            of_image.append([matrix_vote(pose, transform) for transform in of_child])
        votes.append(of_image)
    return double(votes)


def class_votes_loops(
    poses: Tensor, weight: Tensor, *, offsets: Tensor | None = None, vote: Vote = matrix_vote
) -> Tensor:
    """Grid of poses ``(b, B, n, h, w)`` to votes ``(b, B * h * w, class, n)``, children ordered type, row, column.

    Every position uses the same transform of ``weight`` ``(B, x, c, class)``; ``offsets`` ``(n, h, w)`` are then added
    to the votes from each position (Coordinate Addition, Hinton 2018, section 3).
    """
    _, types, dim, height, width = poses.shape
    transforms = weight.double().permute(0, 3, 1, 2).tolist()  # [B class x c]
    added = torch.zeros(dim, height, width) if offsets is None else offsets
    images = []
    for image in poses.double().permute(0, 1, 3, 4, 2).tolist():
        children = []
        for b, row, column in product(range(types), range(height), range(width)):
            of_child = [vote(image[b][row][column], transform) for transform in transforms[b]]
            offset = added[:, row, column].tolist()
            for each in of_child:
                for d, added_here in enumerate(offset):
                    each[d] += added_here
            children.append(of_child)
        images.append(children)
    return double(images)


# ---------------------------------------------------------------------------------------------------- layers


def dense_em_loops(
    votes: Tensor, activations: Tensor, beta_u: Tensor, beta_a: Tensor, **options: object
) -> list[Record]:
    """Every child sees every parent: votes ``(b, i, j, d)``, activations ``(b, i)``, betas ``(j,)``.

    ``options`` are those of ``em_routing_graph``; the official normalisations mean nothing in a dense layer, and the
    official class layer uses "all_parents". One record per iteration; the last has the result.
    """
    _, count, types, _ = votes.shape
    parents = [Parent(type=j) for j in range(types)]
    betas = beta_u.tolist(), beta_a.tolist()
    all_votes = votes.double().tolist()
    all_activations = activations.double().tolist()
    images = []
    for vote, activation in zip(all_votes, all_activations, strict=True):
        children = [Child(each) for each in activation]
        edges = []
        for i, j in product(range(count), range(types)):
            edges.append(Edge(i, j, vote[i][j]))
        iterations = em_routing_graph(children, parents, edges, *betas, **options)
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
    of_children = child_types, height, width
    of_parents = parent_types, out_height, out_width
    child_index = {place: index for index, place in enumerate(places_of(*of_children))}
    parent_grid = places_of(*of_parents)
    kernel = places_of(child_types, kernel_height, kernel_width)
    parents = [Parent(type=c, position=(row, column)) for c, row, column in parent_grid]
    betas = beta_u.tolist(), beta_a.tolist()
    grid_of_poses = poses.double().permute(0, 1, 3, 4, 2).tolist()
    grid_of_activations = activations.double().tolist()
    images = []
    for pose, activation in zip(grid_of_poses, grid_of_activations, strict=True):
        children = [Child(activation[b][row][column], type=b) for b, row, column in child_index]
        edges = []
        for j, (c, row, column) in enumerate(parent_grid):
            for b, y, x in kernel:
                below = stride * row + y
                right = stride * column + x
                child = child_index[b, below, right]
                transform = transforms[b][y][x][c]
                value = vote(pose[b][below][right], transform)
                at_stride_one = b, row + y, column + x
                edges.append(Edge(child, j, value, at_stride_one))
        iterations = em_routing_graph(children, parents, edges, *betas, **options)
        images.append((edges, iterations))
    records = []
    for couplings, *others in _records(images, len(child_index), len(parent_grid)):
        couplings = couplings.unflatten(2, of_parents).unflatten(1, of_children)
        *rest, parent_poses, variances = [each.unflatten(1, of_parents) for each in others]
        parent_poses = parent_poses.movedim(-1, 2)
        variances = variances.movedim(-1, 2)
        records.append(Record(couplings, *rest, parent_poses, variances))
    return records


def places_of(types: int, height: int, width: int) -> list[tuple[int, int, int]]:
    """Type, row and column of all capsules of a grid, in their order."""
    return list(product(range(types), range(height), range(width)))


def _records(
    images: list[tuple[list[Edge], list[Record]]], children: int, parents: int
) -> list[Record]:
    """Stack the images: one record per iteration, with children and parents by index."""
    graphs, records_of_images = zip(*images, strict=True)
    records = []
    for records_of_iteration in zip(*records_of_images, strict=True):
        couplings = torch.zeros(len(images), children, parents, dtype=torch.float64)
        of_images = zip(couplings, graphs, records_of_iteration, strict=True)
        for of_image, edges, record in of_images:
            for edge, coupling in zip(edges, record.couplings, strict=True):
                of_image[edge.child, edge.parent] = coupling
        _, *others = zip(*records_of_iteration, strict=True)
        of_parents = [double(field) for field in others]
        records.append(Record(couplings, *of_parents))
    return records


def in_terms_of_the_loops(options: dict[str, Any]) -> dict[str, Any]:
    """Options of ``em_routing_graph`` from arguments of ``EMRouting``, without the betas."""
    same = {"cost", "normalisation", "initial", "damping", "min_variance", "activation"}
    found = {name: options[name] for name in same & options.keys()}
    found["mass_epsilon"] = options["mass_eps"]
    found["inverse_temperatures"] = inverse_temperatures(
        options["inverse_temperature"],
        options["iterations"],
        options["temperature_schedule"],
    )
    return found


def betas_of_the_loops(routing: Any, parents: int, dim: int) -> tuple[Tensor, Tensor]:
    """One pair per parent, converted for ``cost="official_fast"``.

    The loops have the official 800, which is 50 times 16 components, and 5e-4 in place of ``min_variance``: the
    conversion makes ``beta_u^2 + min_variance`` equal in both.
    """
    beta_u = routing.beta_u.detach().double().expand(parents)
    beta_a = routing.beta_a.detach().double().expand(parents)
    if routing.options["cost"] == "official_fast":
        beta_a = beta_a * dim / 16
        difference = routing.options["min_variance"] - 5e-4
        moved = beta_u.square() + difference
        assert (moved > 0).all(), "the loops cannot represent a variance this small"
        beta_u = moved.sqrt()
    return beta_u, beta_a


def parents_by_loops(votes: Tensor, activations: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    options = in_terms_of_the_loops(module.options)
    options["normalisation"] = "all_parents"  # in a dense layer
    _, _, parents, dim = votes.shape
    betas = betas_of_the_loops(module, parents, dim)
    records = dense_em_loops(votes.detach(), activations.detach(), *betas, **options)
    last = records[-1]
    return last.poses, last.activations


def shipped() -> dict[str, dict[str, Any]]:
    """``conf/routing/em*.yaml`` without the options that the contract varies."""
    from tests.reference.em_bridge import PRESETS, class_preset, preset

    # the order decides how switches are paired
    rows = {name: dict(preset(name)) for name in PRESETS}
    for name in PRESETS:
        rows[f"{name}-classes"] = class_preset(name)
    for row in rows.values():
        del row["iterations"], row["backend"]
    return rows


REFERENCE = Reference(
    parents_by_loops,
    switches={
        "iterations": (3, 1, 2, 5),
        "cost": COSTS,
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
    activations="weighing",
    agreeing=True,
)
