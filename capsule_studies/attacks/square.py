"""The Square attack, which queries logits and needs no gradient, so that masked gradients do not stop it."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from capsule_lab.data.transforms import element_keys, random_bits
from capsule_lab.errors import check_number
from capsule_studies.attacks.gradient import UNIT, Box
from capsule_studies.attacks.kind import attack

_HALVED_AT = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""The queries, of 10,000, after which the share of changed pixels is halved (Andriushchenko et al. 2020, section 4)."""


@attack("square", queries=True)
def square(
    objective: Any,
    images: Float[Tensor, "batch channel height width"],
    epsilon: float,
    key: Int64[Tensor, " batch"],
    box: Box = UNIT,
    *,
    queries: int = 5000,  # Croce and Hein 2020
    share: float = 0.8,  # Andriushchenko et al. 2020, of MNIST
) -> Float[Tensor, "batch channel height width"]:
    """Change random squares, without gradients (Andriushchenko et al. 2020).

    The attack begins with vertical stripes. Each query changes one square of an image by plus or minus epsilon, with a
    random sign per channel, and keeps it if it increases the objective's ``success``. Queries end at the first success.

    Args:
        queries, share: largest number of queries for each image; share of the pixels in the first squares.
    """
    check_number("queries", queries, 1)
    check_number("share", share, 0, 1, above=0)
    low = torch.maximum(images - epsilon, images.clamp(max=box.low))
    high = torch.minimum(images + epsilon, images.clamp(min=box.high))
    channels, height, width = images.shape[1:]
    with torch.no_grad():
        stripes = _flips(key, 0, (channels, 1, width))
        best = torch.where(stripes, high, low)
        value = objective.success(best)
        for query in range(1, queries):
            rest = (value <= 0).nonzero()[:, 0]
            if not len(rest):
                break
            keys = key[rest]
            of_10_000 = query * 10_000 // queries
            side = _side(share, of_10_000, height, width)
            inside = _window(keys, query, side, height, width)
            is_high = _flips(keys, 4 * query + 3, (channels, 1, 1))
            corner = torch.where(is_high, high[rest], low[rest])
            proposed = torch.where(inside[:, None], corner, best[rest])
            reached = objective.at(rest).success(proposed)
            better = reached > value[rest]
            improved = rest[better]
            best[improved] = proposed[better]
            value[improved] = reached[better]
    return best


def _side(share: float, query: int, height: int, width: int) -> int:
    """Return the side of the squares in pixels; ``query`` is of 10,000."""
    halvings = sum(query > number for number in _HALVED_AT)
    area = share / 2**halvings * height * width
    side = max(round(area**0.5), 1)
    return min(side, height, width)


def _window(key: Tensor, query: int, side: int, height: int, width: int) -> Tensor:
    """Return which pixels are in a square at a random place of each image, ``(batch, height, width)``."""
    top = random_bits(key, 4 * query + 1) % (height - side + 1)
    start = random_bits(key, 4 * query + 2) % (width - side + 1)
    row = torch.arange(height, device=key.device) - top[:, None]
    column = torch.arange(width, device=key.device) - start[:, None]
    in_rows = (row >= 0) & (row < side)
    in_columns = (column >= 0) & (column < side)
    return in_rows[:, :, None] & in_columns[:, None, :]


def _flips(key: Tensor, stream: int, shape: tuple[int, ...]) -> Tensor:
    bits = random_bits(element_keys(key, shape), stream)
    return (bits & 1).bool()
