"""Slow float64 transcriptions of Sabour, Frosst and Hinton (NeurIPS 2017): the reference of the fast versions.

All transcriptions are plain loops over batch (b), child (i), parent (j) and component (d), on Python floats, which
are float64. They import nothing from the package, so that they cannot share its mistakes. Do not make them faster.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

EPS = 1e-8  # under the root of squash and length; the paper and the official code have none


def squash_vector(total: list[float], added: float = 1.0) -> list[float]:
    """Equation 1: ``|s|^2 / (1 + |s|^2) * s / |s|``; some ports have 0.5 in place of 1."""
    squared = dot(total, total)
    factor = squared / (added + squared) / math.sqrt(squared + EPS)
    return [factor * component for component in total]


def double(values: list) -> Tensor:
    """Nested lists as a float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)


def zeros(rows: int, columns: int) -> list[list[float]]:
    return [[0.0] * columns for _ in range(rows)]


def norm(vector: list[float]) -> float:
    return math.sqrt(dot(vector, vector) + EPS)


def length_loops(poses: Tensor) -> Tensor:
    """Length of every pose of ``(batch, capsule, dim)``."""
    lengths = zeros(*poses.shape[:2])
    for b, image in enumerate(poses.tolist()):
        for j, pose in enumerate(image):
            lengths[b][j] = norm(pose)
    return double(lengths)


def softmax_list(logits: list[float]) -> list[float]:
    """Equation 3."""
    largest = max(logits)
    exponentials = [math.exp(logit - largest) for logit in logits]
    whole = sum(exponentials)
    return [exponential / whole for exponential in exponentials]


def dot(one: list[float], other: list[float]) -> float:
    return sum(x * y for x, y in zip(one, other, strict=True))


def weighted_sum(weights: list[list[float]], vote: list[list[list[float]]], j: int) -> list[float]:
    """``sum_i w_ij u_hat_ij``, of votes ``vote[i][j][d]`` for a parent."""
    total = [0.0] * len(vote[0][j])
    for of_child, votes_of_child in zip(weights, vote, strict=True):
        weight = of_child[j]
        for d, component in enumerate(votes_of_child[j]):
            total[d] += weight * component
    return total


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
    ``prior`` ``(j, type)`` are the initial logits, with children ordered (position, type); ``replace`` drops the
    additions of earlier iterations. ``squash`` replaces the squash of the total input.
    """
    _, children, parents, dim = votes.shape
    offset = zeros(parents, dim) if bias is None else bias.tolist()
    start = zeros(children, parents)
    if prior is not None:
        types = prior.shape[1]
        for i in range(children):
            of_type = prior[:, i % types]
            start[i] = of_type.tolist()
    results = []
    for vote in votes.tolist():
        logits = start  # line 2: for all i, j: b_ij <- 0
        for _ in range(iterations):  # line 3
            couplings = []
            for i in range(children):  # line 4: c_i <- softmax(b_i)
                destinations = [*logits[i], 0.0] if leaky else logits[i]
                shares = softmax_list(destinations)
                couplings.append(shares[:parents])
            poses = []
            for j in range(parents):
                total = weighted_sum(couplings, vote, j)  # line 5: s_j <- sum_i c_ij u_hat_j|i
                biased = [total[d] + offset[j][d] for d in range(dim)]
                poses.append(squash(biased))  # line 6: v_j <- squash(s_j)
            before = start if replace else logits
            logits = zeros(children, parents)
            for i in range(children):  # line 7: b_ij <- b_ij + u_hat_j|i . v_j
                for j in range(parents):
                    agreement = dot(vote[i][j], poses[j])
                    logits[i][j] = before[i][j] + agreement
        results.append(poses)
    return double(results)


def margin_loss_loops(
    lengths: Tensor,
    truth: Tensor,
    *,
    present: float = 0.9,
    absent: float = 0.1,
    absent_weight: float = 0.5,
) -> float:
    """Equation 4, summed over classes k and averaged over the images; ``truth`` is ``T_k``, 0 or 1."""
    total = 0.0
    for length_of, target_of in zip(lengths.tolist(), truth.tolist(), strict=True):
        for length, target in zip(length_of, target_of, strict=True):
            too_short = max(0.0, present - length)
            too_long = max(0.0, length - absent)
            total += target * too_short**2
            total += absent_weight * (1 - target) * too_long**2
    return total / len(lengths)
