"""Wrong versions of self-routing: each must fail a test. Each differs from the right one in a single place."""

from __future__ import annotations

import torch
from torch import Tensor, einsum


def right(votes: Tensor, logits: Tensor, activations: Tensor) -> tuple[Tensor, Tensor]:
    """Poses and activations, of votes ``(b, i, j, d)``, logits ``(b, i, j)`` and activations ``(b, i)``."""
    couplings = logits.softmax(2)
    total = activations.sum(1, keepdim=True)
    share = torch.where(total > 0, activations / total.clamp_min(1e-12), 1 / activations.shape[1])
    assigned = couplings * share.unsqueeze(2)
    mass = assigned.sum(1)
    return einsum("bij,bijd->bjd", assigned, votes) / mass.clamp_min(1e-12).unsqueeze(2), mass


def unguarded(votes: Tensor, logits: Tensor, activations: Tensor) -> tuple[Tensor, Tensor]:
    """Divides by the sum of activations and by a parent's mass as they are: the official code."""
    assigned = logits.softmax(2) * activations.unsqueeze(2)
    mass = assigned.sum(1)
    poses = einsum("bij,bijd->bjd", assigned / mass.unsqueeze(1), votes)
    return poses, mass / activations.sum(1, keepdim=True)


def softmax_over_children(votes: Tensor, logits: Tensor, activations: Tensor) -> tuple[Tensor, Tensor]:
    """Each parent's couplings sum to one instead of each child's: attention, and parents do not compete."""
    return right(votes, logits.softmax(1).log(), activations)[0], einsum("bij,bi->bj", logits.softmax(1), activations)


def without_activations(votes: Tensor, logits: Tensor, activations: Tensor) -> tuple[Tensor, Tensor]:
    """Children count the same whether they are there or not."""
    return right(votes, logits, torch.ones_like(activations))
