"""Losses as pure functions from a batch to a scalar.

All raise ``ValueError`` for options out of range, an empty batch, tensors that do not belong together and, on a CPU,
labels that are not classes and scores that the loss does not take; ``TypeError`` for tensors of another type.

Losses of labels take ``weights``, one for each image, which multiply the losses of the images before the mean or sum
over the batch: ``L = 1/n sum_i w_i L_i``. Unlike in torch, a mean divides by the number of images, not by the sum of
the weights, so that an image counts the same in every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from capsule_lab.errors import check_choice, check_number
from capsule_lab.functional import float32_under_autocast
from capsule_lab.shapes import (
    TOLERANCE,
    check_pixels,
    check_range,
    checks_shapes,
    is_readable,
    shares_sum_to_one,
)
from capsule_lab.types import ImageBatch

F = TypeVar("F", bound=Callable[..., Any])


def expects(scores: Literal["activations", "logits"]) -> Callable[[F], F]:
    """Set the attribute ``expects`` of a loss: the scores it takes, see ``AbstractNetwork.scores_are``.

    A loss without it takes both kinds. A run checks that loss and network fit before it starts.

    >>> margin_loss.expects
    'activations'
    """

    def mark(loss: F) -> F:
        vars(loss)["expects"] = scores
        return loss

    return mark


@expects("activations")
@checks_shapes
@float32_under_autocast
def margin_loss(
    scores: Float[Tensor, "batch classes"],
    labels: Int64[Tensor, " batch"] | Int64[Tensor, "batch label"] | Float[Tensor, "batch classes"],
    *,
    present: float = 0.9,  # Sabour 2017, section 3: m+
    absent: float = 0.1,  # Sabour 2017, section 3: m-
    absent_weight: float = 0.5,  # Sabour 2017, section 3: lambda
    reduction: Literal["paper", "official"] = "paper",
    weights: Float[Tensor, " batch"] | None = None,
) -> Float[Tensor, ""]:
    """Margin loss on the lengths of the class capsules (Sabour 2017, equation 4).

    ``L_k = T_k max(0, m+ - |v_k|)^2 + lambda (1 - T_k) max(0, |v_k| - m-)^2``.

    Args:
        scores: lengths ``|v_k|``.
        labels: classes, ``(batch,)`` or ``(batch, label)``; or one row per image with 0 and 1 or shares of the classes.
        present, absent: a length costs nothing above ``present`` (if its class is present) or below ``absent`` (if
            absent); both in [0, 1], ``present`` the larger.
        absent_weight: 0 or more; a small value prevents the many absent classes from shrinking all lengths early.
        reduction: ``"paper"`` sums over the classes and averages over the batch. ``"official"`` (the authors' code) is
            half the mean over batch *and* classes, 1/20 of that for ten classes; a reconstruction weight of 0.0005
            then counts 20 times as much.
        weights: of the images.

    >>> margin_loss(torch.tensor([[0.8, 0.2]]), torch.tensor([0])).item()  # 0.1^2 + 0.5 * 0.1^2
    0.0149...
    """
    check_number("present", present, 0, 1)
    check_number("absent", absent, 0, 1)
    check_number("absent_weight", absent_weight, 0)
    check_choice("margin loss reduction", reduction, ("paper", "official"))
    if absent >= present:
        raise ValueError(
            f"absent is {absent} and present is {present}; expected absent to be the smaller"
        )
    _check_lengths("margin_loss", scores)
    _check_labels("margin_loss", labels, scores)
    truth = _truth(labels, scores)
    missed = truth * (present - scores).relu().square()  # [b k]
    losses = missed + absent_weight * (1 - truth) * (scores - absent).relu().square()
    losses = _weighted(losses, weights)
    if reduction == "paper":
        return losses.sum(1).mean()
    return 0.5 * losses.mean()  # 0.5: official code


@expects("activations")
@checks_shapes
@float32_under_autocast
def spread_loss(
    scores: Float[Tensor, "batch classes"],
    labels: Int64[Tensor, " batch"] | Int64[Tensor, "batch label"] | Float[Tensor, "batch classes"],
    *,
    margin: float | Tensor = 0.9,  # Hinton 2018, section 4.1: m at the end of training
    reduction: Literal["paper", "official", "sum"] = "paper",
    weights: Float[Tensor, " batch"] | None = None,
) -> Float[Tensor, ""]:
    """Spread loss on the activations of the class capsules (Hinton 2018, equation 3).

    ``L = sum over wrong classes i of max(0, m - (a_t - a_i))^2``, where t is the true class.

    Args:
        scores: activations ``a``, in [0, 1].
        labels: the true class of each image, ``(batch,)``; several labels, which other losses take, are refused.
        margin: ``m``, the required lead of the true class over every other class. A schedule named ``margin``
            raises it from 0.2 during training, so that few capsules die at first.
        reduction: ``"paper"`` sums over the classes and averages over the batch. ``"official"``, as the authors'
            code, is the mean over batch *and* classes, including the true class (always 0): 1/5 of ``"paper"`` for
            five classes, so that a weight penalty counts 5 times as much. ``"sum"``, as a tutorial, sums over classes
            and the batch of each process, so that gradients grow with the batch.
        weights: of the images.

    >>> spread_loss(torch.tensor([[0.8, 0.3, 0.1]]), torch.tensor([0])).item()  # 0.4^2 + 0.2^2
    0.1999...
    """
    _check_one_label(labels, "the spread loss")
    _check_lengths("spread_loss", scores)
    _check_labels("spread_loss", labels, scores)
    check_choice("spread loss reduction", reduction, ("paper", "official", "sum"))
    if not isinstance(margin, Tensor):  # a schedule in the memory of a GPU, which is not read
        check_number("margin", margin, most=1, above=0)
    true = scores.gather(1, labels[:, None])  # [b 1]
    losses = (margin - (true - scores)).relu().square() * (1 - _truth(labels, scores))  # [b k]
    losses = _weighted(losses, weights)
    if reduction == "paper":
        return losses.sum(1).mean()
    return losses.sum() if reduction == "sum" else losses.mean()


@checks_shapes
@float32_under_autocast
def reconstruction_loss(
    reconstruction: ImageBatch,
    images: ImageBatch,
    *,
    weight: float = 0.0005,  # Sabour 2017, section 4.1
    reduction: Literal["sum", "mean"] = "sum",
) -> Float[Tensor, ""]:
    """Squared error *summed* over the pixels of an image, averaged over the batch, times ``weight`` (section 4.1).

    For images of 28x28, the mean over the pixels would be 784 times smaller.

    Args:
        reconstruction: decoded images in [0, 1].
        images: target images in [0, 1].
        weight: 0 disables the term.
        reduction: over the pixels and channels of an image, ``"sum"`` or ``"mean"`` (Mazzia 2021, weight 0.392).

    >>> reconstruction_loss(torch.zeros(2, 1, 2, 2), torch.ones(2, 1, 2, 2)).item()  # 4 pixels off by 1
    0.0020...
    """
    check_number("weight", weight, 0)
    check_choice("reconstruction reduction", reduction, ("sum", "mean"))
    _check_not_empty(images)
    for name, values in (("a reconstruction", reconstruction), ("images", images)):
        check_pixels("reconstruction_loss", name, values)
    squared = (reconstruction - images).square().flatten(1)
    return weight * (squared.sum(1) if reduction == "sum" else squared.mean(1)).mean()


@checks_shapes
@float32_under_autocast
def cross_entropy_loss(
    scores: Float[Tensor, "batch classes"],
    labels: Int64[Tensor, " batch"] | Int64[Tensor, "batch label"] | Float[Tensor, "batch classes"],
    *,
    label_smoothing: float = 0.0,
    weights: Float[Tensor, " batch"] | None = None,
) -> Float[Tensor, ""]:
    """Softmax cross-entropy, averaged over the batch.

    The softmax takes the scores unchanged. The official code of Hinton 2018 applies it to activations, where even a
    perfect answer costs ``log(1 + (classes - 1) / e)``; ``logits_cross_entropy_loss`` takes the logits of capsules.

    Args:
        scores: logits, or lengths or activations of capsules.
        labels: classes, ``(batch,)``, or one probability per class; several labels, as other losses take, are refused.
        label_smoothing: share of the target spread evenly over all classes, in [0, 1) (Szegedy 2016, section 7).
        weights: of the images.

    >>> cross_entropy_loss(torch.tensor([[9.0, 0.0]]).log1p(), torch.tensor([0])).item()  # log(1 + 1/10)
    0.0953...
    """
    check_number("label_smoothing", label_smoothing, 0, below=1)
    if not labels.is_floating_point():
        _check_one_label(labels, "softmax cross-entropy")
    _check_labels("cross_entropy_loss", labels, scores)
    if labels.is_floating_point() and not shares_sum_to_one(labels):
        raise ValueError(
            "cross_entropy_loss received shares of classes that do not sum to 1 for each image; expected one "
            "probability per class; with several labels, use loss=margin for capsules, loss=sigmoid_cross_entropy for "
            "logits"
        )
    if weights is None:
        return nn.functional.cross_entropy(scores, labels, label_smoothing=label_smoothing)
    losses = nn.functional.cross_entropy(
        scores, labels, label_smoothing=label_smoothing, reduction="none"
    )
    return (losses * weights).mean()


@expects("logits")
@checks_shapes
@float32_under_autocast
def logits_cross_entropy_loss(
    logits: Float[Tensor, "batch classes"],
    labels: Int64[Tensor, " batch"] | Int64[Tensor, "batch label"] | Float[Tensor, "batch classes"],
    *,
    label_smoothing: float = 0.0,
    weights: Float[Tensor, " batch"] | None = None,
) -> Float[Tensor, ""]:
    """Softmax cross-entropy of logits, such as those of class capsules, which unlike activations do not saturate."""
    return cross_entropy_loss(logits, labels, label_smoothing=label_smoothing, weights=weights)


@expects("logits")
@checks_shapes
@float32_under_autocast
def sigmoid_cross_entropy_loss(
    scores: Float[Tensor, "batch classes"],
    labels: Int64[Tensor, " batch"] | Int64[Tensor, "batch label"] | Float[Tensor, "batch classes"],
    *,
    weights: Float[Tensor, " batch"] | None = None,
) -> Float[Tensor, ""]:
    """Binary cross-entropy of each class, summed over the classes and averaged over the batch.

    For networks without capsules and images with several labels (Sabour 2017, section 6). The official code halves the
    targets if there are two labels, so that no prediction can be correct; here the targets are 1.

    Args:
        scores: logits.
        labels: classes, ``(batch,)`` or ``(batch, label)``; or one row per image with 0 and 1.
        weights: of the images.

    >>> sigmoid_cross_entropy_loss(torch.zeros(1, 3), torch.tensor([[0, 2]])).item()  # 3 log 2
    2.0794...
    """
    _check_labels("sigmoid_cross_entropy_loss", labels, scores)
    truth = _truth(labels, scores)
    losses = nn.functional.binary_cross_entropy_with_logits(scores, truth, reduction="none")
    return _weighted(losses, weights).sum(1).mean()


def l2_loss(
    parameters: Iterable[Tensor],
    *,
    weight: float = 2e-7,  # official code of Hinton 2018
) -> Float[Tensor, ""]:
    """Half the sum of the squared weights of all kernels, times ``weight`` (official code of Hinton 2018).

    ``L = weight * 1/2 |W|^2`` is added to the loss; with Adam this differs from decoupled weight decay.

    Args:
        parameters: kernels. One-dimensional parameters, such as the scales of batch normalisation, are ignored.
        weight: 0 disables the term.

    >>> l2_loss([torch.full((2, 2), 3.0), torch.full((2,), 3.0)], weight=0.1).item()  # 0.1 * 1/2 * 4 * 9
    1.8...
    """
    check_number("weight", weight, 0)
    if isinstance(parameters, Tensor):
        raise TypeError(
            f"l2_loss received a tensor {tuple(parameters.shape)}; expected several, such as network.parameters()"
        )
    return weight * _half_squares(*(kernel for kernel in parameters if kernel.ndim > 1))


@float32_under_autocast
def _half_squares(*kernels: Tensor) -> Tensor:
    total = torch.zeros(())
    for kernel in kernels:
        total = total + 0.5 * kernel.square().sum()  # 0.5: the gradient is the kernel
    return total


def _weighted(losses: Tensor, weights: Tensor | None) -> Tensor:
    """Return losses ``(batch, class)``, those of each image times its weight."""
    return losses if weights is None else losses * weights.unsqueeze(1)


def _truth(labels: Tensor, scores: Tensor) -> Tensor:
    """Return one row per image, with 0 and 1 or with the shares of the classes."""
    if labels.is_floating_point():
        return labels.to(scores.dtype)
    return torch.zeros_like(scores).scatter(1, labels.reshape(len(scores), -1), 1.0)


def _check_not_empty(batch: Tensor) -> None:
    if not len(batch):
        raise ValueError("the batch is empty; expected one or more images")


def _check_labels(loss: str, labels: Tensor, scores: Tensor) -> None:
    """Check that there are images and, on a CPU (a GPU would have to synchronise), that their labels are classes."""
    _check_not_empty(scores)
    if labels.is_floating_point():
        check_range(loss, "shares of classes", labels, -TOLERANCE, 1 + TOLERANCE, "0 to 1")
        return
    classes = scores.shape[1]
    if labels.ndim == 2 and labels.shape[1] >= classes > 1:
        raise ValueError(
            f"{loss} received {labels.shape[1]} labels for each image and scores of {classes} classes; expected fewer "
            "class numbers than classes; rows of 0 and 1 must be floats: labels.float()"
        )
    if not is_readable(labels) or not labels.numel():
        return
    lowest, highest = (int(bound) for bound in labels.aminmax())
    if lowest < 0 or highest >= classes:
        raise ValueError(f"labels are {lowest} to {highest}; expected classes, 0 to {classes - 1}")


def _check_lengths(loss: str, scores: Tensor) -> None:
    """Check, on a CPU, that scores are not logits. The bounds are ours: the authors' unit test has -0.5 to 1.2."""
    check_range(
        loss,
        "scores",
        scores,
        -1,
        2,
        "lengths or activations, 0 to 1; the scores of a network, not its logits",
    )


def _check_one_label(labels: Tensor, loss: str) -> None:
    if labels.is_floating_point() and shares_sum_to_one(labels):
        raise ValueError(
            f"{loss} takes one label per image, but these are shares of classes, as from data.mixup; use "
            "loss=margin, loss=cross_entropy or data.mixup=null"
        )
    if labels.ndim > 1:
        if labels.shape[1] == 1 and not labels.is_floating_point():
            raise ValueError(
                f"{loss} received labels of the shape {tuple(labels.shape)}; expected one class per image, "
                f"({len(labels)},): labels[:, 0]"
            )
        several = f"have {labels.shape[1]}"
        if labels.is_floating_point():
            several = "are shares of classes that do not sum to 1, as of several labels"
        raise ValueError(
            f"{loss} takes one label per image, but these {several}; use loss=margin for capsules, "
            "loss=sigmoid_cross_entropy for logits"
        )
