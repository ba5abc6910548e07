from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d

from capsule_lab.layers.strided_conv import StridedConv2d

SIZES = [(9, 3, 2), (10, 3, 2), (11, 4, 3), (8, 3, 1), (20, 9, 2)]
"""Sizes of the input, the kernel and the stride; in some, the last row and column are in no window."""


@pytest.mark.parametrize(("size", "kernel_size", "stride"), SIZES)
def test_gradients_are_those_of_torch(size: int, kernel_size: int, stride: int) -> None:
    ours = StridedConv2d(3, 4, kernel_size, stride).double()
    torchs = nn.Conv2d(3, 4, kernel_size, stride, bias=False).double()
    torchs.load_state_dict(ours.state_dict())
    features = torch.randn(2, 3, size, size + 1, dtype=torch.float64, requires_grad=True)
    output = ours(features)
    grad = torch.randn_like(output)
    torch.testing.assert_close(output, torchs(features), rtol=0, atol=0)
    found = torch.autograd.grad(output, (features, ours.weight), grad)
    expected = torch.autograd.grad(torchs(features), (features, torchs.weight), grad)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_second_derivatives() -> None:
    conv = StridedConv2d(2, 3, 3, 2).double()
    features = torch.randn(2, 2, 6, 6, dtype=torch.float64, requires_grad=True)

    def function(features: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(conv, {"weight": weight}, (features,))

    torch.autograd.gradcheck(function, (features, conv.weight))
    torch.autograd.gradgradcheck(function, (features, conv.weight))


def test_the_weights_gradient_is_a_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    dilations = []

    def recorded(*args: Any, **options: Any) -> torch.Tensor:
        dilations.append(options.get("dilation"))
        return conv2d(*args, **options)

    monkeypatch.setattr("capsule_lab.layers.strided_conv.conv2d", recorded)
    StridedConv2d(3, 4, 3, 2)(torch.randn(2, 3, 9, 9)).sum().backward()
    assert dilations == [None, (2, 2)]


def test_autocast_computes_in_bfloat16_and_gives_float32_gradients() -> None:
    conv = StridedConv2d(3, 4, 3, 2)
    features = torch.randn(2, 3, 9, 9)
    with torch.autocast("cpu", torch.bfloat16):
        output = conv(features)
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    expected = torch.autograd.grad(conv2d(features, conv.weight, stride=2).sum(), conv.weight)[0]
    assert conv.weight.grad is not None
    assert conv.weight.grad.dtype == torch.float32
    torch.testing.assert_close(conv.weight.grad, expected, rtol=0.02, atol=0.05)


def test_features_that_need_no_gradient_and_frozen_weights() -> None:
    conv = StridedConv2d(3, 4, 3, 2)
    conv(torch.randn(2, 3, 9, 9)).sum().backward()
    conv.requires_grad_(False)
    features = torch.randn(2, 3, 9, 9, requires_grad=True)
    conv(features).sum().backward()
    assert features.grad is not None
    with torch.no_grad():
        assert not conv(features).requires_grad
