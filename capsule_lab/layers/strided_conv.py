"""A strided convolution that trains faster on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d
from torch.nn.grad import conv2d_input


class StridedConv2d(nn.Conv2d):
    """``torch.nn.Conv2d`` whose weights' gradient is computed as a convolution on a CPU.

    The gradient of a weight is the sum over images and positions of the output's gradient times the input under it:
    the convolution of the input by the output's gradient, dilated by the stride, with images and channels exchanged.
    oneDNN does this in half the time of its own backward pass of the CapsNet's primary capsules (9x9, stride 2).
    Everything else is as in ``torch.nn.Conv2d``, and so are the numbers but for the rounding of sums.

    Without bias, padding, dilation and groups, which the primary capsules do not have.

    Args:
        in_channels, out_channels: of the feature maps.
        kernel_size, stride: of the convolution.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        if features.device.type != "cpu" or not torch.is_grad_enabled():
            return super().forward(features)
        weight = self.weight
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            features, weight = features.to(dtype), weight.to(dtype)
        with torch.autocast("cpu", enabled=False):
            output: Tensor = _Conv2d.apply(features, weight, self.stride)
        return output


class _Conv2d(torch.autograd.Function):
    @staticmethod
    def forward(features: Tensor, weight: Tensor, stride: tuple[int, int]) -> Tensor:
        return conv2d(features, weight, stride=stride)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, tuple[int, int]], output: Tensor) -> None:  # noqa: ARG004
        features, weight, ctx.stride = inputs
        ctx.save_for_backward(features, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        features, weight = ctx.saved_tensors
        of_features = of_weight = None
        if ctx.needs_input_grad[0]:
            of_features = conv2d_input(features.shape, weight, grad, ctx.stride)
        if ctx.needs_input_grad[1]:
            # rows and columns at the end that no window reaches would make the gradient larger than the kernel
            height, width = (
                (n - 1) * s + k for n, s, k in zip(grad.shape[2:], ctx.stride, weight.shape[2:], strict=True)
            )
            reached = features[:, :, :height, :width].transpose(0, 1).contiguous()
            of_weight = conv2d(reached, grad.transpose(0, 1).contiguous(), dilation=ctx.stride).transpose(0, 1)
        return of_features, of_weight, None
