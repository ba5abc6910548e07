"""Slow float64 transcription of Heinsen 2019 (arXiv 1911.00792), algorithm 1."""

import math
from typing import Any

import torch
from torch import Tensor

from tests.reference.contract import Reference
from tests.reference.em_loops import log_sigmoid
from tests.reference.loops import softmax_list

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
    all_poses, all_scores = [], []
    for b in range(batch):
        vote, active = votes[b].tolist(), activations[b].tolist()
        use_of, ignore_of = (
            [beta[i % len(beta)].tolist() for i in range(children)]
            for beta in (beta_use, beta_ignore)
        )
        for i in range(children):
            for j in range(parents):
                for d in range(dim):
                    vote[i][j][d] += 0.0 if bias is None else bias[i % len(bias), j, d].item()
        couplings = [[1 / parents] * parents for _ in range(children)]
        scores, poses, variances = [], [], []
        for iteration in range(iterations):
            if iteration:
                for i in range(children):  # E-step
                    logits = []
                    for j in range(parents):
                        logit = log_sigmoid(scores[j])
                        for d in range(dim):
                            logit -= (vote[i][j][d] - poses[j][d]) ** 2 / (2 * variances[j][d])
                            logit -= 0.5 * math.log(variances[j][d])
                        logits.append(logit)
                    couplings[i] = softmax_list(logits)
            used = [
                [active[i] * couplings[i][j] for j in range(parents)] for i in range(children)
            ]  # D-step
            ignored = [[active[i] - used[i][j] for j in range(parents)] for i in range(children)]
            scores, poses, variances = [], [], []
            for j in range(parents):  # M-step
                scores.append(
                    sum(
                        use_of[i][j] * used[i][j] - ignore_of[i][j] * ignored[i][j]
                        for i in range(children)
                    )
                )
                mass = sum(used[i][j] for i in range(children)) + EPS
                share = [used[i][j] / mass for i in range(children)]
                mean = [sum(share[i] * vote[i][j][d] for i in range(children)) for d in range(dim)]
                squares = [
                    [(vote[i][j][d] - mean[d]) ** 2 for d in range(dim)] for i in range(children)
                ]
                poses.append(mean)
                variances.append(
                    [
                        EPS + sum(share[i] * squares[i][d] for i in range(children))
                        for d in range(dim)
                    ]
                )
        all_poses.append(poses)
        all_scores.append(scores)
    return torch.tensor(all_poses, dtype=torch.float64), torch.tensor(
        all_scores, dtype=torch.float64
    )


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
