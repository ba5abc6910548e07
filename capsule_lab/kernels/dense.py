"""Backends that store the vote tensor: sums as in the papers, or batched matrix products."""

from __future__ import annotations

from torch import Tensor, einsum

from capsule_lab.kernels.base import AbstractVotes


class PlainVotes(AbstractVotes):
    """Explicit sums over the whole vote tensor, in any memory order, as in the papers: slow, but easy to check."""

    def __init__(self, votes: Tensor) -> None:
        batch, child, parent, dim = votes.shape
        self.shape = (batch, child, parent, dim)
        self.votes = votes

    def dense(self) -> Tensor:
        return self.votes

    def zero_logits(self) -> Tensor:
        batch, child, parent, _ = self.shape
        return self.votes.new_zeros(batch, parent, child)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return (weights.transpose(1, 2).unsqueeze(3) * self.votes).sum(1)

    def agreement(self, poses: Tensor) -> Tensor:
        return (self.votes * poses.unsqueeze(1)).sum(3).transpose(1, 2)


class MatmulVotes(PlainVotes):
    """Sums as batched matrix products; the memory of the votes is ordered ``(batch, parent, child, dim)``."""

    def __init__(self, votes: Tensor) -> None:
        super().__init__(votes.transpose(1, 2).contiguous().transpose(1, 2))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return einsum("bji,bijd->bjd", weights, self.votes)

    def agreement(self, poses: Tensor) -> Tensor:
        return einsum("bijd,bjd->bji", self.votes, poses)
