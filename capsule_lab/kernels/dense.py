"""Votes that are made and kept: plainly, to be read, or as batched matrix products."""

from __future__ import annotations

from torch import Tensor

from capsule_lab.kernels.base import AbstractVotes, Explanation, Fit, Share


class PlainVotes(AbstractVotes):
    """Every sum written out over the whole vote tensor, as in the papers: slow, and easy to check.

    Args:
        votes: ``(batch, child, parent, dim)``.
    """

    def __init__(self, votes: Tensor) -> None:
        batch, child, parent, dim = votes.shape
        self.shape = (batch, child, parent, dim)
        self.votes = self._laid_out(votes)  # [b j i d]

    def _laid_out(self, votes: Tensor) -> Tensor:
        return votes.transpose(1, 2)

    def equal(self) -> Tensor:
        return self.votes.new_zeros(self.votes.shape[:3])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return (weights.unsqueeze(3) * self.votes).sum(2)

    def agreement(self, poses: Tensor) -> Tensor:
        return (self.votes * poses.unsqueeze(2)).sum(3)

    def fit(
        self,
        explained: Explanation | None,
        activations: Tensor,
        previous: Tensor | None,
        share: Share,
        *,
        damping: float,
        min_variance: float,
        mass_eps: float,
        measure: bool,
    ) -> Fit:
        couplings = self.couplings(explained, share)  # [b j i]
        assigned = couplings * activations.unsqueeze(1)  # [b j i]
        mass = assigned.sum(2) + mass_eps  # [b j]
        shares = assigned / mass.unsqueeze(2)  # [b j i]
        poses = self.weighted_sum(shares)  # [b j d]
        if damping:
            poses = (1 - damping) * poses + (0.0 if previous is None else damping * previous)
        squared = (self.votes - poses.unsqueeze(2)).square()  # [b j i d]
        variances = min_variance + self._over_children(shares, squared)  # [b j d]
        distances = squared.new_empty(0)
        if measure:
            distances = self._over_components(squared, 0.5 / variances)  # 0.5: of the Gaussian; [b j i]
        return Fit(couplings, mass, poses, variances, distances)

    def _over_children(self, shares: Tensor, values: Tensor) -> Tensor:
        return (shares.unsqueeze(3) * values).sum(2)

    def _over_components(self, values: Tensor, weights: Tensor) -> Tensor:
        return (values * weights.unsqueeze(2)).sum(3)


class MatmulVotes(PlainVotes):
    """The sums as batched matrix products over votes laid out ``(batch, parent, child, dim)``."""

    def _laid_out(self, votes: Tensor) -> Tensor:
        return votes.transpose(1, 2).contiguous()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self._over_children(weights, self.votes)

    def agreement(self, poses: Tensor) -> Tensor:
        return self._over_components(self.votes, poses)

    def _over_children(self, shares: Tensor, values: Tensor) -> Tensor:
        return (shares.unsqueeze(2) @ values).squeeze(2)

    def _over_components(self, values: Tensor, weights: Tensor) -> Tensor:
        return (values @ weights.unsqueeze(3)).squeeze(3)
