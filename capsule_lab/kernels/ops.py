"""Fused kernels as torch operators, so that autograd, torch.compile and torch.export support them.

Shapes as in ``capsule_lab.kernels.cpu``, with n rows, j parents, i children, h entries of a pose, k of a weight:
poses ``[n h i]``, weight ``[j k i]``, activations ``[n i]``, couplings ``[n j i]``, parents ``[n j d]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.library import custom_op

from capsule_lab.kernels.backends import fused_kernels
from capsule_lab.kernels.em_arguments import FitInputs, FitOptions, FitOutputs, Parents


def _kernels(tensor: Tensor) -> Any:
    return fused_kernels(tensor.device.type)


def _like(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return uninitialised results of the same shapes."""
    return tuple(tensor.new_empty(tensor.shape) for tensor in tensors)


def _like_first(tensor: Tensor, *_: Any) -> Tensor:
    return tensor.new_empty(tensor.shape)


def _per_child(poses: Tensor, weight: Tensor, parents: Tensor, *_: Any) -> Tensor:
    """Return an uninitialised result ``[n j i]``."""
    return poses.new_empty(*parents.shape[:2], poses.shape[2])


def _check(poses: Tensor, weight: Tensor, inner: int, **given: Tensor) -> None:
    """Raise ``ValueError`` for tensors that do not fit to poses and weight.

    Kernels would read and write beyond the ends of arrays, for example with couplings of another number of rows from a
    user's normaliser.
    """
    row, entries, child = poses.shape
    parent, weight_entries, _ = weight.shape
    dim = entries // inner * (weight_entries // inner)
    expected = {
        "activations": (row, child),
        "couplings": (row, parent, child),
        "previous": (row, parent, dim),
        "parents": (row, parent, dim),
        "variances": (row, parent, dim),
    }
    for name, tensor in given.items():
        if tensor.shape != expected[name] or tensor.dtype != poses.dtype:
            raise ValueError(
                f"{name} are {tuple(tensor.shape)} of {tensor.dtype}; expected {expected[name]} of {poses.dtype} for "
                "these votes: repeat rows with expand(), or convert with to()"
            )


def _check_places(child: Tensor, tensor: Tensor) -> None:
    """Raise ``ValueError`` for log-couplings or distances of other positions than those of ``child``."""
    positions, places = child.shape
    if tensor.ndim != 3 or tensor.shape[0] % positions or tensor.shape[2] != places:
        raise ValueError(
            f"log-couplings are {tuple(tensor.shape)}; expected (row, parent, {places}) and a multiple of {positions} "
            "rows: use the normaliser of the layer that computed the votes"
        )


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
    """Compute ``FitOutputs`` from ``FitInputs`` and ``FitOptions``."""
    _check(poses, weight, inner, activations=activations, couplings=couplings, previous=previous)
    inputs = FitInputs(poses, weight, activations, couplings, previous)
    options = FitOptions(inner, damping, min_variance, mass_eps, measure)
    outputs: FitOutputs = _kernels(poses).fit(inputs, options)
    return outputs


@fit.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    inputs = FitInputs(*arguments[:5])
    options = FitOptions(*arguments[5:])
    row, parent, child = inputs.couplings.shape
    distances = inputs.poses.new_empty(row, parent, child if options.measure else 0)
    return inputs.poses.new_empty(row, parent), *_like(inputs.previous, inputs.previous), distances


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
    grad_mass: Tensor,
    grad_parents: Tensor,
    grad_variances: Tensor,
    grad_distances: Tensor,
    inner: int,
    damping: float,
    min_variance: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of ``FitInputs`` from ``Parents`` and the gradients of ``FitOutputs``."""
    _check(poses, weight, inner, couplings=couplings, parents=parents, variances=variances)
    inputs = FitInputs(poses, weight, activations, couplings, previous)
    grad_outputs = FitOutputs(grad_mass, grad_parents, grad_variances, grad_distances)
    fitted = Parents(mass, parents, variances)
    grads: FitInputs = _kernels(poses).fit_backward(
        inputs, fitted, grad_outputs, inner, damping, min_variance
    )
    return grads


fit_backward.register_fake(lambda *arguments: _like(*arguments[:5]))


def _keep_fit(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    options = FitOptions(*inputs[5:])
    ctx.save_for_backward(*inputs[:5], *output[:3])
    ctx.options = options.inner, options.damping, options.min_variance


def _fit_gradient(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
    grads = fit_backward(*ctx.saved_tensors, *grad_outputs, *ctx.options)
    return *grads, None, None, None, None, None


fit.register_autograd(_fit_gradient, setup_context=_keep_fit)


@custom_op("capsule_lab::distances", mutates_args=())
def distances(
    poses: Tensor, weight: Tensor, parents: Tensor, variances: Tensor, inner: int
) -> Tensor:
    """Compute half the squared distance of each vote in units of its parent's variance."""
    _check(poses, weight, inner, parents=parents, variances=variances)
    return _kernels(poses).distances(poses, weight, parents, variances, inner)


distances.register_fake(_per_child)


# ------------------------------------------------------------------------------------------- dynamic routing


@custom_op("capsule_lab::weighted_sum", mutates_args=())
def weighted_sum(poses: Tensor, weight: Tensor, couplings: Tensor, inner: int) -> Tensor:
    """Compute the total input of each parent."""
    _check(poses, weight, inner, couplings=couplings)
    return _kernels(poses).weighted_sum(poses, weight, couplings, inner)


@weighted_sum.register_fake
def _(poses: Tensor, weight: Tensor, couplings: Tensor, inner: int) -> Tensor:
    rows, columns = poses.shape[1] // inner, weight.shape[1] // inner
    return poses.new_empty(*couplings.shape[:2], rows * columns)


@custom_op("capsule_lab::agreement", mutates_args=())
def agreement(poses: Tensor, weight: Tensor, parents: Tensor, inner: int) -> Tensor:
    """Compute the agreement of each vote with the pose of its parent."""
    _check(poses, weight, inner, parents=parents)
    return _kernels(poses).agreement(poses, weight, parents, inner)


agreement.register_fake(_per_child)


@custom_op("capsule_lab::contraction", mutates_args=())
def contraction(
    poses: Tensor,
    weight: Tensor,
    by_child: Sequence[Tensor],
    by_component: Sequence[Tensor],
    inner: int,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of poses and weight if the gradient of the votes is a sum of outer products."""
    return _kernels(poses).contraction(poses, weight, by_child, by_component, inner)


contraction.register_fake(lambda poses, weight, *_: _like(poses, weight))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.inner = inputs[3]


def _weighted_sum_gradient(ctx: Any, grad_sums: Tensor) -> tuple[Tensor | None, ...]:
    poses, weight, couplings = ctx.saved_tensors
    grads = contraction(poses, weight, [couplings], [grad_sums], ctx.inner)
    grad_couplings = None
    if ctx.needs_input_grad[2]:
        grad_couplings = agreement(poses, weight, grad_sums, ctx.inner)
    return *grads, grad_couplings, None


def _agreement_gradient(ctx: Any, grad_agreement: Tensor) -> tuple[Tensor | None, ...]:
    poses, weight, parents = ctx.saved_tensors
    grads = contraction(poses, weight, [grad_agreement], [parents], ctx.inner)
    grad_parents = None
    if ctx.needs_input_grad[2]:
        grad_parents = weighted_sum(poses, weight, grad_agreement, ctx.inner)
    return *grads, grad_parents, None


weighted_sum.register_autograd(_weighted_sum_gradient, setup_context=_keep)
agreement.register_autograd(_agreement_gradient, setup_context=_keep)


# ----------------------------------------------------------------------------------- couplings across positions


@custom_op("capsule_lab::softmax_by_child", mutates_args=())
def softmax_by_child(log_couplings: Tensor, child: Tensor, children: int) -> Tensor:
    """Compute a softmax over all entries of an image that belong to the same child."""
    _check_places(child, log_couplings)
    return _kernels(log_couplings).softmax_by_child(log_couplings, child, children)


softmax_by_child.register_fake(_like_first)


@custom_op("capsule_lab::softmax_by_child_backward", mutates_args=())
def softmax_by_child_backward(
    couplings: Tensor, grad_couplings: Tensor, child: Tensor, children: int
) -> Tensor:
    """Compute the gradient of the log-couplings."""
    return _kernels(couplings).softmax_by_child_backward(couplings, grad_couplings, child, children)


softmax_by_child_backward.register_fake(_like_first)


def _keep_softmax(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output, inputs[1])
    ctx.children = inputs[2]


def _softmax_gradient(ctx: Any, grad_couplings: Tensor) -> tuple[Tensor | None, ...]:
    couplings, child = ctx.saved_tensors
    gradient = softmax_by_child_backward(couplings, grad_couplings, child, ctx.children)
    return gradient, None, None


softmax_by_child.register_autograd(_softmax_gradient, setup_context=_keep_softmax)


@custom_op("capsule_lab::e_step_by_child", mutates_args=())
def e_step_by_child(log_height: Tensor, distances: Tensor, child: Tensor, children: int) -> Tensor:
    """Compute ``softmax_by_child`` of ``log_height - distances``; ``log_height`` is ``[n j]``. Has no autograd."""
    _check_places(child, distances)
    return _kernels(distances).e_step_by_child(log_height, distances, child, children)


@e_step_by_child.register_fake
def _(log_height: Tensor, distances: Tensor, child: Tensor, children: int) -> Tensor:
    return distances.new_empty(distances.shape)


@custom_op("capsule_lab::e_step_by_child_backward", mutates_args=())
def e_step_by_child_backward(
    couplings: Tensor, grad_couplings: Tensor, child: Tensor, children: int
) -> Tensor:
    """Compute the gradient of the distances; that of ``log_height`` is its negative sum over the children."""
    return _kernels(couplings).e_step_by_child_backward(couplings, grad_couplings, child, children)


e_step_by_child_backward.register_fake(_like_first)
