"""Votes that are not stored: every kernel computes the votes it needs, and so does the backward pass.

This file implements two gradients itself, because a plain autograd graph would keep too many tensors.

EM: ``_EMStep`` is the E-step and the M-step as one node. A plain graph would keep couplings ``(batch, parent, child)``
for each iteration. The node keeps the Gaussians of the previous iteration instead, and its backward pass computes
distances from them and normalises again. Memory does not grow with the number of iterations.

Dynamic routing: sums and agreements are linear in the votes, so the gradient of the votes is a sum of outer products,
``dL/dV_ij = sum_t x_t[j, i] y_t[j]`` (x for a child, y for a component). Contracting each term with poses and weight
would read both once per term. Therefore the terms of a backward pass are collected and contracted together, see
``_PendingProducts``.

Under torch.compile, this is not used: the operators of ``capsule_lab.kernels.ops`` have separate gradients. EM uses
them, too, if the normaliser depends on a tensor that needs a gradient, such as a learned temperature.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from capsule_lab.functional import dense_votes
from capsule_lab.kernels import ops
from capsule_lab.kernels.base import AbstractVotes, Normalise
from capsule_lab.kernels.em_arguments import FitOutputs
from capsule_lab.system.torch_internals import backward_pass_number
from capsule_lab.types import Votes


class FusedVotes(AbstractVotes):
    """Votes whose sums are computed by fused kernels; raises ``ValueError`` if poses and weight do not match."""

    def __init__(self, votes: Votes) -> None:
        batch, child, child_dim = votes.poses.shape
        children, self.inner, parent, columns = votes.weight.shape
        # kernels would read beyond the end of an array
        if children != child or self.inner < 1 or child_dim % self.inner:
            raise ValueError(
                f"poses are {tuple(votes.poses.shape)} and weights {tuple(votes.weight.shape)}; expected "
                "(batch, child, rows * inner) and (child, inner, parent, columns), where inner is 1 or more"
            )
        self.shape = (batch, child, parent, child_dim // self.inner * columns)
        self.votes = votes
        self.poses = votes.poses.transpose(1, 2).contiguous()  # [n h i]
        self.weight = votes.weight.permute(2, 1, 3, 0).flatten(1, 2).contiguous()  # [j k i]
        self.pending = _PendingProducts()
        if not torch.compiler.is_compiling():
            self.poses, self.weight = _ContractPending.apply(
                self.pending, self.inner, self.poses, self.weight
            )

    def dense(self) -> Tensor:
        return dense_votes(self.votes.poses, self.votes.weight)

    def zero_logits(self) -> Tensor:
        batch, child, parent, _ = self.shape
        return self.poses.new_zeros(batch, parent, child)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return ops.weighted_sum(self.poses, self.weight, weights, self.inner)
        return _Linear.apply(self.pending, self.inner, False, self.poses, self.weight, weights)

    def agreement(self, poses: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return ops.agreement(self.poses, self.weight, poses, self.inner)
        return _Linear.apply(self.pending, self.inner, True, self.poses, self.weight, poses)

    def em_step(
        self,
        activations: Tensor,
        before: tuple[FitOutputs, Tensor] | None,
        normalise: Normalise,
        *,
        last: bool,
        damping: float,
        min_variance: float,
        mass_eps: float,
        couplings_with_gradient: bool = False,
    ) -> tuple[Tensor, FitOutputs]:
        """Return couplings and the fitted parents, see ``capsule_lab.kernels.base.EMStep``."""
        batch, child, parent, dim = self.shape
        if activations.shape != (batch, child):
            raise ValueError(
                f"activations are {tuple(activations.shape)}; expected one per child, {(batch, child)}"
            )
        parents, log_height = (None, None) if before is None else before
        previous = parents.poses if parents is not None and damping else None
        if previous is None:
            previous = self.poses.new_zeros(batch, parent, dim)
        given = self.poses, self.weight, activations
        options = (self.inner, damping, min_variance, mass_eps, not last)
        known: tuple[Tensor | None, ...] = (None, None, None)
        if parents is not None:
            known = parents.poses, parents.variances, parents.distances
        with_separate_gradients = torch.compiler.is_compiling()
        if not with_separate_gradients:
            couplings = self._constant_couplings(before, normalise)
            # of a tensor in the normaliser, for which ``_EMStep`` has no gradient
            with_separate_gradients = couplings.requires_grad
        if with_separate_gradients:
            couplings = self._e_step(before, normalise)
            fitted = ops.fit(*given, couplings, previous, *options)
        else:
            fitted = _EMStep.apply(
                normalise, options, couplings, *given, previous, log_height, *known
            )
        if couplings_with_gradient and before is None:
            # plain torch, because ``normalise.fused`` rounds equal couplings differently
            couplings = normalise(self.zero_logits())
        elif couplings_with_gradient:  # those of ``_EMStep`` have none
            couplings = self._e_step(before, normalise)
        return couplings, FitOutputs(*fitted)

    def _e_step(self, before: tuple[FitOutputs, Tensor] | None, normalise: Normalise) -> Tensor:
        if before is None:
            return normalise.fused(self.zero_logits())
        parents, log_height = before
        return normalise.fused(log_height.unsqueeze(2) - parents.distances)

    def _constant_couplings(
        self, before: tuple[FitOutputs, Tensor] | None, normalise: Normalise
    ) -> Tensor:
        """Compute the same couplings without a gradient of the log-couplings."""
        if before is None:
            return _first_couplings(normalise, self.poses, self.weight)
        parents, log_height = before
        return _couplings(normalise, log_height.detach(), parents.distances.detach())


class _EMStep(torch.autograd.Function):
    """E-step and M-step as one node, see the top of this file; ``couplings`` are the result of the E-step.

    The node keeps inputs, the Gaussians of both iterations and the normaliser for the backward pass, but not couplings
    and distances. Computing these again costs one sixth more work. The old Gaussians receive no gradient here:
    couplings depend on them through the old distances, an output of the previous step, whose kernel has that gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        normalise: Normalise,
        options: tuple[int, float, float, float, bool],
        couplings: Tensor,
        poses: Tensor,
        weight: Tensor,
        activations: Tensor,
        previous: Tensor,
        log_height: Tensor | None,
        old_poses: Tensor | None,
        old_variances: Tensor | None,
        old_distances: Tensor | None,  # noqa: ARG004 (for its gradient)
    ) -> tuple[Tensor, ...]:
        mass, parents, variances, distances = ops.fit(
            poses, weight, activations, couplings, previous, *options
        )
        ctx.save_for_backward(
            poses,
            weight,
            activations,
            previous,
            mass,
            parents,
            variances,
            log_height,
            old_poses,
            old_variances,
        )
        ctx.normalise, ctx.options = normalise, options
        ctx.set_materialize_grads(False)
        return mass, parents, variances, distances

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        *of_fitted, to_distances = gradients  # of mass, parents and variances; of distances
        *given, mass, parents, variances, log_height, old_poses, old_variances = ctx.saved_tensors
        poses, weight, activations, previous = given
        options = ctx.options[:3]  # inner, damping and the smallest variance
        if log_height is None:
            couplings = _first_couplings(ctx.normalise, poses, weight)
        else:
            old_distances = ops.distances(poses, weight, old_poses, old_variances, options[0])
            couplings, gradient = _couplings_with_gradient(ctx.normalise, log_height, old_distances)
            del old_distances
        fitted = mass, parents, variances
        to_fitted = [
            torch.zeros_like(value) if to is None else to
            for value, to in zip(fitted, of_fitted, strict=True)
        ]
        to_distances = mass.new_empty(*mass.shape, 0) if to_distances is None else to_distances
        to_poses, to_weight, to_activations, to_couplings, to_previous = ops.fit_backward(
            poses,
            weight,
            activations,
            couplings,
            previous,
            *fitted,
            *to_fitted,
            to_distances,
            *options,
        )
        to_height = to_old_distances = None
        if log_height is not None:
            del couplings
            to_height, to_old_distances = gradient(to_couplings)
        return (
            None,
            None,
            None,
            to_poses,
            to_weight,
            to_activations,
            to_previous,
            to_height,
            None,
            None,
            to_old_distances,
        )


def _couplings(normalise: Normalise, log_height: Tensor, distances: Tensor) -> Tensor:
    """Compute couplings from the log-couplings ``log_height - distances``, without a tensor of these."""
    if normalise.by_child is None:
        return normalise.fused(log_height.unsqueeze(2) - distances)
    return ops.e_step_by_child(log_height, distances, *normalise.by_child)


def _couplings_with_gradient(
    normalise: Normalise, log_height: Tensor, distances: Tensor
) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor | None, Tensor | None]]]:
    """Return ``_couplings`` and a function from their gradient to those of ``log_height`` and ``distances``."""
    if normalise.by_child is None:
        return _autograd_couplings(normalise, log_height, distances)
    by_child = normalise.by_child
    couplings = ops.e_step_by_child(log_height, distances, *by_child)

    def gradient(to_couplings: Tensor) -> tuple[Tensor, Tensor]:
        to_distances = ops.e_step_by_child_backward(couplings, to_couplings, *by_child)
        return to_distances.sum(2).neg_(), to_distances

    return couplings, gradient


def _autograd_couplings(
    normalise: Normalise, log_height: Tensor, distances: Tensor
) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor | None, Tensor | None]]]:
    """Return the same for a normaliser whose gradient only autograd knows."""
    with torch.enable_grad():
        logs = log_height.detach().requires_grad_().unsqueeze(2) - distances
        couplings = normalise.fused(logs)
        of_logs = get_gradient_edge(logs)  # the values are not needed any more

    def gradient(to_couplings: Tensor) -> tuple[Tensor | None, Tensor | None]:
        if not couplings.requires_grad:
            return None, None
        (to_logs,) = torch.autograd.grad(couplings, of_logs, to_couplings, materialize_grads=True)
        return to_logs.sum(2), to_logs.neg_()

    return couplings.detach(), gradient


def _first_couplings(normalise: Normalise, poses: Tensor, weight: Tensor) -> Tensor:
    """Compute couplings from equal log-couplings, the same for every image."""
    zeros = poses.new_zeros(normalise.rows_per_image, len(weight), poses.shape[2])
    couplings = normalise.fused(zeros)
    if couplings.shape != zeros.shape:
        raise ValueError(
            f"a normaliser returned couplings {tuple(couplings.shape)} for log-couplings {tuple(zeros.shape)}; "
            "expected the same shape, and if couplings depend on the image rows_per_image=the number of all rows"
        )
    return couplings.repeat(len(poses) // normalise.rows_per_image, 1, 1)


class _PendingProducts:
    """Pairs ``by_child`` and ``by_component`` whose outer products sum to the gradient of the votes.

    Dynamic routing with two iterations, from the first operation to the last; all are nodes of one graph::

        poses, weight = _ContractPending(poses, weight)   # returns both unchanged
        s_1 = _Linear(poses, weight, c_1)                 # weighted sum
        b_2 = _Linear(poses, weight, v_1)                 # agreement; v_1 depends on s_1, c_2 on b_2
        s_2 = _Linear(poses, weight, c_2)

    Its backward pass runs the nodes from the last to the first:

    1. ``s_2`` adds the pair ``(c_2, dL/ds_2)``, ``b_2`` adds ``(dL/db_2, v_1)``, ``s_1`` adds ``(c_1, dL/ds_1)``. They
       return no gradient of poses and weight, only one of their last argument.
    2. ``_ContractPending`` takes the three pairs, and contracts them with poses and weight in one kernel.

    Invariant: a pass that runs ``_ContractPending`` runs it after every ``_Linear``, because poses and weight are
    inputs of each of them. Autograd runs it although they return no gradient for these inputs.

    Two kinds of pass leave pairs behind: one for other inputs, such as biases, which does not run ``_ContractPending``,
    and one that an exception interrupts. The next pass must not contract these pairs. Its first node finds the number
    of an earlier pass and starts a new list. Thus a second pass, with ``retain_graph``, collects all of its own pairs.
    The forward pass stores nothing here, so an exception between forward and backward pass leaves nothing behind.
    """

    def __init__(self) -> None:
        self.backward_pass = -1
        self.pairs: list[tuple[Tensor, Tensor]] = []

    def of_this_pass(self) -> list[tuple[Tensor, Tensor]]:
        """Return the list of the running backward pass, which is empty when the first node of the pass asks."""
        number = backward_pass_number()
        if number != self.backward_pass:
            self.backward_pass = number
            self.pairs = []
        return self.pairs


class _ContractPending(torch.autograd.Function):
    """Return poses and weight unchanged; the backward pass adds the gradient of the pending products."""

    @staticmethod
    def forward(
        ctx: Any, pending: _PendingProducts, inner: int, poses: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(poses, weight)
        ctx.pending, ctx.inner = pending, inner
        ctx.set_materialize_grads(False)
        return poses.view_as(poses), weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, to_poses: Tensor | None, to_weight: Tensor | None) -> tuple[Any, ...]:
        pairs = ctx.pending.of_this_pass()
        if pairs:
            by_child = [of_child for of_child, _ in pairs]
            by_component = [of_component for _, of_component in pairs]
            pairs.clear()
            of_poses, of_weight = ops.contraction(
                *ctx.saved_tensors, by_child, by_component, ctx.inner
            )
            to_poses = of_poses if to_poses is None else to_poses + of_poses
            to_weight = of_weight if to_weight is None else to_weight + of_weight
        return None, None, to_poses, to_weight


class _Linear(torch.autograd.Function):
    """Sums of weighted votes, or agreement of votes with poses; each is the gradient of the other for fixed votes."""

    @staticmethod
    def forward(
        ctx: Any,
        pending: _PendingProducts,
        inner: int,
        agree: bool,
        poses: Tensor,
        weight: Tensor,
        given: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(poses, weight, given)
        ctx.pending, ctx.inner, ctx.agree = pending, inner, agree
        return _linear(agree)(poses, weight, given, inner)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        poses, weight, given = ctx.saved_tensors
        by_child, by_component = (gradient, given) if ctx.agree else (given, gradient)
        ctx.pending.of_this_pass().append((by_child, by_component))
        to_given = None
        if ctx.needs_input_grad[5]:
            to_given = _linear(not ctx.agree)(poses, weight, gradient, ctx.inner)
        return None, None, None, None, None, to_given


def _linear(agree: bool) -> Callable[[Tensor, Tensor, Tensor, int], Tensor]:
    return ops.agreement if agree else ops.weighted_sum
