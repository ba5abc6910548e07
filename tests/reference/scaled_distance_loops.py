"""Slow float64 transcription of scaled-distance agreement (Peer, Stabinger and Rodriguez-Sanchez 2018).

Plain loops over batch (b), child (i), parent (j) and component (d). Nothing here comes from the package. Do not make
it faster.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.reference.loops import EPS, softmax_list, squash_vector
from tests.reference.reference import Reference, with_lengths


def norm(vector: list[float]) -> float:
    return math.sqrt(sum(x * x for x in vector) + EPS)


def scaled_distance_loops(
    votes: Tensor, lengths: Tensor, *, iterations: int = 3, share: float = 0.9, bias: Tensor | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Votes ``(b, i, j, d)``, lengths ``(b, i)`` to poses ``(b, j, d)``, couplings ``(b, i, j)`` of each pass."""
    batch, children, parents, dim = votes.shape
    offset = [[0.0] * dim for _ in range(parents)] if bias is None else bias.double().tolist()
    all_poses, passes = [], [[] for _ in range(iterations)]
    for b in range(batch):
        vote = votes[b].double().tolist()
        for i in range(children):  # u_hat <- u_hat min(|u_hat|, |u_i|) / |u_hat|
            for j in range(parents):
                size = norm(vote[i][j])
                shorter = min(size, lengths[b, i].item()) / size
                vote[i][j] = [shorter * x for x in vote[i][j]]
        logits = [[0.0] * parents for _ in range(children)]
        poses: list[list[float]] = []
        for iteration in range(iterations):
            couplings = [softmax_list(logits[i]) for i in range(children)]
            passes[iteration].append(couplings)
            poses = []
            for j in range(parents):
                total = [
                    sum(couplings[i][j] * vote[i][j][d] for i in range(children)) + offset[j][d] for d in range(dim)
                ]
                poses.append(squash_vector(total))
            distances = [
                [norm([poses[j][d] - vote[i][j][d] for d in range(dim)]) for j in range(parents)]
                for i in range(children)
            ]
            d_o = sum(map(sum, distances)) / (children * parents)  # of this image alone
            d_p = d_o / 2
            t = math.log(share * (parents - 1) / (1 - share)) / (d_p - d_o) if parents > 1 else 0.0
            logits = [[t * distances[i][j] for j in range(parents)] for i in range(children)]
        all_poses.append(poses)
    doubles = [torch.tensor(each, dtype=torch.float64) for each in (all_poses, *passes)]
    return doubles[0], doubles[1:]


REFERENCE = Reference(
    lambda votes, activations, module: with_lengths(
        scaled_distance_loops(votes, activations, **module.options, bias=module.bias)[0]
    ),
    switches={
        "iterations": (3, 1, 2),
        "share": (0.9, 0.5),
        "bias": (True, False),
        "normalisation": ("window", "all_parents"),
    },
)
