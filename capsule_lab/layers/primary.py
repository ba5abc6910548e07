"""Primary capsules, which compute the first poses from feature maps."""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d
from torch.nn.grad import conv2d_input

from capsule_lab import functional
from capsule_lab.errors import check_choice, check_number, check_sizes
from capsule_lab.shapes import checks_shapes
from capsule_lab.types import Capsules

Padding = Literal["valid", "same"]


class PrimaryCapsules(nn.Module):
    """Convolution whose channels are grouped into capsules and squashed (Sabour 2017, section 4).

    Channel ``type * dim + component`` at one position is component ``component`` of capsule ``type`` there:
    the components of a capsule are ``dim`` channels at *one* position. Capsules are ordered ``(type, y, x)``
    as in the official code.

    The official code routes the feature maps, as one capsule, to all types in a single iteration, which divides the
    convolution by the number of types: ``s = conv / types + bias``. With its initial weights (std 0.1) the initial
    capsules are therefore short, 0.1 instead of 0.97.

    Args:
        in_channels: channels of the feature maps.
        types: kinds of capsule per position.
        dim: components of a pose.
        kernel_size, stride: kernel size and stride of the convolution.
        padding: ``"valid"``, or ``"same"`` (output ``ceil(size / stride)``).
        bias: learn a bias per type and component, starting at 0.1.
        uniform_coupling: divide by the number of types (plus one if ``leaky``); ``False`` in most ports.
        leaky: leaky switch of the official code: with ``uniform_coupling``, 1/33 instead of 1/32.
        relu: apply ReLU before the squash, as ports based on Geron do; the paper has ReLU only in the layer below.
        squash: function that makes the poses, see ``capsule_lab.functional.SQUASHES``; activations are their lengths.
            Capsules of higher layers have the squash of their routing.
        weight_std: standard deviation of the truncated normal that initialises the weights. Without
            ``uniform_coupling``, 1/32 of it gives the same initial poses; Adam, whose steps do not depend on the
            scale of the gradients, then changes the poses 32 times as fast.
    """

    def __init__(
        self,
        in_channels: int,
        *,
        types: int = 32,  # Sabour 2017, section 4
        dim: int = 8,  # Sabour 2017, section 4
        kernel_size: int = 9,  # Sabour 2017, section 4
        stride: int = 2,
        padding: Padding = "valid",
        bias: bool = True,
        uniform_coupling: bool = True,
        leaky: bool = False,
        relu: bool = False,
        squash: functional.Squash = "squash",  # Sabour 2017, equation 1
        weight_std: float = 0.1,  # official code
    ) -> None:
        super().__init__()
        check_sizes(
            "the layer of primary capsules",
            types=types,
            dim=dim,
            kernel_size=kernel_size,
            stride=stride,
        )
        check_number("weight_std", weight_std, above=0)
        check_choice("padding", padding, get_args(Padding))
        check_choice("squash", squash, get_args(functional.Squash))
        self.types = types
        self.dim = dim
        self.padding = padding
        self.relu = relu
        self.squash = functional.SQUASHES[squash]
        self.scale = 1 / (types + leaky) if uniform_coupling else 1.0
        self.conv = StridedConv2d(in_channels, types * dim, kernel_size, stride)
        initial_bias = torch.full((types, dim, 1, 1), 0.1)  # 0.1: official code
        self.bias = nn.Parameter(initial_bias) if bias else None
        functional.truncated_normal_(self.conv.weight, weight_std)

    @checks_shapes
    def forward(
        self, features: Float[Tensor, "batch {self.conv.in_channels} height width"]
    ) -> Capsules:
        if self.padding == "same":
            size = (features.shape[2], features.shape[3])
            kernel_size, stride = self.conv.kernel_size[0], self.conv.stride[0]
            padding = functional.same_padding(size, kernel_size, stride)
            features = nn.functional.pad(features, padding)
        total = _float32_of_half(self.conv(features))
        total = total.unflatten(1, (self.types, self.dim)) * self.scale  # [b type dim h w]
        if self.bias is not None:
            total = total + self.bias
        if self.relu:
            total = total.relu()
        total = total.permute(0, 1, 3, 4, 2).flatten(1, 3)  # [b i c]
        poses = self.squash.poses(total)
        return Capsules(poses, functional.length(poses), self.squash.logits(total))


class DepthwisePrimaryCapsules(nn.Module):
    """Depthwise convolution whose channels are grouped into capsules and squashed (Mazzia 2021).

    Channels and capsules are ordered as in ``PrimaryCapsules``.

    Args:
        channels: number of feature maps.
        size: ``(height, width)`` of the feature maps.
        dim: components of a pose.
        kernel_size: kernel size of the convolution; ``None``: size of the feature maps, so that there is one position.
        stride: stride of the convolution.

    Attributes:
        count: number of capsules.
    """

    def __init__(
        self,
        channels: int,
        size: tuple[int, int],
        *,
        dim: int = 8,  # Mazzia 2021
        kernel_size: int | None = None,  # Mazzia 2021
        stride: int = 1,
    ) -> None:
        super().__init__()
        kernel = size if kernel_size is None else (kernel_size, kernel_size)
        check_sizes("the layer of primary capsules", dim=dim, kernel_size=kernel[0], stride=stride)
        if channels % dim:
            raise ValueError(
                f"there are {channels} channels for capsules of {dim} components; expected a multiple"
            )
        if kernel_size is not None and kernel_size > min(size):
            raise ValueError(
                f"feature maps are {size[0]}x{size[1]}, smaller than the {kernel[0]}x{kernel[1]} kernel of the primary "
                "capsules; expected larger images or a smaller kernel"
            )
        self.dim = dim
        rows = (size[0] - kernel[0]) // stride + 1
        columns = (size[1] - kernel[1]) // stride + 1
        self.count = channels // dim * rows * columns
        self.conv = nn.Conv2d(channels, channels, kernel, stride, groups=channels)
        nn.init.xavier_uniform_(self.conv.weight)  # official code: Keras's default
        nn.init.zeros_(cast(Tensor, self.conv.bias))

    @checks_shapes
    def forward(
        self, features: Float[Tensor, "batch {self.conv.in_channels} height width"]
    ) -> Capsules:
        one_position = features.shape[2:] == self.conv.weight.shape[2:]
        if one_position:  # the backward pass of a product is faster than that of a convolution
            product = (features * self.conv.weight.squeeze(1)).sum((2, 3), keepdim=True)
            total = _float32_of_half(product) + cast(Tensor, self.conv.bias)[:, None, None]
        else:
            total = _float32_of_half(self.conv(features))
        total = total.unflatten(1, (-1, self.dim))  # [b type c h w]
        total = total.permute(0, 1, 3, 4, 2).flatten(1, 3)  # [b i c]
        poses = functional.exponential_squash(total)
        logits = functional.exponential_squash_logits(total)
        return Capsules(poses, functional.length(poses), logits)


class LinearPrimaryCapsules(nn.Module):
    """Primary capsules whose poses are linear in the features at one position (Hinton 2018, section 4).

    Activations are the logistic of a linear function of the features. Capsules are ordered ``(y, x, type)``; matrix
    poses are stored row by row.

    Args:
        in_channels: channels of the feature maps.
        types, dim: kinds of capsule per position, components of a pose.
        bias: learn biases (as IBM's and other ports); the official code has none.
        offset: subtracted from the logit of the activation.
        pose_std, activation_std: standard deviations of the truncated normals that initialise the weights.
        norm: batch-normalise each pose component and each logit over batch and positions.
        norm_per_type: normalise all components of a type together, with one scale and one shift (code of Ribeiro 2020).
    """

    def __init__(
        self,
        in_channels: int,
        *,
        types: int = 32,  # Hinton 2018, section 4
        dim: int = 16,  # Hinton 2018, section 2: 4x4
        bias: bool = False,
        offset: float = 1.0,
        pose_std: float = 0.5,  # official code
        activation_std: float = 3.0,  # official code
        norm: bool = False,
        norm_per_type: bool = False,
    ) -> None:
        super().__init__()
        check_sizes("the layer of primary capsules", types=types, dim=dim)
        check_number("offset", offset)
        check_number("pose_std", pose_std, above=0)
        check_number("activation_std", activation_std, above=0)
        self.types = types
        self.dim = dim
        self.offset = offset
        self.pose = nn.Conv2d(in_channels, types * dim, 1, bias=bias)
        self.activation = nn.Conv2d(in_channels, types, 1, bias=bias)
        self.norm_per_type = norm and norm_per_type
        pose_norm = nn.BatchNorm3d(types) if norm_per_type else nn.BatchNorm2d(types * dim)
        self.pose_norm = pose_norm if norm else nn.Identity()
        self.activation_norm = nn.BatchNorm2d(types) if norm else nn.Identity()
        functional.truncated_normal_(self.pose.weight, pose_std)
        functional.truncated_normal_(self.activation.weight, activation_std)
        if bias:
            nn.init.zeros_(cast(Tensor, self.pose.bias))
            nn.init.zeros_(cast(Tensor, self.activation.bias))

    @checks_shapes
    def forward(
        self, features: Float[Tensor, "batch {self.pose.in_channels} height width"]
    ) -> Capsules:
        poses = self.pose(features)  # [b type·dim h w]
        if self.norm_per_type:
            poses = self.pose_norm(poses.unflatten(1, (self.types, self.dim))).flatten(1, 2)
        else:
            poses = self.pose_norm(poses)
        poses = _float32_of_half(poses)
        logits = _float32_of_half(self.activation_norm(self.activation(features)))  # [b type h w]
        return _by_position(poses, logits - self.offset, self.types)


class ComposedPrimaryCapsules(nn.Module):
    """Primary capsules whose poses and logits are computed by two modules, such as normalised convolutions.

    Capsules are ordered ``(y, x, type)``.

    Args:
        pose: maps features to ``(batch, types * dim, height, width)``; the components of a type are consecutive.
        activation: maps features to logits ``(batch, types, height, width)``; activations are their logistic.
        types: kinds of capsule per position.
    """

    def __init__(self, pose: nn.Module, activation: nn.Module, *, types: int) -> None:
        super().__init__()
        self.types = types
        self.pose = pose
        self.activation = activation

    @checks_shapes
    def forward(self, features: Float[Tensor, "batch channel height width"]) -> Capsules:
        poses = _float32_of_half(self.pose(features))  # [b type·dim h w]
        logits = _float32_of_half(self.activation(features))  # [b type h w]
        return _by_position(poses, logits, self.types)


def _by_position(
    poses: Float[Tensor, "batch component height width"],
    logits: Float[Tensor, "batch type height width"],
    types: int,
) -> Capsules:
    """Return feature maps as capsules, ordered ``(y, x, type)``."""
    poses = poses.unflatten(1, (types, -1)).permute(0, 3, 4, 1, 2).flatten(1, 3)  # [b i c]
    logits = logits.permute(0, 2, 3, 1).flatten(1)  # [b i]
    return Capsules(poses, logits.sigmoid(), logits)


def _float32_of_half(features: Tensor) -> Tensor:
    """Cast half precision to float32, because autocast ends here."""
    return features.float() if features.dtype in functional.HALF else features


class StridedConv2d(nn.Conv2d):
    """``torch.nn.Conv2d`` that computes the gradient of its weights as a convolution on a CPU.

    The gradient of a weight is the sum over images and positions of the output's gradient times the matching input.
    This is the convolution of the input with the output's gradient, dilated by the stride, with images and channels
    exchanged. For the CapsNet's primary capsules (9x9, stride 2), oneDNN needs half the time of its backward pass.
    Results equal those of ``torch.nn.Conv2d`` up to rounding. The layer has no bias, padding, dilation or groups,
    because primary capsules do not use them.
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
    def setup_context(
        ctx: Any,
        inputs: tuple[Tensor, Tensor, tuple[int, int]],
        output: Tensor,  # noqa: ARG004
    ) -> None:
        features, weight, ctx.stride = inputs
        ctx.save_for_backward(features, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        features, weight = ctx.saved_tensors
        of_features = of_weight = None
        if ctx.needs_input_grad[0]:
            of_features = conv2d_input(features.shape, weight, grad, ctx.stride)
        if ctx.needs_input_grad[1]:
            # drop rows and columns that no window reaches: the gradient would be larger than the kernel
            height = (grad.shape[2] - 1) * ctx.stride[0] + weight.shape[2]
            width = (grad.shape[3] - 1) * ctx.stride[1] + weight.shape[3]
            reached = features[:, :, :height, :width].transpose(0, 1).contiguous()
            kernel = grad.transpose(0, 1).contiguous()
            of_weight = conv2d(reached, kernel, dilation=ctx.stride).transpose(0, 1)
        return of_features, of_weight, None
