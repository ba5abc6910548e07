"""Number of optimizer steps in a training run, computed before the first step."""

from __future__ import annotations

import math
from collections.abc import Iterable


def training_length(
    batches: float, *, accumulate: int = 1, max_epochs: int = -1, max_steps: Iterable[int] = ()
) -> tuple[int, int]:
    """Compute the optimizer steps per epoch and in the whole run; schedules scale to the latter.

    Args:
        batches: training batches per epoch in one process.
        accumulate: batches per step; an epoch's last step may have fewer.
        max_epochs: limit of the run in epochs; -1 for none.
        max_steps: limits of the run in steps, of which the smallest applies; negative values mean no limit.

    >>> training_length(5, accumulate=2, max_epochs=3, max_steps=[8, -1])
    (3, 8)
    >>> training_length(4, max_epochs=0), training_length(4, max_steps=[-1, 7]), training_length(4, max_epochs=2)
    ((4, 4), (4, 7), (4, 8))
    """
    per_epoch = math.ceil(batches / accumulate)
    limits = [steps for steps in max_steps if steps >= 0]
    if max_epochs != -1:
        limits.append(per_epoch * max(max_epochs, 1))
    if not limits:
        raise ValueError("the run has no end: set trainer.max_epochs or trainer.max_steps; schedules scale to it")
    return per_epoch, min(limits)
