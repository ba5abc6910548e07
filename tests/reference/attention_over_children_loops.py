"""Slow float64 transcription of attention routing (Choi and others 2019)."""

import math
from typing import Any

import torch
from torch import Tensor

from tests.reference.contract import Reference
from tests.reference.loops import length_loops, softmax_list


def attention_over_children_loops(
    votes: Tensor, attention: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """Votes ``(b, i, j, d)``, attention ``(j, d, k, i)`` to poses ``(b, j, d)``."""
    _, children, parents, dim = votes.shape
    wa, wc, bc = attention.tolist(), weight.tolist(), bias.tolist()
    results = []
    for vote in votes.tolist():
        poses = []
        for j in range(parents):
            pairs = [(k, d) for k in range(children) for d in range(dim)]
            logits = [
                sum(wa[j][d][k][i] * vote[k][j][d] for k, d in pairs) for i in range(children)
            ]
            alpha = softmax_list(logits)  # over the children
            total = [sum(alpha[i] * vote[i][j][d] for i in range(children)) for d in range(dim)]
            poses.append(
                [
                    math.tanh(sum(total[d] * wc[j][d][e] for d in range(dim)) + bc[j][e])
                    for e in range(dim)
                ]
            )
        results.append(poses)
    return torch.tensor(results, dtype=torch.float64)


def parents_by_loops(votes: Tensor, _: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    poses = attention_over_children_loops(votes, module.attention, module.weight, module.bias)
    return poses, length_loops(poses) / votes.shape[3] ** 0.5


REFERENCE = Reference(parents_by_loops, exchangeable=False)
