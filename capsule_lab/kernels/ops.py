"""Fused kernels as operators of torch, so that autograd, torch.compile and torch.export know them.

Shapes are those of ``capsule_lab.kernels.cpu``, with n rows, parents j, children i, pose entries h and k of a weight:
poses ``[n h i]``, weight ``[j k i]``, activations ``[n i]``, couplings ``[n j i]``, parents ``[n j d]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.library import custom_op

from capsule_lab.kernels.backends import fused_kernels


def _kernels(tensor: Tensor) -> Any:
    return fused_kernels(tensor.device.type)


# ------------------------------------------------------------------------------------------------ EM routing


@custom_op("capsule_lab::fit", mutates_args=())
def fit(
    poses: Tensor,
    weight: Tensor,
    activations: Tensor,
    couplings: Tensor,
    previous: Tensor,
    inner: int,
    damping: float,
    min_variance: float,
    mass_eps: float,
    measure: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mass, poses, variances of the parents, and, if asked to ``measure``, distances of the votes."""
    return _kernels(poses).fit(
        poses, weight, activations, couplings, previous, inner, damping, min_variance, mass_eps, measure
    )


@fit.register_fake
def _(
    poses: Tensor,
    weight: Tensor,
    activations: Tensor,
    couplings: Tensor,
    previous: Tensor,
    inner: int,
    damping: float,
    min_variance: float,
    mass_eps: float,
    measure: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    row, parent, child = couplings.shape
    return (
        poses.new_empty(row, parent),
        previous.new_empty(previous.shape),
        previous.new_empty(previous.shape),
        poses.new_empty(row, parent, child if measure else 0),
    )


@custom_op("capsule_lab::fit_backward", mutates_args=())
def fit_backward(
    poses: Tensor,
    weight: Tensor,
    activations: Tensor,
    couplings: Tensor,
    previous: Tensor,
    mass: Tensor,
    parents: Tensor,
    variances: Tensor,
    to_mass: Tensor,
    to_parents: Tensor,
    to_variances: Tensor,
    to_distances: Tensor,
    inner: int,
    damping: float,
    min_variance: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the tensors that ``fit`` takes."""
    return _kernels(poses).fit_backward(
        poses, weight, activations, couplings, previous, mass, parents, variances,
        to_mass, to_parents, to_variances, to_distances, inner, damping, min_variance,
    )  # fmt: skip


@fit_backward.register_fake
def _(
    poses: Tensor, weight: Tensor, activations: Tensor, couplings: Tensor, previous: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    return tuple(each.new_empty(each.shape) for each in (poses, weight, activations, couplings, previous))


def _keep_fit(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, (inner, damping, min_variance, _, measure) = inputs[:5], inputs[5:]
    ctx.save_for_backward(*tensors, *output[:3])
    ctx.options = (inner, damping, min_variance)
    ctx.measure = measure


def _fit_gradient(
    ctx: Any, to_mass: Tensor, to_parents: Tensor, to_variances: Tensor, to_distances: Tensor
) -> tuple[Tensor | None, ...]:
    gradients = (to_mass, to_parents, to_variances, to_distances)
    return (*fit_backward(*ctx.saved_tensors, *gradients, *ctx.options), None, None, None, None, None)


fit.register_autograd(_fit_gradient, setup_context=_keep_fit)


@custom_op("capsule_lab::distances", mutates_args=())
def distances(poses: Tensor, weight: Tensor, parents: Tensor, variances: Tensor, inner: int) -> Tensor:
    """Half the squared distance of each vote in units of its parent's variance."""
    return _kernels(poses).distances(poses, weight, parents, variances, inner)


@distances.register_fake
def _(poses: Tensor, weight: Tensor, parents: Tensor, variances: Tensor, inner: int) -> Tensor:
    return poses.new_empty(*parents.shape[:2], poses.shape[2])


# ------------------------------------------------------------------------------------------- dynamic routing


@custom_op("capsule_lab::weighted_sum", mutates_args=())
def weighted_sum(poses: Tensor, weight: Tensor, couplings: Tensor, inner: int) -> Tensor:
    """What arrives at each parent."""
    return _kernels(poses).weighted_sum(poses, weight, couplings, inner)


@weighted_sum.register_fake
def _(poses: Tensor, weight: Tensor, couplings: Tensor, inner: int) -> Tensor:
    return poses.new_empty(*couplings.shape[:2], poses.shape[1] // inner * (weight.shape[1] // inner))


@custom_op("capsule_lab::agreement", mutates_args=())
def agreement(poses: Tensor, weight: Tensor, parents: Tensor, inner: int) -> Tensor:
    """How much each vote agrees with its parent's pose."""
    return _kernels(poses).agreement(poses, weight, parents, inner)


@agreement.register_fake
def _(poses: Tensor, weight: Tensor, parents: Tensor, inner: int) -> Tensor:
    return poses.new_empty(*parents.shape[:2], poses.shape[2])


@custom_op("capsule_lab::contraction", mutates_args=())
def contraction(
    poses: Tensor, weight: Tensor, by_child: Sequence[Tensor], by_component: Sequence[Tensor], inner: int
) -> tuple[Tensor, Tensor]:
    """Gradients of poses and weight where that of the votes is a sum of products of two."""
    return _kernels(poses).contraction(poses, weight, by_child, by_component, inner)


@contraction.register_fake
def _(
    poses: Tensor, weight: Tensor, by_child: Sequence[Tensor], by_component: Sequence[Tensor], inner: int
) -> tuple[Tensor, Tensor]:
    return poses.new_empty(poses.shape), weight.new_empty(weight.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.inner = inputs[3]


def _weighted_sum_gradient(ctx: Any, to_sums: Tensor) -> tuple[Tensor | None, ...]:
    poses, weight, couplings = ctx.saved_tensors
    to_couplings = agreement(poses, weight, to_sums, ctx.inner) if ctx.needs_input_grad[2] else None
    return *contraction(poses, weight, [couplings], [to_sums], ctx.inner), to_couplings, None


def _agreement_gradient(ctx: Any, to_agreement: Tensor) -> tuple[Tensor | None, ...]:
    poses, weight, parents = ctx.saved_tensors
    to_parents = weighted_sum(poses, weight, to_agreement, ctx.inner) if ctx.needs_input_grad[2] else None
    return *contraction(poses, weight, [to_agreement], [parents], ctx.inner), to_parents, None


weighted_sum.register_autograd(_weighted_sum_gradient, setup_context=_keep)
agreement.register_autograd(_agreement_gradient, setup_context=_keep)


# ----------------------------------------------------------------------------------- couplings across positions


@custom_op("capsule_lab::shares", mutates_args=())
def shares(log_couplings: Tensor, child: Tensor, children: int) -> Tensor:
    """Softmax over all entries of an image that belong to the same child."""
    return _kernels(log_couplings).shares(log_couplings, child, children)


@shares.register_fake
def _(log_couplings: Tensor, child: Tensor, children: int) -> Tensor:
    return log_couplings.new_empty(log_couplings.shape)


@custom_op("capsule_lab::shares_backward", mutates_args=())
def shares_backward(couplings: Tensor, to_couplings: Tensor, child: Tensor, children: int) -> Tensor:
    """Gradient of the log-couplings."""
    return _kernels(couplings).shares_backward(couplings, to_couplings, child, children)


@shares_backward.register_fake
def _(couplings: Tensor, to_couplings: Tensor, child: Tensor, children: int) -> Tensor:
    return couplings.new_empty(couplings.shape)


def _keep_shares(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output, inputs[1])
    ctx.children = inputs[2]


def _shares_gradient(ctx: Any, to_couplings: Tensor) -> tuple[Tensor | None, ...]:
    couplings, child = ctx.saved_tensors
    return shares_backward(couplings, to_couplings, child, ctx.children), None, None


shares.register_autograd(_shares_gradient, setup_context=_keep_shares)
