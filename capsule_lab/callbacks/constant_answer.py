"""The loss of a network that ignores its input: of the best answer that is the same for every image."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# ours: images that represent the frequencies of classes for a loss that takes no shares
_ROWS = 1000
_STEPS = 100  # ours: L-BFGS needs about ten


def loss_of_constant(
    loss: Callable[[Tensor, Tensor], Tensor], scores: Tensor, frequencies: Tensor, batch_size: int
) -> Tensor:
    """Return the loss of ``scores``, one for each class, as the answer for every image of a batch.

    The losses are linear in the labels, so that one row with the shares of the classes has the loss of a batch with
    these ``frequencies``, which sum up to the number of labels per image. A loss that takes one label per image gets
    images in proportion instead.
    """
    try:
        return loss(scores[None], frequencies[None])
    except (ValueError, TypeError):
        counts = (_ROWS * frequencies / frequencies.sum()).round().long()
        labels = torch.arange(len(counts)).repeat_interleave(counts)
        total = loss(scores.expand(len(labels), -1), labels)
        of_one = loss(scores.expand(1, -1), labels[:1])
        of_two = loss(scores.expand(2, -1), labels[:1].expand(2))
        # 1.5: between a mean over the batch, which is equal, and a sum, which is twice as much
        is_sum = bool(of_two > 1.5 * of_one)
        return total * batch_size / len(labels) if is_sum else total


def best_constant_loss(
    loss: Callable[[Tensor, Tensor], Tensor],
    frequencies: Tensor,
    batch_size: int = 1,
    *,
    logits: bool = False,
) -> float:
    """Return the smallest loss of an answer that does not depend on the image, found numerically.

    Args:
        loss: a classification loss, ``(scores, labels) -> scalar``.
        frequencies: share of the images with each class; with several labels per image, they sum up to their number.
        batch_size: images per batch, for a loss that sums over them.
        logits: whether the loss takes real numbers; otherwise activations in [0, 1].

    >>> from capsule_lab.losses import cross_entropy_loss
    >>> best_constant_loss(cross_entropy_loss, torch.tensor([0.5, 0.5]), logits=True)  # ln 2
    0.693...
    """
    free = torch.zeros(len(frequencies), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([free], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def value() -> Tensor:
        scores = free if logits else free.sigmoid()
        return loss_of_constant(loss, scores, frequencies.double(), batch_size)

    def closure() -> Tensor:
        optimizer.zero_grad()
        result = value()
        result.backward()
        return result

    with torch.enable_grad():
        optimizer.step(closure)
    return float(value().detach())
