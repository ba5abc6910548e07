"""Slow float64 transcription of Tsai, Srivastava, Goh and Salakhutdinov (ICLR 2020), sequential form.

Plain loops over batch (b), child (i), parent (j) and component (d). Nothing here comes from the package. Do not make
it faster.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.reference.loops import softmax_list
from tests.reference.reference import Reference

EPS = 1e-5  # of torch.nn.LayerNorm, which the official code uses


def layer_norm(vector: list[float], scale: list[float], shift: list[float]) -> list[float]:
    """``(x - mean) / sqrt(variance + eps)``, with the variance of a population, then scale and shift."""
    mean = sum(vector) / len(vector)
    variance = sum((x - mean) ** 2 for x in vector) / len(vector)
    return [scale[d] * (vector[d] - mean) / math.sqrt(variance + EPS) + shift[d] for d in range(len(vector))]


def inverted_attention_loops(
    votes: Tensor, *, iterations: int = 2, scale: Tensor | None = None, shift: Tensor | None = None
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Votes ``(b, i, j, d)`` to poses ``(b, j, d)``, agreement ``(b, j)``, couplings ``(b, i, j)`` of each pass."""
    batch, children, parents, dim = votes.shape
    gain = [1.0] * dim if scale is None else scale.double().tolist()
    offset = [0.0] * dim if shift is None else shift.double().tolist()
    all_poses, agreements, passes = [], [], [[] for _ in range(iterations)]
    for b in range(batch):
        vote = votes[b].double().tolist()
        poses: list[list[float]] = []
        total: list[list[float]] = []
        for iteration in range(iterations):
            couplings = []
            for i in range(children):  # the first: 1 / J; then r_ij <- softmax_j of <V_ij, p_j> / sqrt(d)
                logits = [0.0] * parents
                if iteration:
                    for j in range(parents):
                        logits[j] = sum(vote[i][j][d] * poses[j][d] for d in range(dim)) / math.sqrt(dim)
                couplings.append(softmax_list(logits))
            total = [
                [sum(couplings[i][j] * vote[i][j][d] for i in range(children)) for d in range(dim)]
                for j in range(parents)
            ]
            poses = [layer_norm(total[j], gain, offset) for j in range(parents)]  # p_j <- LN(sum_i r_ij V_ij)
            passes[iteration].append(couplings)
        all_poses.append(poses)
        agreements.append([sum(total[j][d] * poses[j][d] for d in range(dim)) / math.sqrt(dim) for j in range(parents)])
    doubles = [torch.tensor(each, dtype=torch.float64) for each in (all_poses, agreements, *passes)]
    return doubles[0], doubles[1], doubles[2:]


def parents_by_loops(votes: Tensor, _: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    poses, logits, _ = inverted_attention_loops(votes, **module.options, scale=module.scale, shift=module.shift)
    if module.head is not None:
        logits = (poses * module.head.weight[0]).sum(2) + module.head.bias
    return poses, logits.sigmoid()


REFERENCE = Reference(
    parents_by_loops,
    switches={"iterations": (2, 1, 3), "head": (False, True), "normalisation": ("window", "all_parents")},
)
