"""Slow float64 transcription of self-attention routing (Mazzia, Salvetti and Chiaberge 2021).

With the matrix of children by children as in the paper.
"""

import math

from torch import Tensor

from tests.reference.contract import Reference, with_lengths
from tests.reference.loops import dot, double, norm, softmax_list, weighted_sum, zeros


def exponential_squash_vector(total: list[float]) -> list[float]:
    """Their squash, ``(1 - exp(-|s|)) s / |s|``."""
    length = norm(total)
    return [(1 - math.exp(-length)) * component / length for component in total]


def self_attention_loops(votes: Tensor, prior: Tensor | None = None) -> Tensor:
    """Votes ``(b, i, j, d)`` and a prior ``(j, kind of child)`` to poses ``(b, j, d)``."""
    _, children, parents, dim = votes.shape
    results = []
    for vote in votes.tolist():
        logits = zeros(children, parents)
        for i in range(children):
            for j in range(parents):
                for k in range(children):  # A_j[i, k] = u_ij . u_kj / sqrt(d), summed over k
                    logits[i][j] += dot(vote[i][j], vote[k][j]) / math.sqrt(dim)
        couplings = [softmax_list(logits[i]) for i in range(children)]
        if prior is not None:  # children are ordered (position, kind)
            for i in range(children):
                for j in range(parents):
                    couplings[i][j] += prior[j, i % prior.shape[1]].item()
        totals = [weighted_sum(couplings, vote, j) for j in range(parents)]
        results.append([exponential_squash_vector(total) for total in totals])
    return double(results)


REFERENCE = Reference(
    lambda votes, _, module: with_lengths(self_attention_loops(votes, module.prior)),
    switches={"normalisation": ("all_parents", "window"), "prior": (True, False)},
    added=lambda module: 0.0 if module.prior is None else module.prior.sum(),
)
