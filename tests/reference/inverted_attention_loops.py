"""Slow float64 transcription of Tsai, Srivastava, Goh and Salakhutdinov (ICLR 2020), sequential form."""

import math
from typing import Any

from torch import Tensor

from tests.reference.contract import Reference
from tests.reference.loops import dot, double, softmax_list, weighted_sum, zeros

EPS = 1e-5  # of torch.nn.LayerNorm, which the official code uses


def layer_norm(vector: list[float], scale: list[float], shift: list[float]) -> list[float]:
    """``(x - mean) / sqrt(variance + eps)``, with the variance of a population, then scale and shift."""
    mean = sum(vector) / len(vector)
    variance = sum((x - mean) ** 2 for x in vector) / len(vector)
    normalised = []
    for d, component in enumerate(vector):
        standardised = (component - mean) / math.sqrt(variance + EPS)
        normalised.append(scale[d] * standardised + shift[d])
    return normalised


def inverted_attention_loops(
    votes: Tensor, iterations: int, scale: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    """Votes ``(b, i, j, d)`` to poses ``(b, j, d)`` and agreement ``(b, j)``."""
    _, children, parents, dim = votes.shape
    all_poses = []
    agreements = []
    for vote in votes.tolist():
        logits = zeros(children, parents)  # the first r_ij: 1 / J
        for _ in range(iterations):
            couplings = [softmax_list(logits[i]) for i in range(children)]
            totals = [weighted_sum(couplings, vote, j) for j in range(parents)]
            # LN(sum_i r_ij V_ij)
            poses = [layer_norm(total, scale.tolist(), shift.tolist()) for total in totals]
            for i in range(children):
                for j in range(parents):
                    logits[i][j] = dot(vote[i][j], poses[j]) / math.sqrt(dim)
        all_poses.append(poses)
        agreements.append([dot(totals[j], poses[j]) / math.sqrt(dim) for j in range(parents)])
    return double(all_poses), double(agreements)


def parents_by_loops(votes: Tensor, _: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    iterations = module.options["iterations"]
    poses, logits = inverted_attention_loops(votes, iterations, module.scale, module.shift)
    if module.head is not None:
        logits = (poses * module.head.weight[0]).sum(2) + module.head.bias
    return poses, logits.sigmoid()


REFERENCE = Reference(
    parents_by_loops,
    switches={
        "iterations": (2, 1, 3),
        "head": (False, True),
        "normalisation": ("window", "all_parents"),
    },
)
