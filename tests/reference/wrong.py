"""Wrong versions found in public ports and official code: each must fail a check that the correct version passes.

Each differs from the correct one in a single place; those of EM routing are in ``em_wrong``. Votes are
``(b, i, j, d)``, poses of parents ``(b, j, d)``. docs/pitfalls.md explains the mistakes.
"""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, einsum, nn

OnIteration = Callable[[SimpleNamespace], None]
LN_2PI = math.log(2 * math.pi)


def check_catches(check: Callable[..., None], mistake: Any, *right: Any) -> None:
    """``check`` accepts the correct versions and raises ``AssertionError`` on the mistake."""
    for correct in right:
        check(correct)
    with pytest.raises(AssertionError):
        check(mistake)


def guarded_norm(vectors: Tensor) -> Tensor:
    squared = vectors.square().sum(-1, keepdim=True)
    return (squared + 1e-8).sqrt()


def squash(s: Tensor) -> Tensor:
    squared = s.square().sum(-1, keepdim=True)
    direction = s / guarded_norm(s)
    return squared / (1 + squared) * direction


def sum_over_children(weights: Tensor, votes: Tensor) -> Tensor:
    return einsum("bij,bijd->bjd", weights, votes)


# ---------------------------------------------------------------------------------------------- dynamic routing


class Right(nn.Module):
    """The correct version: dynamic routing of three iterations."""

    softmax_dim = 2

    def __init__(self, parents: int, dim: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.full((parents, dim), 0.1))

    def initial_logits(self, votes: Tensor) -> Tensor:
        return votes.new_zeros(votes.shape[:3])

    def agreement(self, votes: Tensor, poses: Tensor) -> Tensor:
        return einsum("bijd,bjd->bij", votes, poses)

    def remember(self, logits: Tensor) -> None:
        pass

    def squash(self, total: Tensor) -> Tensor:
        return squash(total)

    def forward(self, votes: Tensor, *, on_iteration: OnIteration | None = None) -> Tensor:
        logits = self.initial_logits(votes)
        for iteration in range(3):
            shares = logits.softmax(self.softmax_dim)
            couplings = shares.expand(votes.shape[:3])
            total = sum_over_children(couplings, votes)
            poses = self.squash(total + self.bias)
            logits = logits + self.agreement(votes, poses)
            if on_iteration is not None:
                trace = SimpleNamespace(iteration=iteration, couplings=couplings, poses=poses)
                on_iteration(trace)
        self.remember(logits)
        return poses


class SoftmaxOverChildren(Right):
    """Each parent's couplings sum to one instead of each child's."""

    softmax_dim = 1


class LogitsSharedOverBatch(Right):
    """One set of logits for all images, changed by the mean agreement."""

    def initial_logits(self, votes: Tensor) -> Tensor:
        return votes.new_zeros(1, *votes.shape[1:3])

    def agreement(self, votes: Tensor, poses: Tensor) -> Tensor:
        of_images = super().agreement(votes, poses)
        return of_images.mean(0, keepdim=True)


class LogitsKeptBetweenCalls(Right):
    """The next call starts with the last logits of this one."""

    kept: Tensor | None = None

    def initial_logits(self, votes: Tensor) -> Tensor:
        if self.kept is not None and self.kept.shape == votes.shape[:3]:
            return self.kept.to(votes.dtype)
        return super().initial_logits(votes)

    def remember(self, logits: Tensor) -> None:
        self.kept = logits.detach()


class TransposedParents(Right):
    """Reads the votes' memory as ``(child, dim, parent)``, so that components of all parents mix."""

    def forward(self, votes: Tensor, *, on_iteration: OnIteration | None = None) -> Tensor:
        batch, child, parent, dim = votes.shape
        read = votes.reshape(batch, child, dim, parent)
        mixed = read.transpose(2, 3)
        return super().forward(mixed, on_iteration=on_iteration)


class DeadGradient(Right):
    """Routes on ``votes.data`` throughout: right values, and no gradient reaches the layers below."""

    def forward(self, votes: Tensor, *, on_iteration: OnIteration | None = None) -> Tensor:
        poses = super().forward(votes.data, on_iteration=on_iteration)
        connected = votes.sum() + self.bias
        return poses.data + 0 * connected


class UnguardedSquash(Right):
    """Divides by the plain norm, whose value and gradient at the zero vector are NaN."""

    def __init__(self, parents: int, dim: int) -> None:
        super().__init__(parents, dim)
        nn.init.zeros_(self.bias)

    def squash(self, total: Tensor) -> Tensor:
        norm = total.norm(dim=-1, keepdim=True)
        squared = norm**2
        return squared / (1 + squared) * total / norm


def pixelwise_grouping(features: Tensor, dim: int = 8) -> Tensor:
    """Views NCHW as ``(N, -1, dim)``: ``dim`` neighbouring pixels of one channel make a capsule."""
    return features.reshape(len(features), -1, dim)


# -------------------------------------------------------------------------------- self-routing (Hahn 2019)


def self_routing(votes: Tensor, logits: Tensor, activations: Tensor) -> tuple[Tensor, Tensor]:
    """The correct version: logits ``(b, i, j)`` and activations ``(b, i)`` to poses and activations."""
    couplings = logits.softmax(2)
    total = activations.sum(1, keepdim=True)
    equal = 1 / activations.shape[1]
    share = activations / total.clamp_min(1e-12)
    share = torch.where(total > 0, share, equal)
    assigned = couplings * share.unsqueeze(2)
    mass = assigned.sum(1)
    divisor = mass.clamp_min(1e-12)
    poses = sum_over_children(assigned, votes) / divisor.unsqueeze(2)
    return poses, mass


def unguarded(votes: Tensor, logits: Tensor, activations: Tensor) -> tuple[Tensor, Tensor]:
    """Divides by the sum of activations and by a parent's mass without a guard (official code)."""
    couplings = logits.softmax(2)
    assigned = couplings * activations.unsqueeze(2)
    mass = assigned.sum(1)
    shares = assigned / mass.unsqueeze(1)
    total = activations.sum(1, keepdim=True)
    return sum_over_children(shares, votes), mass / total


# ------------------------------------------------------------------------- self-attention routing (Mazzia 2021)


def official_squash(total: Tensor) -> Tensor:
    """The official squash: it adds 1e-20 to a norm of 0, whose gradient is 0 / 0."""
    # TensorFlow's norm; torch's has a gradient of 0 there
    squared = total.square().sum(-1, keepdim=True)
    norm = squared.sqrt()
    length = 1 - 1 / (norm.exp() + 1e-20)
    direction = total / (norm + 1e-20)
    return length * direction


def children_by_children(votes: Tensor, competing: int = 1) -> Tensor:
    """All pairs of children for each parent: correct numbers in quadratic memory."""
    by_parent = votes.transpose(1, 2)  # [b j i d]
    products = by_parent @ by_parent.transpose(2, 3)  # [b j i k]
    logits = products.sum(3) / math.sqrt(votes.shape[3])
    couplings = logits.softmax(competing)  # [b j i]
    total = einsum("bji,bijd->bjd", couplings, votes)
    norm = guarded_norm(total)
    length = 1 - torch.exp(-norm)
    return length * total / norm


def softmax_over_children(votes: Tensor) -> Tensor:
    """Attention as in a transformer, in which children compete for a parent."""
    return children_by_children(votes, competing=2)


# ------------------------------------------- inverted attention (Tsai 2020), scaled-distance agreement (Peer 2018)


def windows(poses: Tensor, kernel: int, stride: int) -> Tensor:
    """The correct version: poses ``(b, y, x, type, d)`` to those of windows, ``(b, y', x', ky, kx, type, d)``."""
    rows = poses.unfold(1, kernel, stride)
    found = rows.unfold(2, kernel, stride)
    return found.permute(0, 1, 2, 5, 6, 3, 4)


def scrambled_windows(poses: Tensor, kernel: int, stride: int) -> Tensor:
    """Windows stacked on a last axis and read as ``(y', x', d)`` without a permutation: positions mix."""
    right = windows(poses, kernel, stride)
    batch, height, width, *_, types, dim = right.shape
    stacked = right.permute(0, 3, 4, 5, 6, 1, 2).contiguous()  # (b, ky, kx, type, d, y', x')
    read = stacked.view(batch, kernel, kernel, types, height, width, dim)
    return read.permute(0, 4, 5, 1, 2, 3, 6)


def scaled_distances(votes: Tensor, lengths: Tensor, *, over_batch: bool) -> Tensor:
    """Three iterations with a bias of 0.1; wrong only if the scale is the mean of a batch."""
    factors = lengths[..., None, None] / guarded_norm(votes)
    votes = votes * factors.clamp(max=1)
    other_parents = votes.shape[2] - 1
    log_odds = math.log(0.9 * other_parents / 0.1)
    averaged = (0, 1, 2) if over_batch else (1, 2)
    logits = votes.new_zeros(votes.shape[:3])
    for _ in range(3):
        couplings = logits.softmax(2)
        total = sum_over_children(couplings, votes)
        poses = squash(total + 0.1)
        differences = poses[:, None] - votes
        distances = guarded_norm(differences).squeeze(-1)
        half_of_mean = 0.5 * distances.mean(averaged, keepdim=True)
        logits = -log_odds * distances / half_of_mean
    return poses


# -------------------------------------------------------------------- variational Bayes routing (Ribeiro 2020)


class Bayes:
    """Three iterations of the procedure: ``route(votes, activations (b, i), on_iteration=None) -> poses``."""

    def mean(self, assigned: Tensor, votes: Tensor, mass: Tensor) -> Tensor:
        divisor = mass.clamp_min(1e-300)
        return sum_over_children(assigned, votes) / divisor.unsqueeze(2)

    def couplings(self, log_density: Tensor, log_share: Tensor) -> Tensor:
        log_joint = log_share.unsqueeze(1) + log_density
        return log_joint.softmax(2)

    def __call__(
        self, votes: Tensor, activations: Tensor, on_iteration: OnIteration | None = None
    ) -> Tensor:
        *grid, parents, dim = votes.shape
        r = votes.new_full((*grid, parents), 1 / parents)
        components = torch.arange(dim)
        for iteration in range(3):
            assigned = r * activations.unsqueeze(2)
            mass = assigned.sum(1)
            kappa = 1 + mass
            nu = dim + 1 + mass
            mu = self.mean(assigned, votes, mass)
            shrinkage = (mass / kappa).unsqueeze(2)
            poses = shrinkage * mu
            differences = votes - mu.unsqueeze(1)
            sigma = sum_over_children(assigned, differences.square())
            inverse_scale = 1 + sigma + shrinkage * mu.square()
            alpha = 1 + mass
            alpha_of_all = alpha.sum(1, keepdim=True)
            log_share = alpha.digamma() - alpha_of_all.digamma()
            degrees = (nu.unsqueeze(2) - components) / 2
            log_precisions = degrees.digamma() + math.log(2) - inverse_scale.log()
            log_precision = log_precisions.sum(2)
            if on_iteration is not None:
                trace = SimpleNamespace(iteration=iteration, couplings=r, poses=poses)
                on_iteration(trace)
            differences = votes - poses.unsqueeze(1)
            distances = differences.square() / inverse_scale.unsqueeze(1)
            distance = nu.unsqueeze(1) * distances.sum(3)
            log_height = log_precision - dim * LN_2PI - dim / kappa
            log_density = 0.5 * (log_height.unsqueeze(1) - distance)
            r = self.couplings(log_density, log_share)
        return poses


class ClampedDensities(Bayes):
    """Densities are not divided by their maximum and their sum is clamped to 1e-11: 16 components underflow."""

    def couplings(self, log_density: Tensor, log_share: Tensor) -> Tensor:
        log_joint = log_share.unsqueeze(1) + log_density
        joint = log_joint.exp()
        total = joint.sum(2, keepdim=True)
        return joint / total.clamp_min(1e-11)


class ShareInTheSumOnly(Bayes):
    """``E[ln pi]`` is in the denominator but not in the numerator (early revision of the code)."""

    def couplings(self, log_density: Tensor, log_share: Tensor) -> Tensor:
        log_joint = log_share.unsqueeze(1) + log_density
        log_total = log_joint.logsumexp(2, keepdim=True)
        return (log_density - log_total).exp()


class DividedByMass(Bayes):
    """The mean is divided by the mass without a prior, which is 0 if no child is active."""

    def mean(self, assigned: Tensor, votes: Tensor, mass: Tensor) -> Tensor:
        return sum_over_children(assigned, votes) / mass.unsqueeze(2)


class DeadBetas(nn.Module):
    """Two betas before a batch normalisation, which subtracts them again: ``logits (b, j)``."""

    def __init__(self, parents: int) -> None:
        super().__init__()
        self.beta_u = nn.Parameter(torch.zeros(parents))
        self.beta_a = nn.Parameter(torch.zeros(parents))
        self.norm = nn.BatchNorm1d(parents, affine=False)

    def forward(self, logits: Tensor) -> Tensor:
        shifted = self.beta_a + logits - self.beta_u
        return self.norm(shifted).sigmoid()
