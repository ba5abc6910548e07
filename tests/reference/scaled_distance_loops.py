"""Slow float64 transcription of scaled-distance agreement (Peer, Stabinger and Rodriguez-Sanchez 2018)."""

import math

from torch import Tensor

from tests.reference.contract import Reference, with_lengths
from tests.reference.loops import double, norm, softmax_list, squash_vector, weighted_sum, zeros


def scaled_distance_loops(
    votes: Tensor, lengths: Tensor, *, iterations: int, share: float, bias: Tensor | None
) -> Tensor:
    """Votes ``(b, i, j, d)``, lengths ``(b, i)`` to poses ``(b, j, d)``."""
    _, children, parents, dim = votes.shape
    offset = zeros(parents, dim) if bias is None else bias.tolist()
    results = []
    for vote, sizes in zip(votes.tolist(), lengths.tolist(), strict=True):
        for i in range(children):  # u_hat <- u_hat min(|u_hat|, |u_i|) / |u_hat|
            for j in range(parents):
                size = norm(vote[i][j])
                vote[i][j] = [min(size, sizes[i]) / size * x for x in vote[i][j]]
        logits = zeros(children, parents)
        for _ in range(iterations):
            couplings = [softmax_list(logits[i]) for i in range(children)]
            poses = []
            distances = zeros(children, parents)
            for j in range(parents):
                total = weighted_sum(couplings, vote, j)
                poses.append(squash_vector([total[d] + offset[j][d] for d in range(dim)]))
                for i in range(children):
                    difference = [poses[j][d] - vote[i][j][d] for d in range(dim)]
                    distances[i][j] = norm(difference)
            d_o = sum(map(sum, distances)) / (children * parents)  # of this image alone
            d_p = d_o / 2
            t = math.log(share * (parents - 1) / (1 - share)) / (d_p - d_o)
            for i in range(children):
                for j in range(parents):
                    logits[i][j] = t * distances[i][j]
        results.append(poses)
    return double(results)


REFERENCE = Reference(
    lambda votes, activations, module: with_lengths(
        scaled_distance_loops(votes, activations, **module.options, bias=module.bias)
    ),
    switches={
        "iterations": (3, 1, 2),
        "share": (0.9, 0.5),
        "bias": (True, False),
        "normalisation": ("window", "all_parents"),
    },
    activations="needed",
    agreeing=True,
)
