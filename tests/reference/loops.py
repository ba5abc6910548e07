"""Slow float64 transcriptions of Sabour, Frosst and Hinton (NeurIPS 2017): the reference of the fast versions.

Plain loops over batch (b), child (i), parent (j) and component (d), on Python floats, which are float64.
Nothing here comes from the package, so that a mistake there cannot repeat itself here. Do not make it faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

EPS = 1e-8  # under the root of squash and length; the paper and the official code have none


def squash_vector(total: list[float], eps: float = EPS) -> list[float]:
    """Equation 1: ``|s|^2 / (1 + |s|^2) * s / |s|``."""
    squared = 0.0
    for component in total:
        squared += component * component
    factor = squared / (1 + squared) / math.sqrt(squared + eps)
    return [factor * component for component in total]


def squash_loops(vectors: Tensor, eps: float = EPS) -> Tensor:
    """Equation 1 on every row of a matrix ``(vector, dim)``."""
    return torch.tensor([squash_vector(row, eps) for row in vectors.tolist()], dtype=torch.float64)


def length_loops(poses: Tensor, eps: float = EPS) -> Tensor:
    """Length of every pose of ``(batch, capsule, dim)``."""
    lengths = []
    for image in poses.tolist():
        lengths.append([])
        for pose in image:
            squared = 0.0
            for component in pose:
                squared += component * component
            lengths[-1].append(math.sqrt(squared + eps))
    return torch.tensor(lengths, dtype=torch.float64)


def half_squash_vector(total: list[float]) -> list[float]:
    """``|s|^2 / (0.5 + |s|^2) * s / |s|``, of ports."""
    squared = sum(component * component for component in total)
    factor = squared / (0.5 + squared) / math.sqrt(squared + EPS)
    return [factor * component for component in total]


def softmax_list(logits: list[float]) -> list[float]:
    """Equation 3."""
    largest = max(logits)
    exponentials = [math.exp(logit - largest) for logit in logits]
    whole = sum(exponentials)
    return [exponential / whole for exponential in exponentials]


def dynamic_routing_loops(
    votes: Tensor,
    *,
    iterations: int = 3,
    bias: Tensor | None = None,
    leaky: bool = False,
    prior: Tensor | None = None,
    replace: bool = False,
    squash: Callable[[list[float]], list[float]] = squash_vector,
) -> Tensor:
    """Procedure 1, one image at a time: votes ``(b, i, j, d)`` to poses ``(b, j, d)``.

    From the official code: ``bias`` ``(j, d)`` is added to the total input in each iteration; ``leaky`` adds a
    destination whose logit stays 0 and drops its share.
    ``prior`` ``(j, type)`` are logits to begin with, children being ordered (position, type); ``replace`` forgets what
    earlier iterations added to them. ``squash`` is another function of the total input.
    """
    batch, children, parents, dim = votes.shape
    offset = [[0.0] * dim for _ in range(parents)] if bias is None else bias.double().tolist()
    results = []
    for b in range(batch):
        vote = votes[b].double().tolist()
        start = [[0.0] * parents for _ in range(children)]  # line 2: for all i, j: b_ij <- 0
        if prior is not None:
            start = [[prior[j, i % prior.shape[1]].item() for j in range(parents)] for i in range(children)]
        logits = [list(row) for row in start]
        poses: list[list[float]] = []
        for _ in range(iterations):  # line 3
            couplings = []
            for i in range(children):  # line 4: c_i <- softmax(b_i)
                destinations = [*logits[i], 0.0] if leaky else logits[i]
                couplings.append(softmax_list(destinations)[:parents])
            poses = []
            for j in range(parents):
                total = [0.0] * dim
                for d in range(dim):  # line 5: s_j <- sum_i c_ij u_hat_j|i
                    for i in range(children):
                        total[d] += couplings[i][j] * vote[i][j][d]
                    total[d] += offset[j][d]
                poses.append(squash(total))  # line 6: v_j <- squash(s_j)
            if replace:
                logits = [list(row) for row in start]
            for i in range(children):  # line 7: b_ij <- b_ij + u_hat_j|i . v_j
                for j in range(parents):
                    for d in range(dim):
                        logits[i][j] += vote[i][j][d] * poses[j][d]
        results.append(poses)
    return torch.tensor(results, dtype=torch.float64)


def uniform_routing_loops(votes: Tensor, *, bias: Tensor | None = None, leaky: bool = False) -> Tensor:
    """Every child gives each parent the same share: one over the parents, and one more if ``leaky``."""
    batch, children, parents, dim = votes.shape
    share = 1 / (parents + 1) if leaky else 1 / parents
    results = []
    for b in range(batch):
        vote = votes[b].double().tolist()
        poses = []
        for j in range(parents):
            total = [0.0] * dim
            for d in range(dim):
                for i in range(children):
                    total[d] += share * vote[i][j][d]
                if bias is not None:
                    total[d] += bias[j, d].item()
            poses.append(squash_vector(total))
        results.append(poses)
    return torch.tensor(results, dtype=torch.float64)


def margin_loss_loops(
    lengths: Tensor, truth: Tensor, *, present: float = 0.9, absent: float = 0.1, absent_weight: float = 0.5
) -> float:
    """Equation 4, summed over classes k and averaged over the images; ``truth`` is ``T_k``, 0 or 1."""
    total = 0.0
    for length_of, target_of in zip(lengths.tolist(), truth.tolist(), strict=True):
        for length, target in zip(length_of, target_of, strict=True):
            total += target * max(0.0, present - length) ** 2
            total += absent_weight * (1 - target) * max(0.0, length - absent) ** 2
    return total / len(lengths)
