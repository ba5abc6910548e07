from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from capsule_lab.layers import (
    ConvStack,
    CoordinateClassCapsules,
    LinearPrimaryCapsules,
    PrimaryCapsules,
)
from capsule_lab.networks import CapsNet, EMCaps

IMAGE = (2, 21, 25)


def pictures(batch: int = 3, image_shape: tuple[int, int, int] = IMAGE) -> Tensor:
    """The same random images in every run."""
    return torch.rand(batch, *image_shape, generator=torch.Generator().manual_seed(1))


def count(network: nn.Module) -> int:
    """How many parameters a network has."""
    return sum(parameter.numel() for parameter in network.parameters())


def small_capsnet(
    image_shape: tuple[int, int, int], num_classes: int, *, types: int = 2, **options: Any
) -> CapsNet:
    """A CapsNet of 4 feature maps and ``types`` of primary capsule."""
    primary = partial(PrimaryCapsules, types=types)
    return CapsNet(image_shape, num_classes, **{"channels": 4, "primary": primary, **options})


def small_em_caps(
    image_shape: tuple[int, int, int],
    num_classes: int,
    *,
    types: int = 2,
    conv_types: Sequence[int] = (3, 2),
    conv_strides: Sequence[int] = (2, 1),
    conv_weight_std: float = 0.1,
    class_weight_std: float = 0.01,
    **options: Any,
) -> EMCaps:
    """An EMCaps of 4 feature maps and few types of capsule."""
    parts: dict[str, Any] = {
        "primary": partial(LinearPrimaryCapsules, types=types),
        "conv": partial(
            ConvStack, types=conv_types, strides=conv_strides, weight_std=conv_weight_std
        ),
        "classes": partial(CoordinateClassCapsules, weight_std=class_weight_std),
    }
    return EMCaps(image_shape, num_classes, **{"channels": 4, **parts, **options})
