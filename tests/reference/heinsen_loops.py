"""Slow float64 transcription of Heinsen 2019 (arXiv 1911.00792), algorithm 1."""

from itertools import product
from typing import Any

from torch import Tensor

from tests.reference.contract import Reference
from tests.reference.em_loops import Vector, gaussian, log_density, log_sigmoid
from tests.reference.loops import double, softmax_list

EPS = 1e-5  # official code: added to every mass and every variance


def heinsen_loops(
    votes: Tensor,
    activations: Tensor,
    beta_use: Tensor,
    beta_ignore: Tensor,
    bias: Tensor | None,
    iterations: int,
) -> tuple[Tensor, Tensor]:
    """Poses ``(b, j, d)`` and scores ``(b, j)``, of votes without their bias and activations ``f(a_i)``.

    Betas are ``(type, j)``, the bias ``(type, j, d)``: child i is of type i modulo types.
    """
    batch, children, parents, dim = votes.shape
    all_poses = []
    all_scores = []
    types = len(beta_use)
    type_of = [i % types for i in range(children)]
    use_of = beta_use[type_of].tolist()
    ignore_of = beta_ignore[type_of].tolist()
    for b in range(batch):
        vote = votes[b].tolist()
        active = activations[b].tolist()
        if bias is not None:
            for i, j, d in product(range(children), range(parents), range(dim)):
                added = bias[type_of[i], j, d]
                vote[i][j][d] += added.item()
        poses, scores = _image(vote, active, use_of, ignore_of, iterations)
        all_poses.append(poses)
        all_scores.append(scores)
    return double(all_poses), double(all_scores)


def _image(
    vote: list,
    active: Vector,
    use_of: list[Vector],
    ignore_of: list[Vector],
    iterations: int,
) -> tuple[list[Vector], Vector]:
    children = range(len(vote))
    parents = range(len(vote[0]))
    equal = 1 / len(parents)
    couplings = [[equal] * len(parents) for _ in children]
    scores: Vector = []
    poses: list[Vector] = []
    variances: list[Vector] = []
    for iteration in range(iterations):
        if iteration:
            for i in children:  # E-step
                logits = []
                for j in parents:
                    density = log_density(vote[i][j], poses[j], variances[j])
                    logits.append(log_sigmoid(scores[j]) + density)
                couplings[i] = softmax_list(logits)
        scores = []
        poses = []
        variances = []
        for j in parents:
            used = []
            score = 0.0
            for i in children:  # D-step
                used_here = active[i] * couplings[i][j]
                ignored = active[i] - used_here
                score += use_of[i][j] * used_here
                score -= ignore_of[i][j] * ignored
                used.append(used_here)
            mass = sum(used) + EPS  # M-step
            votes = [vote[i][j] for i in children]
            mean, variance = gaussian(votes, used, mass, min_variance=EPS)
            scores.append(score)
            poses.append(mean)
            variances.append(variance)
    return poses, scores


def parents_by_loops(votes: Tensor, activations: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    learned = module.beta_use, module.beta_ignore, module.bias
    iterations = module.options["iterations"]
    poses, scores = heinsen_loops(votes, activations, *learned, iterations)
    return poses, scores.sigmoid()


REFERENCE = Reference(
    parents_by_loops,
    switches={
        "iterations": (3, 1, 2, 5),
        "bias": (True, False),
        "normalisation": ("all_parents", "window"),
    },
    activations="weighing",
)
