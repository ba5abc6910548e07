"""Random arguments of the fused kernels, and how close their results must be."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

assert_exact = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


class Sizes(NamedTuple):
    row: int
    parent: int
    child: int
    rows: int
    inner: int
    columns: int


SIZES = [
    Sizes(1, 1, 1, 1, 1, 1),
    Sizes(2, 3, 17, 1, 3, 2),
    Sizes(3, 2, 73, 2, 2, 2),
    Sizes(2, 1, 72, 4, 4, 4),
    Sizes(3, 4, 3, 4, 5, 3),
    Sizes(10, 2, 5, 2, 1, 5),  # more rows than the backward pass of dynamic routing takes at a time
    Sizes(4, 3, 7, 3, 6, 1),
    Sizes(2, 2, 9, 5, 7, 6),
    Sizes(2, 2, 300, 1, 8, 16),  # more children than the blocks of dynamic routing hold
    Sizes(1, 2, 289, 2, 3, 2),
    Sizes(0, 2, 4, 2, 2, 2),
]
every_size = pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "x".join(map(str, sizes)))
both_types = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Case:
    """Random arguments of the kernels."""

    def __init__(self, sizes: Sizes) -> None:
        row, parent, child, rows, inner, columns = sizes
        self.inner = inner
        self.poses = draw(row, rows * inner, child, seed=0)
        self.weight = draw(parent, inner * columns, child, seed=1)
        self.activations = draw(row, child, seed=2).sigmoid()
        self.couplings = draw(row, parent, child, seed=3).softmax(1)
        self.parents = draw(row, parent, rows * columns, seed=4)
        self.variances = draw(row, parent, rows * columns, seed=5).square() + 0.1
        self.by_child = draw(row, parent, child, seed=6)

    def votes(self) -> Tensor:
        return dense_votes(self.poses, self.weight, self.inner)


def dense_votes(poses: Tensor, weight: Tensor, inner: int) -> Tensor:
    """Votes as a tensor ``(row, parent, child, dim)``."""
    matrices = poses.unflatten(1, (-1, inner)), weight.unflatten(1, (inner, -1))
    return torch.einsum("nrqi,jqci->njirc", *matrices).flatten(3)


def assert_near(found: Any, expected: Any, dtype: torch.dtype) -> None:
    """In float32 within 1e-5 of the largest number: a sum of several hundred is rounded to 1e-6 of it or so."""
    found, expected = ([each] if isinstance(each, Tensor) else list(each) for each in (found, expected))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        scale = 1e-5 * other.abs().amax().item() if dtype == torch.float32 and other.numel() else 1e-10
        torch.testing.assert_close(one.double(), other, rtol=1e-10, atol=max(scale, 1e-10))
