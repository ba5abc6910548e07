"""Slow float64 transcription of variational Bayes routing (Ribeiro, Leontidis and Kollias 2020, algorithm 1).

Parents at one position see the children of one window; a dense layer is one position that sees all of them.
"""

import math
from collections import Counter
from itertools import chain, product
from typing import Any, NamedTuple

from scipy.special import digamma, logsumexp
from torch import Tensor

from tests.reference.contract import Reference, by_statistics
from tests.reference.loops import double, zeros

LN_2PI = math.log(2 * math.pi)


class Posterior(NamedTuple):
    """One iteration: tensors ``(batch, position, parent, …)``; couplings ``(batch, position, place, parent)``."""

    couplings: Tensor
    masses: Tensor
    poses: Tensor
    log_precisions: Tensor  # E[ln |Lambda_j|]
    log_shares: Tensor  # E[ln pi_j]
    logits: Tensor  # -exp(E[ln pi_j]) S_j


def bayes_loops(
    votes: Tensor,
    activations: Tensor,
    child: Tensor | None = None,
    *,
    iterations: int = 3,
    initial: str = "parents",
    per_window: bool = False,
) -> list[Posterior]:
    """One record per iteration, of votes ``(b, position, place w, parent, d)``, or ``(b, i, j, d)`` of one position.

    ``child`` is the index of the child at each place of each window, ``(p, w)``. The first couplings are equal over all
    "parents" that see a child, or over the "types" of a position, whose parents compete alone if ``per_window``.
    """
    votes = votes.unsqueeze(1) if votes.ndim == 4 else votes
    _, _, places, types, _ = votes.shape
    places_of = [[*range(places)]] if child is None else child.tolist()
    images = []
    for vote, activation in zip(votes.tolist(), activations.tolist(), strict=True):
        image = _image(
            vote,
            activation,
            places_of,
            types,
            iterations,
            initial,
            per_window,
        )
        images.append(image)
    records = []
    for of_images in zip(*images, strict=True):
        fields = zip(*of_images, strict=True)
        records.append(Posterior(*map(double, fields)))
    return records


def _first_couplings(child: list, types: int, initial: str, per_window: bool) -> list:
    windows_of = Counter(chain.from_iterable(child))
    r = []
    for of_position in child:
        of_places = []
        for i in of_position:
            windows = 1 if initial == "types" or per_window else windows_of[i]
            equal = 1 / types / windows
            of_places.append([equal] * types)
        r.append(of_places)
    return r


def _couplings(log_r: list, child: list, types: int, per_window: bool) -> list:
    """Shares of a child over all its parents, or over those of each window."""
    positions = range(len(child))
    places = range(len(child[0]))
    r = [zeros(len(places), types) for _ in positions]
    for p, w in product(positions, places):
        rivals = []
        for q, x in product(positions, places):
            compete = q == p or not per_window
            if compete and child[q][x] == child[p][w]:
                rivals += log_r[q][x]
        log_total = logsumexp(rivals)
        for j, own in enumerate(log_r[p][w]):
            r[p][w][j] = math.exp(own - log_total)
    return r


class _Gaussian(NamedTuple):
    """Factors of a parent; the priors are kappa_0 = psi_0 = 1, nu_0 = dim + 1."""

    kappa: float
    nu: float
    pose: list[float]
    inverse_scale: list[float]
    log_precision: float  # E[ln |Lambda_j|]


def _gaussian(votes: list, weights: list[float], mass: float) -> _Gaussian:
    dim = len(votes[0])
    kappa = 1 + mass
    nu = dim + 1 + mass
    pose = []
    inverse_scale = []
    log_precision = dim * math.log(2)
    for h, component in enumerate(zip(*votes, strict=True)):
        moment = 0.0
        for weight, v in zip(weights, component, strict=True):
            moment += weight * v
        mu = moment / mass
        sigma = 0.0
        for weight, v in zip(weights, component, strict=True):
            sigma += weight * (v - mu) ** 2
        scale = 1 + sigma + mass / kappa * mu**2
        pose.append(mass * mu / kappa)
        inverse_scale.append(scale)
        log_precision += digamma((nu - h) / 2)
        log_precision -= math.log(scale)
    return _Gaussian(kappa, nu, pose, inverse_scale, log_precision)


def _log_density(vote: list, parent: _Gaussian) -> float:
    dim = len(vote)
    distance = dim / parent.kappa
    for v, mean, scale in zip(vote, parent.pose, parent.inverse_scale, strict=True):
        distance += parent.nu * (v - mean) ** 2 / scale
    return 0.5 * (parent.log_precision - dim * LN_2PI - distance)


def _image(
    vote: list,
    activation: list,
    child: list,
    types: int,
    iterations: int,
    initial: str,
    per_window: bool,
) -> list[tuple]:
    positions = range(len(child))
    places = range(len(child[0]))
    records = []
    log_r = None
    for _ in range(iterations):
        if log_r is None:
            r = _first_couplings(child, types, initial, per_window)
        else:
            r = _couplings(log_r, child, types, per_window)
        log_r = [zeros(len(places), types) for _ in positions]
        of_positions = []
        for p in positions:
            active = [activation[i] for i in child[p]]
            weights = zeros(types, len(places))
            for j, w in product(range(types), places):
                weights[j][w] = r[p][w][j] * active[w]
            masses = [sum(of_parent) for of_parent in weights]
            alphas = [1 + mass for mass in masses]  # the prior is alpha_0 = 1
            digamma_of_sum = digamma(sum(alphas))
            of_parents = []
            for j, mass in enumerate(masses):
                votes = [vote[p][w][j] for w in places]
                parent = _gaussian(votes, weights[j], mass)
                log_share = digamma(alphas[j]) - digamma_of_sum
                for w in places:
                    density = _log_density(votes[w], parent)
                    log_r[p][w][j] = log_share + density
                dim = len(parent.pose)
                entropy = 0.5 * (dim * (LN_2PI + 1) - parent.log_precision)
                logit = -math.exp(log_share) * entropy
                fields = mass, parent.pose, parent.log_precision, log_share, logit
                of_parents.append(fields)
            of_positions.append(list(zip(*of_parents, strict=True)))
        records.append((r, *zip(*of_positions, strict=True)))
    return records


def parents_by_loops(votes: Tensor, activations: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    """With running statistics, as in evaluation mode."""
    iterations = module.options["iterations"]
    records = bayes_loops(votes.detach(), activations.detach(), iterations=iterations)
    poses = records[-1].poses[:, 0]
    logits = records[-1].logits[:, 0]
    normalised_poses = by_statistics(module.pose_norm, poses.transpose(1, 2))
    normalised_logits = by_statistics(module.logit_norm, logits)
    return normalised_poses.transpose(1, 2), normalised_logits.sigmoid()


REFERENCE = Reference(
    parents_by_loops,
    switches={
        "iterations": (3, 1, 2, 5),
        "initial": ("parents", "types"),
        "normalisation": ("all_parents", "window"),
        "affine": (True, False),
    },
    normalised=True,
    activations="weighing",
    agreeing=True,
)
