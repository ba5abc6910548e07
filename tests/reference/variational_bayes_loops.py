"""Slow float64 transcription of variational Bayes routing (Ribeiro, Leontidis and Kollias 2020, algorithm 1).

Parents at one position see the children of one window; a dense layer is one position that sees all of them.
"""

import math
from itertools import product
from typing import Any, NamedTuple

import torch
from scipy.special import digamma, logsumexp
from torch import Tensor

from tests.reference.contract import Reference, by_statistics
from tests.reference.loops import double, zeros


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
    batch, _, places, types, dim = votes.shape
    places_of = (torch.arange(places)[None] if child is None else child).tolist()
    images = []
    for b in range(batch):
        image = _image(
            votes[b].tolist(),
            activations[b].tolist(),
            places_of,
            (types, dim),
            iterations,
            initial,
            per_window,
        )
        images.append(image)
    records = []
    for t in range(iterations):
        fields = [double([image[t][number] for image in images]) for number in range(6)]
        records.append(Posterior(*fields))
    return records


def _first_couplings(child: list, types: int, initial: str, per_window: bool) -> list:
    seen = [i for of_position in child for i in of_position]
    r = [zeros(len(of_position), types) for of_position in child]
    for p, of_position in enumerate(child):
        for w, i in enumerate(of_position):
            windows = 1 if initial == "types" or per_window else seen.count(i)
            r[p][w] = [1 / types / windows] * types
    return r


def _couplings(log_r: list, child: list, types: int, per_window: bool) -> list:
    """Shares of a child over all its parents, or over those of each window."""
    positions = range(len(child))
    places = range(len(child[0]))
    r = [zeros(len(places), types) for _ in positions]
    for p, w, j in product(positions, places, range(types)):
        rivals = []
        for q, x, k in product(positions, places, range(types)):
            if child[q][x] == child[p][w] and (q == p or not per_window):
                rivals.append(log_r[q][x][k])
        r[p][w][j] = math.exp(log_r[p][w][j] - logsumexp(rivals))
    return r


def _image(
    vote: list,
    activation: list,
    child: list,
    sizes: tuple[int, int],
    iterations: int,
    initial: str,
    per_window: bool,
) -> list[tuple]:
    types, dim = sizes
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
            q = zeros(types, len(places))
            for j, w in product(range(types), places):
                q[j][w] = r[p][w][j] * activation[child[p][w]]
            mass = [sum(q[j]) for j in range(types)]
            of_parents = []
            for j in range(types):  # priors: alpha_0 = kappa_0 = psi_0 = 1, nu_0 = dim + 1
                alpha = 1 + mass[j]
                kappa = 1 + mass[j]
                nu = dim + 1 + mass[j]
                pose = []
                inverse_scale = []
                for d in range(dim):
                    mu = sum(q[j][w] * vote[p][w][j][d] for w in places) / mass[j]
                    sigma = sum(q[j][w] * (vote[p][w][j][d] - mu) ** 2 for w in places)
                    pose.append(mass[j] * mu / kappa)
                    inverse_scale.append(1 + sigma + mass[j] / kappa * mu**2)
                e_lambda = dim * math.log(2) - sum(math.log(each) for each in inverse_scale)
                e_lambda += sum(digamma((nu - h) / 2) for h in range(dim))
                e_pi = digamma(alpha) - digamma(sum(1 + each for each in mass))
                for w in places:
                    distance = 0.0
                    for d in range(dim):
                        distance += (vote[p][w][j][d] - pose[d]) ** 2 / inverse_scale[d]
                    log_density = 0.5 * e_lambda - 0.5 * dim * math.log(2 * math.pi)
                    log_r[p][w][j] = e_pi + log_density - 0.5 * (dim / kappa + nu * distance)
                entropy = 0.5 * dim * math.log(2 * math.pi * math.e) - 0.5 * e_lambda
                of_parents.append((mass[j], pose, e_lambda, e_pi, -math.exp(e_pi) * entropy))
            of_positions.append(list(zip(*of_parents, strict=True)))
        records.append((r, *zip(*of_positions, strict=True)))
    return records


def parents_by_loops(votes: Tensor, activations: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    """With running statistics, as in evaluation mode."""
    iterations = module.options["iterations"]
    last = bayes_loops(votes.detach(), activations.detach(), iterations=iterations)[-1]
    poses = by_statistics(module.pose_norm, last.poses[:, 0].transpose(1, 2)).transpose(1, 2)
    return poses, by_statistics(module.logit_norm, last.logits[:, 0]).sigmoid()


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
