"""What an attack raises: per image, from logits, larger the nearer the network is to the wrong answer.

Of scores that saturate, such as lengths and activations of capsules, the gradient vanishes on just the images that a
network is sure of, and it looks robust where it is not; so all of these take logits, see ``CapsuleOutput.logits``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

AttackLoss = Callable[[Float[Tensor, "batch class"], Int64[Tensor, " batch"]], Float[Tensor, " batch"]]

_SMALL = 1e-12  # Croce and Hein 2020's code: of logits that are all alike


def cross_entropy(
    logits: Float[Tensor, "batch class"], classes: Int64[Tensor, " batch"], *, targeted: bool = False
) -> Float[Tensor, " batch"]:
    """Softmax cross-entropy of the label; targeted, less that of the target (Goodfellow et al. 2015).

    ``classes`` are the labels or, if it is targeted, what the network shall say.
    """
    loss = torch.nn.functional.cross_entropy(logits, classes, reduction="none")
    return -loss if targeted else loss


def margin(
    logits: Float[Tensor, "batch class"], classes: Int64[Tensor, " batch"], *, targeted: bool = False
) -> Float[Tensor, " batch"]:
    """By how much the best other class is ahead of the label, or the target of all others (Carlini and Wagner 2017).

    It never saturates, and is above 0 just where the attack succeeds. Arguments are those of ``cross_entropy``.
    """
    own = _logit_of(logits, classes)
    others = _without(logits, classes).amax(1)
    return own - others if targeted else others - own


def dlr(
    logits: Float[Tensor, "batch class"],
    classes: Int64[Tensor, " batch"],
    *,
    targets: Int64[Tensor, " batch"] | None = None,
) -> Float[Tensor, " batch"]:
    """Difference of logits ratio (Croce and Hein 2020, equations 5 and 6): the margin, whatever the logits' scale.

    ``classes`` are the labels, and ``targets`` what the network shall say; ``None`` is anything but the label.
    """
    least = 3 if targets is None else 4
    if logits.shape[1] < least:
        raise ValueError(f"the logits are of {logits.shape[1]} classes; the loss dlr needs {least}, margin needs 2")
    label = _logit_of(logits, classes)
    ordered = logits.sort(dim=1, descending=True).values
    if targets is None:
        return margin(logits, classes) / (ordered[:, 0] - ordered[:, 2]).clamp(min=_SMALL)
    return (_logit_of(logits, targets) - label) / (ordered[:, 0] - ordered[:, 2:4].mean(1)).clamp(min=_SMALL)


def _logit_of(logits: Tensor, classes: Tensor) -> Tensor:
    return logits.gather(1, classes[:, None])[:, 0]


def _without(logits: Tensor, classes: Tensor) -> Tensor:
    return logits.scatter(1, classes[:, None], -torch.inf)
