"""Convolutions between the image and the primary capsules, where they are more than the papers' single one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from capsule_lab.errors import check_choice
from capsule_lab.functional import same_padding, truncated_normal_
from capsule_lab.layers.coordinates import ReceptiveField

IMAGE_KERNEL, IMAGE_STRIDE = 5, 2  # Hinton 2018, section 4: of the first convolution

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
        field: what their positions see of the image.
    """

    def __init__(
        self, stem: str | Sequence[Sequence[int]], in_channels: int, size: tuple[int, int], *, batch_norm: bool = True
    ) -> None:
        if isinstance(stem, str):
            check_choice("stem", stem, ("paper", "padded", *STEMS, "resnet"))
        convolutions = RESNET if stem == "resnet" else STEMS[stem] if isinstance(stem, str) else stem
        for each in convolutions:
            whole = isinstance(each, Sequence) and len(each) == 3 and all(type(n) is int and n > 0 for n in each)
            if not whole or each[1] % 2 == 0:
                raise ValueError(f"stem has {each!r}; expected [channels, odd kernel size, stride], such as [64, 3, 2]")
        layers: list[nn.Module] = []
        seen, step, outside = [], 1, 0
        inputs, grid = in_channels, size
        for number, (outputs, kernel, stride) in enumerate(convolutions):
            if stem == "resnet" and number:
                shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
                layers.append(residual_block(inputs, outputs, stride, shortcut))
            else:
                layers.append(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=not batch_norm))
                layers += [nn.BatchNorm2d(outputs), nn.ReLU()] if batch_norm else [nn.ReLU()]
            outside += step * (kernel // 2)
            step *= stride
            seen.append((kernel, stride))
            inputs, grid = outputs, ((grid[0] - 1) // stride + 1, (grid[1] - 1) // stride + 1)
        super().__init__(*layers)
        self.channels = inputs
        self.grid = grid
        self.field = ReceptiveField(size, tuple(seen), (outside,) * 4)


class PaperConvolution(nn.Conv2d):
    """The first convolution of Hinton 2018, section 4: 5x5 pixels, stride 2. Attributes are those of ``Stem``.

    Args:
        channels: of the feature maps.
        in_channels: of the image.
        size: ``(height, width)`` of the image.
        padded: surround the image by zeros as TensorFlow's ``"same"`` does.
    """

    def __init__(self, channels: int, in_channels: int, size: tuple[int, int], *, padded: bool = False) -> None:
        super().__init__(in_channels, channels, IMAGE_KERNEL, IMAGE_STRIDE)
        truncated_normal_(self.weight, 0.05)  # official code
        assert self.bias is not None
        nn.init.constant_(self.bias, 0.1)  # official code
        self.channels = channels
        self.outside = same_padding(size, IMAGE_KERNEL, IMAGE_STRIDE) if padded else (0, 0, 0, 0)
        left, right, top, bottom = self.outside
        height, width = size[0] + top + bottom, size[1] + left + right
        self.grid = (height - IMAGE_KERNEL) // IMAGE_STRIDE + 1, (width - IMAGE_KERNEL) // IMAGE_STRIDE + 1
        self.field = ReceptiveField(size, ((IMAGE_KERNEL, IMAGE_STRIDE),), self.outside)

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(nn.functional.pad(images, self.outside))
