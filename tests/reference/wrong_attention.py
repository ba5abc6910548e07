"""Wrong versions found in official code of inverted dot-product attention and scaled-distance agreement.

Each must fail a test. Numbers in brackets are sections of the project's notes on further routings.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from tests.reference.wrong import squash


def windows(poses: Tensor, kernel: int, stride: int) -> Tensor:
    """Poses ``(b, y, x, type, d)`` to those of each window, ``(b, y', x', ky, kx, type, d)``."""
    found = poses.unfold(1, kernel, stride).unfold(2, kernel, stride)
    return found.permute(0, 1, 2, 5, 6, 3, 4)


def scrambled_windows(poses: Tensor, kernel: int, stride: int) -> Tensor:
    """Windows stacked on a last axis and read as ``(y', x', d)`` without a permutation [4.4]: positions mix."""
    right = windows(poses, kernel, stride)
    batch, height, width, *_, types, dim = right.shape
    stacked = right.permute(0, 3, 4, 5, 6, 1, 2).contiguous()  # (b, ky, kx, type, d, y', x')
    read = stacked.view(batch, kernel, kernel, types, height, width, dim)
    return read.permute(0, 4, 5, 1, 2, 3, 6)


def mean_over_image(distances: Tensor) -> Tensor:
    return distances.mean((1, 2), keepdim=True)


def mean_over_batch(distances: Tensor) -> Tensor:
    """One scale for all images [9]: what else is in a batch changes an image."""
    return distances.mean()


def scaled_distances(votes: Tensor, lengths: Tensor, mean: Callable[[Tensor], Tensor] = mean_over_image) -> Tensor:
    """Scaled-distance agreement of three iterations with a bias of 0.1, right but for the mean that it is given."""
    size = (votes.square().sum(-1) + 1e-8).sqrt()
    votes = votes * (lengths[..., None] / size).clamp(max=1)[..., None]
    logits = votes.new_zeros(votes.shape[:3])
    for _ in range(3):
        poses = squash((logits.softmax(2)[..., None] * votes).sum(1) + 0.1)
        distances = ((poses[:, None] - votes).square().sum(-1) + 1e-8).sqrt()
        logits = math.log(0.9 * (votes.shape[2] - 1) / 0.1) / (-0.5 * mean(distances)) * distances
    return poses
