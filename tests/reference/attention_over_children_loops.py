"""Slow float64 transcription of attention routing (Choi and others 2019): plain loops, nothing of the package."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.reference.loops import length_loops, softmax_list
from tests.reference.reference import Reference


def attention_over_children_loops(
    votes: Tensor, attention: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Votes ``(b, i, j, d)``, attention ``(j, d, k, i)`` to poses ``(b, j, d)`` and couplings ``(b, j, i)``."""
    batch, children, parents, dim = votes.shape
    wa, wc, bc = attention.double().tolist(), weight.double().tolist(), bias.double().tolist()
    all_poses, all_alpha = [], []
    for b in range(batch):
        vote = votes[b].double().tolist()
        poses, alphas = [], []
        for j in range(parents):
            logits = [0.0] * children
            for i in range(children):
                for k in range(children):
                    for d in range(dim):
                        logits[i] += wa[j][d][k][i] * vote[k][j][d]
            alpha = softmax_list(logits)  # over the children
            total = [sum(alpha[i] * vote[i][j][d] for i in range(children)) for d in range(dim)]
            poses.append([math.tanh(sum(total[d] * wc[j][d][e] for d in range(dim)) + bc[j][e]) for e in range(dim)])
            alphas.append(alpha)
        all_poses.append(poses)
        all_alpha.append(alphas)
    return torch.tensor(all_poses, dtype=torch.float64), torch.tensor(all_alpha, dtype=torch.float64)


def parents_by_loops(votes: Tensor, _: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    poses, _ = attention_over_children_loops(votes, module.attention, module.weight, module.bias)
    return poses, length_loops(poses) / votes.shape[3] ** 0.5


REFERENCE = Reference(parents_by_loops, exchangeable=False)
