"""Losses as pure functions: a batch in, one scalar out."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float, Int64
from torch import Tensor, nn

from capsule_lab.functional import float32_under_autocast


@float32_under_autocast
def margin_loss(
    scores: Float[Tensor, "batch classes"],
    labels: Int64[Tensor, " batch"] | Float[Tensor, "batch classes"],
    *,
    present: float = 0.9,  # Sabour 2017, section 3: m+
    absent: float = 0.1,  # Sabour 2017, section 3: m-
    absent_weight: float = 0.5,  # Sabour 2017, section 3: lambda
    reduction: Literal["paper", "released"] = "paper",
) -> Float[Tensor, ""]:
    """Margin loss on the lengths of the class capsules (Sabour 2017, equation 4).

    ``L_k = T_k max(0, m+ - |v_k|)^2 + lambda (1 - T_k) max(0, |v_k| - m-)^2``.

    Args:
        scores: lengths ``|v_k|``.
        labels: classes ``(batch,)``, or one row of 0 and 1 per image, several of which may be 1.
        present, absent: margins above and below which a length costs nothing.
        absent_weight: keeps the many absent classes from shrinking all lengths at first.
        reduction: ``"paper"`` sums over the classes and averages over the batch. ``"released"`` is the
            authors' code: half the mean over batch *and* classes, 1/20 of the paper's for ten classes.
            Beside it, the same reconstruction weight of 0.0005 counts 20 times as much.

    Raises:
        ValueError: for an unknown reduction.

    >>> import torch
    >>> margin_loss(torch.tensor([[0.8, 0.2]]), torch.tensor([0])).item()  # 0.1^2 + 0.5 * 0.1^2
    0.0149...
    """
    truth = _one_hot(labels, scores)
    losses = (
        truth * (present - scores).relu().square() + absent_weight * (1 - truth) * (scores - absent).relu().square()
    )  # [b k]
    if reduction == "paper":
        return losses.sum(1).mean()
    if reduction == "released":
        return 0.5 * losses.mean()  # 0.5: released code
    raise ValueError(f"margin loss reduction is {reduction!r}; expected 'paper' or 'released'")


@float32_under_autocast
def reconstruction_loss(
    reconstruction: Float[Tensor, "batch channel height width"],
    images: Float[Tensor, "batch channel height width"],
    *,
    weight: float = 0.0005,  # Sabour 2017, section 4.1
) -> Float[Tensor, ""]:
    """Squared error *summed* over an image's pixels, averaged over the batch, times ``weight`` (section 4.1).

    With a mean over pixels instead, 0.0005 would weigh 784 times less at 28x28.

    Args:
        reconstruction: decoded images in [0, 1].
        images: what they should be, in [0, 1].
        weight: 0 turns the term off.

    >>> import torch
    >>> reconstruction_loss(torch.zeros(2, 1, 2, 2), torch.ones(2, 1, 2, 2)).item()  # 4 pixels off by 1
    0.0020...
    """
    return weight * (reconstruction - images).square().flatten(1).sum(1).mean()


@float32_under_autocast
def cross_entropy_loss(
    scores: Float[Tensor, "batch classes"], labels: Int64[Tensor, " batch"] | Float[Tensor, "batch classes"]
) -> Float[Tensor, ""]:
    """Softmax cross-entropy, averaged over the batch.

    Args:
        scores: logits.
        labels: classes, or probabilities per class.
    """
    return nn.functional.cross_entropy(scores, labels)


def _one_hot(labels: Tensor, scores: Tensor) -> Tensor:
    if labels.ndim == 1:
        labels = nn.functional.one_hot(labels, scores.shape[1])
    return labels.to(scores.dtype)
