"""Slow float64 transcription of self-routing (Hahn, Pyeon and Kim, NeurIPS 2019, section 3)."""

from typing import Any

import torch
from torch import Tensor

from tests.reference.contract import Reference
from tests.reference.loops import dot, softmax_list, weighted_sum


def self_routing_loops(
    votes: Tensor, poses: Tensor, activations: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Poses ``(b, j, d)`` and activations ``(b, j)`` of the parents.

    Arguments: votes ``W^pose u``, poses ``u`` ``(b, i, c)``, activations ``a`` of the children (all 0 counts as all
    equal), ``W^route`` ``(type, j, c)``, and its bias ``(type, j)``. Child i is of type i modulo types.
    """
    _, children, parents, dim = votes.shape
    types = len(weight)
    results, activities = [], []
    for vote, pose, active in zip(
        votes.tolist(), poses.tolist(), activations.tolist(), strict=True
    ):
        active = active if sum(active) else [1.0] * children
        assigned = []  # c_ij a_i, c_ij = softmax(W^route u_i + b)
        for i in range(children):
            logits = [
                dot(weight[i % types, j].tolist(), pose[i]) + bias[i % types, j].item()
                for j in range(parents)
            ]
            assigned.append([coupling * active[i] for coupling in softmax_list(logits)])
        masses = [sum(assigned[i][j] for i in range(children)) for j in range(parents)]
        activities.append(
            [mass / sum(active) for mass in masses]
        )  # a_j = sum_i c_ij a_i / sum_i a_i
        totals = [weighted_sum(assigned, vote, j) for j in range(parents)]
        results.append([[totals[j][d] / masses[j] for d in range(dim)] for j in range(parents)])
    return torch.tensor(results, dtype=torch.float64), torch.tensor(activities, dtype=torch.float64)


def parents_by_loops(votes: Tensor, activations: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    """The children's poses are their votes, see ``factored`` of the contract."""
    return self_routing_loops(votes, votes.flatten(2), activations, module.weight, module.bias)


REFERENCE = Reference(
    parents_by_loops,
    switches={"normalisation": ("window", "all_parents")},
    elsewhere=("poses",),
    backends=("reference", "matmul", "fused"),
    activations="weighing",
)
