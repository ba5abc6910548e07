"""Wrong versions of variational Bayes routing in its published code: each must fail a test.

A dense layer, ``route(votes (b, i, j, d), activations (b, i), on_iteration=None) -> poses (b, j, d)``, that differs
from ``Right`` in a single place. Numbers in brackets are pitfalls of the project's notes on routings, section 2.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor, nn


class Right:
    """Three iterations of the procedure: shows that the others fail because of their mistake."""

    def mean(self, assigned: Tensor, votes: Tensor, mass: Tensor) -> Tensor:
        return torch.einsum("bij,bijd->bjd", assigned, votes) / mass.clamp_min(1e-300).unsqueeze(2)

    def couplings(self, log_density: Tensor, log_share: Tensor) -> Tensor:
        return (log_share.unsqueeze(1) + log_density).softmax(2)

    def __call__(
        self, votes: Tensor, activations: Tensor, on_iteration: Callable[[SimpleNamespace], None] | None = None
    ) -> Tensor:
        dim = votes.shape[3]
        r = torch.full_like(votes[..., 0], 1 / votes.shape[2])
        for iteration in range(3):
            assigned = r * activations.unsqueeze(2)
            mass = assigned.sum(1)
            kappa, nu = 1 + mass, dim + 1 + mass
            mu = self.mean(assigned, votes, mass)
            poses = (mass / kappa).unsqueeze(2) * mu
            sigma = torch.einsum("bij,bijd->bjd", assigned, (votes - mu.unsqueeze(1)).square())
            inverse_scale = 1 + sigma + (mass / kappa).unsqueeze(2) * mu.square()
            log_share = (1 + mass).digamma() - (1 + mass).sum(1, keepdim=True).digamma()
            degrees = (nu.unsqueeze(2) - torch.arange(dim)) / 2
            log_precision = (degrees.digamma() + math.log(2) - inverse_scale.log()).sum(2)
            if on_iteration is not None:
                on_iteration(SimpleNamespace(iteration=iteration, couplings=r, poses=poses))
            distance = ((votes - poses.unsqueeze(1)).square() / inverse_scale.unsqueeze(1)).sum(3)
            log_density = 0.5 * (log_precision - dim * math.log(2 * math.pi) - dim / kappa).unsqueeze(1)
            r = self.couplings(log_density - 0.5 * nu.unsqueeze(1) * distance, log_share)
        return poses


class ClampedDensities(Right):
    """Densities without a maximum, their sum at least 1e-11: those of 16 components underflow [1]."""

    def couplings(self, log_density: Tensor, log_share: Tensor) -> Tensor:
        joint = (log_share.unsqueeze(1) + log_density).exp()
        return joint / joint.sum(2, keepdim=True).clamp_min(1e-11)


class ShareInTheSumOnly(Right):
    """``E[ln pi]`` in the sum that normalises, but not in what is normalised (an early revision of the code)."""

    def couplings(self, log_density: Tensor, log_share: Tensor) -> Tensor:
        return (log_density - (log_share.unsqueeze(1) + log_density).logsumexp(2, keepdim=True)).exp()


class DividedByMass(Right):
    """The mean is divided by the mass alone, which is 0 where no child is active [1]."""

    def mean(self, assigned: Tensor, votes: Tensor, mass: Tensor) -> Tensor:
        return torch.einsum("bij,bijd->bjd", assigned, votes) / mass.unsqueeze(2)


class DeadBetas(nn.Module):
    """Two betas before a batch normalisation, which subtracts whatever they add [2]: ``logits (b, j)``."""

    def __init__(self, parents: int) -> None:
        super().__init__()
        self.beta_u = nn.Parameter(torch.zeros(parents))
        self.beta_a = nn.Parameter(torch.zeros(parents))
        self.norm = nn.BatchNorm1d(parents, affine=False)

    def forward(self, logits: Tensor) -> Tensor:
        return self.norm(self.beta_a + logits - self.beta_u).sigmoid()
