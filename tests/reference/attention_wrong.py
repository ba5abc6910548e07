"""Wrong versions of self-attention routing: each must fail a test. Votes ``(b, i, j, d)`` to poses ``(b, j, d)``."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def official_squash(total: Tensor) -> Tensor:
    """As the official code: an epsilon of 1e-20 beside a norm of 0, whose gradient is 0 / 0."""
    norm = total.square().sum(-1, keepdim=True).sqrt()  # TensorFlow's norm; torch's has a gradient of 0 there
    return (1 - 1 / (norm.exp() + 1e-20)) * (total / (norm + 1e-20))


def children_by_children(votes: Tensor) -> Tensor:
    """All pairs of children for each parent: the right numbers, in memory that grows as their square."""
    by_parent = votes.transpose(1, 2)  # [b j i d]
    pairs = by_parent @ by_parent.transpose(2, 3) / math.sqrt(votes.shape[3])  # [b j i k]
    couplings = pairs.sum(3).softmax(1)  # [b j i]
    total = torch.einsum("bji,bijd->bjd", couplings, votes)
    norm = (total.square().sum(2, keepdim=True) + 1e-8).sqrt()
    return (1 - torch.exp(-norm)) * total / norm


def softmax_over_children(votes: Tensor) -> Tensor:
    """Attention as in a transformer: the children compete for a parent."""
    logits = torch.einsum("bijd,bjd->bji", votes, votes.sum(1)) / math.sqrt(votes.shape[3])
    total = torch.einsum("bji,bijd->bjd", logits.softmax(2), votes)
    norm = (total.square().sum(2, keepdim=True) + 1e-8).sqrt()
    return (1 - torch.exp(-norm)) * total / norm
