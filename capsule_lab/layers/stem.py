"""Convolutions between the image and the primary capsules, where they are more than the papers' single one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import nn

from capsule_lab.errors import check_choice

StemName = Literal["conv2", "conv3", "resnet"]

STEMS: dict[str, list[list[int]]] = {
    "conv2": [[32, 5, 2], [64, 3, 2]],  # ours: the first two convolutions of SmallCNN
    "conv3": [[32, 5, 2], [64, 3, 2], [64, 3, 2]],  # ours: all of SmallCNN's
}
RESNET = [[32, 5, 2], [64, 3, 2], [64, 3, 2]]  # ours: as conv3, each but the first a residual block of two convolutions


def residual_block(inputs: int, outputs: int, stride: int = 1, shortcut: nn.Module | None = None) -> nn.Module:
    """Two convolutions of three pixels around which the input is added (He 2016, figure 5, left)."""
    from torchvision.models.resnet import BasicBlock  # here, so that networks without need nothing but torch

    return BasicBlock(inputs, outputs, stride, shortcut)


class Stem(nn.Sequential):
    """Convolutions, each with batch normalisation and ReLU; or a small ResNet (He 2016, figure 5, left).

    Args:
        stem: ``(channels, kernel size, stride)`` of each convolution, kernels odd; or a name of ``STEMS``, or
            ``"resnet"``.
        in_channels: of the image.
        size: ``(height, width)`` of the image.
        batch_norm: normalise the feature maps before each ReLU; a ResNet always does.

    Attributes:
        channels: of the feature maps.
        grid: ``(height, width)`` of the feature maps.
        receptive: kernel and stride of each convolution, from the image upwards.
        padding: pixels of the image that the feature maps see beyond its edge, on the left and at the top.

    Raises:
        ValueError: for an unknown name, or a convolution that is not three positive whole numbers with an odd kernel.
    """

    def __init__(
        self, stem: str | Sequence[Sequence[int]], in_channels: int, size: tuple[int, int], *, batch_norm: bool = True
    ) -> None:
        if isinstance(stem, str):
            check_choice("stem", stem, ("paper", *STEMS, "resnet"))
        convolutions = RESNET if stem == "resnet" else STEMS[stem] if isinstance(stem, str) else stem
        for each in convolutions:
            whole = isinstance(each, Sequence) and len(each) == 3 and all(type(n) is int and n > 0 for n in each)
            if not whole or each[1] % 2 == 0:
                raise ValueError(f"stem has {each!r}; expected [channels, odd kernel size, stride], such as [64, 3, 2]")
        layers: list[nn.Module] = []
        receptive, step, padding = [], 1, 0
        inputs, grid = in_channels, size
        for number, (outputs, kernel, stride) in enumerate(convolutions):
            if stem == "resnet" and number:
                shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
                layers.append(residual_block(inputs, outputs, stride, shortcut))
            else:
                layers.append(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=not batch_norm))
                layers += [nn.BatchNorm2d(outputs), nn.ReLU()] if batch_norm else [nn.ReLU()]
            padding += step * (kernel // 2)
            step *= stride
            receptive.append((kernel, stride))
            inputs, grid = outputs, ((grid[0] - 1) // stride + 1, (grid[1] - 1) // stride + 1)
        super().__init__(*layers)
        self.channels = inputs
        self.grid = grid
        self.receptive = receptive
        self.padding = padding
