"""Slow float64 transcription of attention routing (Choi and others 2019)."""

import math
from itertools import product
from typing import Any

from torch import Tensor

from tests.reference.contract import Reference
from tests.reference.loops import double, length_loops, softmax_list


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
            logits = [0.0] * children
            for i, k, d in product(range(children), range(children), range(dim)):
                logits[i] += wa[j][d][k][i] * vote[k][j][d]
            alpha = softmax_list(logits)  # over the children
            total = [0.0] * dim
            for i, d in product(range(children), range(dim)):
                total[d] += alpha[i] * vote[i][j][d]
            pose = []
            for e in range(dim):
                linear = sum(total[d] * wc[j][d][e] for d in range(dim))
                pose.append(math.tanh(linear + bc[j][e]))
            poses.append(pose)
        results.append(poses)
    return double(results)


def parents_by_loops(votes: Tensor, _: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    poses = attention_over_children_loops(votes, module.attention, module.weight, module.bias)
    return poses, length_loops(poses) / votes.shape[3] ** 0.5


REFERENCE = Reference(parents_by_loops, exchangeable=False)
