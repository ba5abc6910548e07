"""Softmax over all entries of an image that belong to one child, against loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from capsule_lab.kernels import cpu
from tests.helpers.kernels import assert_near, both_types, draw

CHILD = torch.tensor([[0, 1, 2, 3], [2, 3, 4, 6], [4, 6, 0, 1]])  # no position sees 5
CHILDREN = 7


def slow_softmax(log_couplings: Tensor) -> Tensor:
    """Image by image and child by child."""
    images = log_couplings.unflatten(0, (-1, len(CHILD)))  # [b y j i]
    shares = torch.zeros_like(images)
    for number, image in enumerate(images):
        for child in range(CHILDREN):
            here = (child == CHILD)[:, None].expand_as(image)
            if here.any():
                shares[number][here] = image[here].softmax(0)
    return shares.flatten(0, 1)


@both_types
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
@pytest.mark.parametrize(("images", "parents"), [(1, 1), (3, 5), (0, 2)])
def test_softmax(images: int, parents: int, scale: float, dtype: torch.dtype) -> None:
    logs = (scale * draw(images * 3, parents, 4, seed=0)).to(dtype).double()
    assert_near(cpu.softmax_by_child(logs.to(dtype), CHILD, CHILDREN), slow_softmax(logs), dtype)


@both_types
@pytest.mark.parametrize(("images", "parents"), [(1, 1), (3, 5), (0, 2)])
def test_softmax_backward(images: int, parents: int, dtype: torch.dtype) -> None:
    logs, gradient = (draw(images * 3, parents, 4, seed=seed) for seed in (0, 1))
    shares = slow_softmax(logs.requires_grad_()) + 0 * logs
    (expected,) = torch.autograd.grad(shares, logs, gradient)
    given = shares.detach().to(dtype), gradient.to(dtype)
    assert_near(cpu.softmax_by_child_backward(*given, CHILD, CHILDREN), expected, dtype)


@both_types
def test_softmax_of_extreme_logs_are_finite(dtype: torch.dtype) -> None:
    logs = (1e6 * draw(6, 3, 4, seed=0)).to(dtype)
    shares = cpu.softmax_by_child(logs, CHILD, CHILDREN)
    assert_near(shares, slow_softmax(logs.double()), dtype)
    assert cpu.softmax_by_child_backward(shares, torch.ones_like(shares), CHILD, CHILDREN).isfinite().all()
