"""Transforms of all votes at once, as by a change of viewpoint, and example votes."""

from collections.abc import Callable

import torch
from torch import Tensor


def example() -> tuple[Tensor, Tensor]:
    """Votes ``sin(.37 n) + .3 cos(1.7 n)``, ``(1, 6, 3, 16)``, and activations of the children."""
    n = torch.arange(288, dtype=torch.float64)
    votes = torch.sin(0.37 * n + 0.1) + 0.3 * torch.cos(1.7 * n)
    activations = 0.5 + 0.4 * torch.sin(0.91 * n[:6])
    return votes.view(1, 6, 3, 16), activations.unsqueeze(0)


def _orthogonal(size: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(size, size, generator=generator, dtype=torch.float64)
    orthogonal, _ = torch.linalg.qr(noise)
    return orthogonal


def _permuted(poses: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(16, generator=generator)
    negative = torch.randint(2, (16,), generator=generator)
    return poses[..., order] * (2 * negative - 1)


def _in_a_turned_frame(poses: Tensor) -> Tensor:
    """``Q M``."""
    matrices = poses.unflatten(-1, (4, 4))
    turned = _orthogonal(4) @ matrices
    return turned.flatten(-2)


def _rotated(poses: Tensor) -> Tensor:
    return poses @ _orthogonal(16)


def _shifted(poses: Tensor) -> Tensor:
    return poses + torch.linspace(-1, 1, 16, dtype=torch.float64)


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "rotation of 16 components": _rotated,
    "turned frame of 4x4 poses": _in_a_turned_frame,
    "signed permutation": _permuted,
    "shift": _shifted,
}
"""The same function changes votes and, where routing is equivariant, the poses of the parents."""
