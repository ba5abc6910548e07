"""Slow float64 transcription of Heinsen 2019 (arXiv 1911.00792), algorithm 1.

Plain loops over batch (b), child (i), parent (j) and component (d), on Python floats, which are float64. Nothing here
comes from the package, so that a mistake there cannot repeat itself here. Do not make it faster.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.reference.reference import Reference


class Iteration(NamedTuple):
    """One iteration, of all images."""

    couplings: Tensor  # (b, i, j)
    scores: Tensor  # (b, j)
    poses: Tensor  # (b, j, d)
    variances: Tensor  # (b, j, d)


def log_sigmoid(x: float) -> float:
    return min(0.0, x) - math.log1p(math.exp(-abs(x)))


def heinsen_loops(
    votes: Tensor,
    activations: Tensor,
    beta_use: Tensor,
    beta_ignore: Tensor,
    bias: Tensor | None = None,
    *,
    iterations: int = 3,
    eps: float = 1e-5,
) -> list[Iteration]:
    """Every iteration.

    Args:
        votes: without their bias, ``(b, i, j, d)``.
        activations: ``f(a_i)``, ``(b, i)``.
        beta_use, beta_ignore: ``(type, j)``; child i is of type i modulo types.
        bias: ``(type, j, d)``.
        iterations: at least 1.
        eps: added to every mass and every variance.
    """
    batch, children, parents, dim = votes.shape
    found: list[list[Iteration]] = [[] for _ in range(batch)]
    for b in range(batch):
        vote, active = votes[b].tolist(), activations[b].tolist()
        use_of, ignore_of = (
            [beta[i % len(beta)].tolist() for i in range(children)] for beta in (beta_use, beta_ignore)
        )
        for i in range(children):
            for j in range(parents):
                for d in range(dim):
                    vote[i][j][d] += 0.0 if bias is None else bias[i % len(bias), j, d].item()
        couplings = [[1 / parents] * parents for _ in range(children)]
        scores: list[float] = []
        poses: list[list[float]] = []
        variances: list[list[float]] = []
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
                    largest = max(logits)
                    whole = sum(math.exp(logit - largest) for logit in logits)
                    couplings[i] = [math.exp(logit - largest) / whole for logit in logits]
            used = [[active[i] * couplings[i][j] for j in range(parents)] for i in range(children)]  # D-step
            ignored = [[active[i] - used[i][j] for j in range(parents)] for i in range(children)]
            scores, poses, variances = [], [], []
            for j in range(parents):  # M-step
                scores.append(sum(use_of[i][j] * used[i][j] - ignore_of[i][j] * ignored[i][j] for i in range(children)))
                mass = sum(used[i][j] for i in range(children)) + eps
                mean = [sum(used[i][j] * vote[i][j][d] for i in range(children)) / mass for d in range(dim)]
                poses.append(mean)
                variances.append(
                    [
                        sum(used[i][j] * (vote[i][j][d] - mean[d]) ** 2 for i in range(children)) / mass + eps
                        for d in range(dim)
                    ]
                )
            as_tensors = (torch.tensor(each, dtype=torch.float64) for each in (couplings, scores, poses, variances))
            found[b].append(Iteration(*as_tensors))
    by_iteration = zip(*found, strict=True)
    return [Iteration(*(torch.stack(parts) for parts in zip(*images, strict=True))) for images in by_iteration]


def parents_by_loops(votes: Tensor, activations: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    learned = module.beta_use, module.beta_ignore, module.bias
    last = heinsen_loops(votes, activations, *learned, **module.options)[-1]
    return last.poses, last.scores.sigmoid()


REFERENCE = Reference(
    parents_by_loops,
    switches={"iterations": (3, 1, 2, 5), "bias": (True, False), "normalisation": ("all_parents", "window")},
)
