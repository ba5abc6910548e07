"""Slow float64 transcription of Heinsen 2019 (arXiv 1911.00792), algorithm 1."""

import math
from itertools import product
from typing import Any

from torch import Tensor

from tests.reference.contract import Reference
from tests.reference.em_loops import log_sigmoid
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
    for b in range(batch):
        vote = votes[b].tolist()
        if bias is not None:
            for i, j, d in product(range(children), range(parents), range(dim)):
                vote[i][j][d] += bias[i % len(bias), j, d].item()
        use_of = [beta_use[i % len(beta_use)].tolist() for i in range(children)]
        ignore_of = [beta_ignore[i % len(beta_ignore)].tolist() for i in range(children)]
        poses, scores = _image(vote, activations[b].tolist(), use_of, ignore_of, iterations)
        all_poses.append(poses)
        all_scores.append(scores)
    return double(all_poses), double(all_scores)


def _image(
    vote: list,
    active: list[float],
    use_of: list[list[float]],
    ignore_of: list[list[float]],
    iterations: int,
) -> tuple[list[list[float]], list[float]]:
    children = range(len(vote))
    parents = range(len(vote[0]))
    dim = len(vote[0][0])
    couplings = [[1 / len(parents) for _ in parents] for _ in children]
    scores: list[float] = []
    poses: list[list[float]] = []
    variances: list[list[float]] = []
    for iteration in range(iterations):
        if iteration:
            for i in children:  # E-step
                logits = []
                for j in parents:
                    logit = log_sigmoid(scores[j])
                    for d in range(dim):
                        logit -= (vote[i][j][d] - poses[j][d]) ** 2 / (2 * variances[j][d])
                        logit -= 0.5 * math.log(variances[j][d])
                    logits.append(logit)
                couplings[i] = softmax_list(logits)
        scores = []
        poses = []
        variances = []
        for j in parents:
            used = [active[i] * couplings[i][j] for i in children]  # D-step
            ignored = [active[i] - used[i] for i in children]
            score = 0.0
            for i in children:
                score += use_of[i][j] * used[i] - ignore_of[i][j] * ignored[i]
            mass = sum(used) + EPS  # M-step
            share = [used[i] / mass for i in children]
            mean = [0.0] * dim
            variance = [EPS] * dim
            for d in range(dim):
                mean[d] = sum(share[i] * vote[i][j][d] for i in children)
                variance[d] += sum(share[i] * (vote[i][j][d] - mean[d]) ** 2 for i in children)
            scores.append(score)
            poses.append(mean)
            variances.append(variance)
    return poses, scores


def parents_by_loops(votes: Tensor, activations: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    learned = module.beta_use, module.beta_ignore, module.bias
    poses, scores = heinsen_loops(votes, activations, *learned, module.options["iterations"])
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
