"""Wrong versions found in public ports of dynamic routing: each must fail the contract.

Routings take votes ``(b, i, j, d)`` and return poses ``(b, j, d)``. Each differs from the right one in a single
place. Numbers in brackets are pitfalls of the project's notes on dynamic routing.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor, nn

OnIteration = Callable[[SimpleNamespace], None]


def squash(s: Tensor) -> Tensor:
    squared = (s**2).sum(dim=-1, keepdim=True)
    return squared / (1 + squared) * s / torch.sqrt(squared + 1e-8)


def unguarded_squash(s: Tensor) -> Tensor:
    norm = s.norm(dim=-1, keepdim=True)
    return norm**2 / (1 + norm**2) * s / norm


class _Wrong(nn.Module):
    """A right routing of three iterations; each subclass makes one mistake."""

    softmax_dim = 2

    def __init__(self, parents: int, dim: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.full((parents, dim), 0.1))

    def initial_logits(self, votes: Tensor) -> Tensor:
        return votes.new_zeros(votes.shape[:3])

    def agreement(self, votes: Tensor, poses: Tensor) -> Tensor:
        return (votes * poses[:, None]).sum(-1)

    def remember(self, logits: Tensor) -> None:
        pass

    def squash(self, total: Tensor) -> Tensor:
        return squash(total)

    def forward(self, votes: Tensor, *, on_iteration: OnIteration | None = None) -> Tensor:
        logits = self.initial_logits(votes)
        for iteration in range(3):
            couplings = logits.softmax(self.softmax_dim).expand(votes.shape[:3])
            poses = self.squash((couplings[..., None] * votes).sum(1) + self.bias)
            logits = logits + self.agreement(votes, poses)
            if on_iteration is not None:
                on_iteration(SimpleNamespace(iteration=iteration, couplings=couplings, poses=poses))
        self.remember(logits)
        return poses


class Right(_Wrong):
    """Nothing wrong: shows that the others fail because of their mistake."""


class SoftmaxOverChildren(_Wrong):
    """Each parent's couplings sum to one instead of each child's [2]."""

    softmax_dim = 1


class LogitsSharedOverBatch(_Wrong):
    """One set of logits for all images, moved by the mean agreement [4]."""

    def initial_logits(self, votes: Tensor) -> Tensor:
        return votes.new_zeros(1, *votes.shape[1:3])

    def agreement(self, votes: Tensor, poses: Tensor) -> Tensor:
        return super().agreement(votes, poses).mean(0, keepdim=True)


class LogitsKeptBetweenCalls(_Wrong):
    """The next call starts where this one ended [5]."""

    kept: Tensor | None = None

    def initial_logits(self, votes: Tensor) -> Tensor:
        known = self.kept is not None and self.kept.shape == votes.shape[:3]
        return self.kept.to(votes.dtype) if known else super().initial_logits(votes)

    def remember(self, logits: Tensor) -> None:
        self.kept = logits.detach()


class TransposedParents(_Wrong):
    """Reads the votes' memory as ``(child, dim, parent)``, so that components of all parents mix."""

    def forward(self, votes: Tensor, *, on_iteration: OnIteration | None = None) -> Tensor:
        batch, child, parent, dim = votes.shape
        mixed = votes.reshape(batch, child, dim, parent).transpose(2, 3)
        return super().forward(mixed, on_iteration=on_iteration)


class DeadGradient(_Wrong):
    """Routes on ``votes.data`` throughout: right values, and no gradient reaches the layers below."""

    def forward(self, votes: Tensor, *, on_iteration: OnIteration | None = None) -> Tensor:
        dead = super().forward(votes.data, on_iteration=on_iteration).data
        return dead + 0 * votes.sum() + 0 * self.bias


class UnguardedSquash(_Wrong):
    """Divides by the plain norm, whose value and gradient at the zero vector are NaN [6]."""

    def __init__(self, parents: int, dim: int) -> None:
        super().__init__(parents, dim)
        nn.init.zeros_(self.bias)

    def squash(self, total: Tensor) -> Tensor:
        return unguarded_squash(total)


def pixelwise_grouping(features: Tensor, dim: int = 8) -> Tensor:
    """Views NCHW as ``(N, -1, dim)``: ``dim`` neighbouring pixels of one channel make a capsule [1]."""
    return features.reshape(len(features), -1, dim)
