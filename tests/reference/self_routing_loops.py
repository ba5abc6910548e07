"""Slow float64 transcription of self-routing (Hahn, Pyeon and Kim, NeurIPS 2019, section 3).

Plain loops over batch (b), child (i), parent (j) and component (d), on Python floats, which are float64. Nothing here
comes from the package, so that a mistake there cannot repeat itself here. Do not make it faster.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.reference.reference import Reference


def softmax_list(logits: list[float]) -> list[float]:
    largest = max(logits)
    exponentials = [math.exp(logit - largest) for logit in logits]
    return [exponential / sum(exponentials) for exponential in exponentials]


def self_routing_loops(
    votes: Tensor, poses: Tensor, activations: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Poses ``(b, j, d)`` and activations ``(b, j)`` of the parents.

    Args:
        votes: ``W^pose u``, ``(b, i, j, d)``.
        poses: ``u``, ``(b, i, c)``.
        activations: ``a``, ``(b, i)``; if all of an image are 0, children count the same.
        weight, bias: ``W^route``, ``(type, j, c)``, and its bias ``(type, j)``; child i is of type i modulo types.
    """
    batch, children, parents, dim = votes.shape
    types = len(weight)
    results, activities = [], []
    for b in range(batch):
        vote, pose, active = votes[b].tolist(), poses[b].tolist(), activations[b].tolist()
        if sum(active) == 0:
            active = [1.0] * children
        couplings = []  # c_ij = softmax(W^route u_i + b)
        for i in range(children):
            logits = []
            for j in range(parents):
                logit = bias[i % types, j].item()
                for c, component in enumerate(pose[i]):
                    logit += weight[i % types, j, c].item() * component
                logits.append(logit)
            couplings.append(softmax_list(logits))
        results.append([])
        activities.append([])
        for j in range(parents):
            given = sum(couplings[i][j] * active[i] for i in range(children))
            activities[-1].append(given / sum(active))  # a_j = sum_i c_ij a_i / sum_i a_i
            total = [0.0] * dim
            for d in range(dim):  # u_j = sum_i c_ij a_i u_hat_ij / sum_i c_ij a_i
                for i in range(children):
                    total[d] += couplings[i][j] * active[i] * vote[i][j][d] / given
            results[-1].append(total)
    return torch.tensor(results, dtype=torch.float64), torch.tensor(activities, dtype=torch.float64)


def parents_by_loops(votes: Tensor, activations: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    """The children's poses are their votes, see ``factored`` of the contract."""
    return self_routing_loops(votes, votes.flatten(2), activations, module.weight, module.bias)


REFERENCE = Reference(
    parents_by_loops,
    switches={"normalisation": ("window", "all_parents")},
    elsewhere=("poses",),
    backends=("reference", "matmul", "fused"),
)
