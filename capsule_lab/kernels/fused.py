"""Votes that are never stored: every kernel makes those it is about to use, the backward pass makes them again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from capsule_lab.kernels import ops
from capsule_lab.kernels.base import AbstractVotes, Explanation, Fit, Share
from capsule_lab.types import Votes


class FusedVotes(AbstractVotes):
    """Answers by fused kernels.

    Args:
        votes: what they would be made from.
    """

    def __init__(self, votes: Votes) -> None:
        batch, child, child_dim = votes.poses.shape
        _, self.inner, parent, columns = votes.weight.shape
        self.shape = (batch, child, parent, child_dim // self.inner * columns)
        self.poses = votes.poses.transpose(1, 2).contiguous()  # [n h i]
        self.weight = votes.weight.permute(2, 1, 3, 0).flatten(1, 2).contiguous()  # [j k i]

    def equal(self) -> Tensor:
        batch, child, parent, _ = self.shape
        return self.poses.new_zeros(batch, parent, child)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return ops.weighted_sum(self.poses, self.weight, weights, self.inner)

    def agreement(self, poses: Tensor) -> Tensor:
        return ops.agreement(self.poses, self.weight, poses, self.inner)

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
        batch, _, parent, dim = self.shape
        if previous is None or not damping:
            previous = self.poses.new_zeros(batch, parent, dim)
        options = (self.inner, damping, min_variance, mass_eps, measure)
        if torch.compiler.is_compiling():
            couplings = self.couplings(explained, share)
            return Fit(couplings, *ops.fit(self.poses, self.weight, activations, couplings, previous, *options))
        heights = (None,) * 4 if explained is None else explained
        return Fit(*_Iteration.apply(share, options, self.poses, self.weight, activations, previous, *heights))

    def couplings(self, explained: Explanation | None, share: Share) -> Tensor:
        return share.fast(self.equal() if explained is None else explained.log_couplings())


class _Iteration(torch.autograd.Function):
    """Couplings from log-couplings, and parents fitted with them; nothing as large as couplings is kept.

    In the backward pass the distances are measured again, from the Gaussians that gave them, and the couplings follow
    from those: a sixth more work, for memory that does not grow with the number of iterations.
    """

    @staticmethod
    def forward(
        ctx: Any,
        share: Share,
        options: tuple[int, float, float, float, bool],
        poses: Tensor,
        weight: Tensor,
        activations: Tensor,
        previous: Tensor,
        log_height: Tensor | None,
        old_poses: Tensor | None,
        old_variances: Tensor | None,
        old_distances: Tensor | None,
    ) -> tuple[Tensor, ...]:
        if log_height is None or old_distances is None:
            logs = poses.new_zeros(len(poses), len(weight), poses.shape[2])
        else:
            logs = log_height.unsqueeze(2) - old_distances
        couplings = share.fast(logs)
        mass, parents, variances, distances = ops.fit(poses, weight, activations, couplings, previous, *options)
        ctx.save_for_backward(
            poses, weight, activations, previous, mass, parents, variances, log_height, old_poses, old_variances
        )
        ctx.share, ctx.options = share, options
        ctx.mark_non_differentiable(couplings)
        ctx.set_materialize_grads(False)
        return couplings, mass, parents, variances, distances

    @staticmethod
    def backward(
        ctx: Any,
        _: None,
        to_mass: Tensor | None,
        to_parents: Tensor | None,
        to_variances: Tensor | None,
        to_distances: Tensor | None,
    ) -> tuple[Any, ...]:
        *given, mass, parents, variances, log_height, old_poses, old_variances = ctx.saved_tensors
        poses, weight, activations, previous = given
        inner, damping, min_variance, *_ = ctx.options
        logs = poses.new_zeros(len(poses), len(weight), poses.shape[2])
        if log_height is not None:
            logs = log_height.unsqueeze(2) - ops.distances(poses, weight, old_poses, old_variances, inner)
        with torch.enable_grad():
            couplings = ctx.share.fast(logs.requires_grad_())
        to_poses, to_weight, to_activations, to_couplings, to_previous = ops.fit_backward(
            poses,
            weight,
            activations,
            couplings.detach(),
            previous,
            mass,
            parents,
            variances,
            torch.zeros_like(mass) if to_mass is None else to_mass,
            torch.zeros_like(parents) if to_parents is None else to_parents,
            torch.zeros_like(variances) if to_variances is None else to_variances,
            mass.new_empty(*mass.shape, 0) if to_distances is None else to_distances,
            inner,
            damping,
            min_variance,
        )
        to_height = to_logs = None
        if log_height is not None:
            (to_logs,) = torch.autograd.grad(couplings, logs, to_couplings)
            to_height, to_logs = to_logs.sum(2), -to_logs
        return None, None, to_poses, to_weight, to_activations, to_previous, to_height, None, None, to_logs
