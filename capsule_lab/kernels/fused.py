"""Votes that are never stored: every kernel makes those it is about to use, the backward pass makes them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

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
        children, self.inner, parent, columns = votes.weight.shape
        if children != child or child_dim % self.inner:  # kernels would read what is no part of either
            raise ValueError(
                f"poses are {tuple(votes.poses.shape)} and weights {tuple(votes.weight.shape)}; expected "
                "(batch, child, rows * inner) and (child, inner, parent, columns)"
            )
        self.shape = (batch, child, parent, child_dim // self.inner * columns)
        self.poses = votes.poses.transpose(1, 2).contiguous()  # [n h i]
        self.weight = votes.weight.permute(2, 1, 3, 0).flatten(1, 2).contiguous()  # [j k i]
        self.products = _Products()
        if not torch.compiler.is_compiling():
            self.poses, self.weight = _Collect.apply(self.products, self.inner, self.poses, self.weight)

    def equal(self) -> Tensor:
        batch, child, parent, _ = self.shape
        return self.poses.new_zeros(batch, parent, child)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return ops.weighted_sum(self.poses, self.weight, weights, self.inner)
        return _Linear.apply(self.products, self.inner, False, self.poses, self.weight, weights)

    def agreement(self, poses: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return ops.agreement(self.poses, self.weight, poses, self.inner)
        return _Linear.apply(self.products, self.inner, True, self.poses, self.weight, poses)

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
        batch, child, parent, dim = self.shape
        if activations.shape != (batch, child):
            raise ValueError(f"activations are {tuple(activations.shape)}; expected one per child, {(batch, child)}")
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
            couplings = _first_couplings(share, poses, weight)
        else:
            couplings = share.fast(log_height.unsqueeze(2) - old_distances)
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
        if log_height is None:
            couplings = _first_couplings(ctx.share, poses, weight)
        else:
            old_distances = ops.distances(poses, weight, old_poses, old_variances, inner)
            with torch.enable_grad():
                logs = log_height.detach().requires_grad_().unsqueeze(2) - old_distances
                couplings = ctx.share.fast(logs)
                of_logs = get_gradient_edge(logs)  # the numbers themselves need not be kept
            del logs, old_distances
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
        if log_height is not None and couplings.requires_grad:
            (to_logs,) = torch.autograd.grad(couplings, of_logs, to_couplings, materialize_grads=True)
            del couplings, to_couplings
            to_height, to_logs = to_logs.sum(2), to_logs.neg_()
        return None, None, to_poses, to_weight, to_activations, to_previous, to_height, None, None, to_logs


def _first_couplings(share: Share, poses: Tensor, weight: Tensor) -> Tensor:
    """From equal log-couplings: the same for every image."""
    equal = poses.new_zeros(share.together, len(weight), poses.shape[2])
    return share.fast(equal).repeat(len(poses) // share.together, 1, 1)


class _Products:
    """Products ``by_child`` times ``by_component`` that the gradient of the votes is the sum of.

    Poses and weight get their gradient from all of them at once, which costs little more than from one.
    """

    def __init__(self) -> None:
        self.task = -1
        self.found: list[tuple[Tensor, Tensor]] = []

    def add(self, by_child: Tensor, by_component: Tensor) -> None:
        self.found = [*self._of_this_pass(), (by_child, by_component)]

    def take(self) -> list[tuple[Tensor, Tensor]]:
        found, self.found = self._of_this_pass(), []
        return found

    def _of_this_pass(self) -> list[tuple[Tensor, Tensor]]:
        """Not what a backward pass has left that asked for other gradients than those of poses and weight."""
        task, self.task = self.task, torch._C._current_graph_task_id()
        return self.found if self.task == task else []


class _Collect(torch.autograd.Function):
    """Poses and weight as they are; their gradient is what arrives here and that of the products."""

    @staticmethod
    def forward(ctx: Any, products: _Products, inner: int, poses: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(poses, weight)
        ctx.products, ctx.inner = products, inner
        ctx.set_materialize_grads(False)
        return poses.view_as(poses), weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, to_poses: Tensor | None, to_weight: Tensor | None) -> tuple[Any, ...]:
        products = ctx.products.take()
        if products:
            by_child, by_component = map(list, zip(*products, strict=True))
            found = ops.contraction(*ctx.saved_tensors, by_child, by_component, ctx.inner)
            to_poses, to_weight = (
                new if old is None else old + new for old, new in zip((to_poses, to_weight), found, strict=True)
            )
        return None, None, to_poses, to_weight


class _Linear(torch.autograd.Function):
    """Sums of weighted votes, or how votes ``agree`` with poses. For fixed votes each is the gradient of the other."""

    @staticmethod
    def forward(
        ctx: Any, products: _Products, inner: int, agree: bool, poses: Tensor, weight: Tensor, given: Tensor
    ) -> Tensor:
        ctx.save_for_backward(poses, weight, given)
        ctx.products, ctx.inner, ctx.agree = products, inner, agree
        return _linear(agree)(poses, weight, given, inner)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        poses, weight, given = ctx.saved_tensors
        ctx.products.add(*((gradient, given) if ctx.agree else (given, gradient)))
        to_given = _linear(not ctx.agree)(poses, weight, gradient, ctx.inner) if ctx.needs_input_grad[5] else None
        return None, None, None, None, None, to_given


def _linear(agree: bool) -> Callable[[Tensor, Tensor, Tensor, int], Tensor]:
    return ops.agreement if agree else ops.weighted_sum
