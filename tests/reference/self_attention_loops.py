"""Slow float64 transcription of self-attention routing (Mazzia, Salvetti and Chiaberge 2021).

With the matrix of children by children as in the paper, one image at a time, on Python floats. Nothing here comes from
the package. Do not make it faster.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.reference.reference import Reference

EPS = 1e-8  # under the root of a length; the paper has none


def exponential_squash_vector(total: list[float], eps: float = EPS) -> list[float]:
    """Their squash, ``(1 - exp(-|s|)) s / |s|``."""
    length = math.sqrt(sum(component * component for component in total) + eps)
    return [(1 - math.exp(-length)) * component / length for component in total]


def exponential_squash_loops(vectors: Tensor, eps: float = EPS) -> Tensor:
    """Their squash on every row of a matrix ``(vector, dim)``."""
    return torch.tensor([exponential_squash_vector(row, eps) for row in vectors.tolist()], dtype=torch.float64)


def self_attention_loops(
    votes: Tensor, *, prior: Tensor | None = None, eps: float = EPS
) -> tuple[Tensor, Tensor, Tensor]:
    """Votes ``(b, i, j, d)`` and a prior ``(j, kind of child)`` to poses, activations and couplings ``(b, i, j)``."""
    batch, children, parents, dim = votes.shape
    all_poses, all_activations, all_couplings = [], [], []
    for b in range(batch):
        vote = votes[b].double().tolist()
        logits = [[0.0] * parents for _ in range(children)]
        for j in range(parents):
            for i in range(children):
                for k in range(children):  # A_j[i, k] = u_ij . u_kj / sqrt(d), summed over k
                    product = 0.0
                    for d in range(dim):
                        product += vote[i][j][d] * vote[k][j][d]
                    logits[i][j] += product / math.sqrt(dim)
        couplings = []
        for i in range(children):
            largest = max(logits[i])
            exponentials = [math.exp(logit - largest) for logit in logits[i]]
            couplings.append([each / sum(exponentials) for each in exponentials])
            for j in range(parents):
                if prior is not None:  # children are ordered (position, kind)
                    couplings[i][j] += prior[j, i % prior.shape[1]].item()
        poses, activations = [], []
        for j in range(parents):
            total = [0.0] * dim
            for d in range(dim):
                for i in range(children):
                    total[d] += couplings[i][j] * vote[i][j][d]
            poses.append(exponential_squash_vector(total, eps))
            activations.append(math.sqrt(sum(each * each for each in poses[-1]) + eps))
        all_poses.append(poses)
        all_activations.append(activations)
        all_couplings.append(couplings)
    return tuple(torch.tensor(each, dtype=torch.float64) for each in (all_poses, all_activations, all_couplings))


REFERENCE = Reference(
    lambda votes, _, module: self_attention_loops(votes, prior=module.prior)[:2],
    switches={"normalisation": ("all_parents", "window"), "prior": (True, False)},
    added=lambda module: 0.0 if module.prior is None else module.prior.sum(),
)
