"""Slow float64 transcription of self-routing (Hahn, Pyeon and Kim, NeurIPS 2019, section 3)."""

from typing import Any

from torch import Tensor

from tests.reference.contract import Reference
from tests.reference.loops import dot, double, softmax_list, weighted_sum, zeros


def self_routing_loops(
    votes: Tensor, poses: Tensor, activations: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Poses ``(b, j, d)`` and activations ``(b, j)`` of the parents.

    Arguments: votes ``W^pose u``, poses ``u`` ``(b, i, c)``, activations ``a`` of the children (all 0 counts as all
    equal), ``W^route`` ``(type, j, c)``, and its bias ``(type, j)``. Child i is of type i modulo types.
    """
    _, children, parents, dim = votes.shape
    types = len(weight)
    images = zip(votes.tolist(), poses.tolist(), activations.tolist(), strict=True)
    results = []
    activities = []
    for vote, pose, active in images:
        active = active if sum(active) else [1.0] * children
        assigned = zeros(children, parents)  # c_ij a_i, c_ij = softmax(W^route u_i + b)
        for i in range(children):
            kind = i % types
            logits = [0.0] * parents
            for j in range(parents):
                logits[j] = dot(weight[kind, j].tolist(), pose[i]) + bias[kind, j].item()
            couplings = softmax_list(logits)
            for j in range(parents):
                assigned[i][j] = couplings[j] * active[i]
        of_parents = []
        of_activities = []
        for j in range(parents):
            mass = sum(assigned[i][j] for i in range(children))
            of_activities.append(mass / sum(active))  # a_j = sum_i c_ij a_i / sum_i a_i
            total = weighted_sum(assigned, vote, j)
            of_parents.append([total[d] / mass for d in range(dim)])
        results.append(of_parents)
        activities.append(of_activities)
    return double(results), double(activities)


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
