"""Convolutions between the image and the primary capsules."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from capsule_lab.errors import check_choice
from capsule_lab.functional import same_padding, truncated_normal_
from capsule_lab.layers.classes import ReceptiveField
from capsule_lab.layers.trunk import TRUNKS
from capsule_lab.shapes import checks_shapes
from capsule_lab.types import ImageBatch

IMAGE_KERNEL, IMAGE_STRIDE = 5, 2  # Hinton 2018, section 4: first convolution

STEMS: dict[str, list[list[int]]] = {
    "conv2": [[32, 5, 2], [64, 3, 2]],  # ours: the first two convolutions of SmallCNN
    "conv3": [[32, 5, 2], [64, 3, 2], [64, 3, 2]],  # ours: all convolutions of SmallCNN
    "resnet": [[32, 5, 2], [64, 3, 2], [64, 3, 2]],  # ours: as conv3, then residual blocks
}


class Stem(nn.Sequential):
    """Convolutions with batch normalisation and ReLU, or a small ResNet (He 2016, figure 5, left).

    Args:
        stem: ``(channels, odd kernel size, stride)`` of each convolution; or a name in ``STEMS``.
        in_channels: channels of the image.
        size: ``(height, width)`` of the image.
        batch_norm: normalise the feature maps before each ReLU; a ResNet always does this.

    Attributes:
        channels: number of feature maps.
        grid: ``(height, width)`` of the feature maps.
        field: receptive field of their positions, ignoring blocks that were added later.
    """

    def __init__(
        self,
        stem: str | Sequence[Sequence[int]],
        in_channels: int,
        size: tuple[int, int],
        *,
        batch_norm: bool = True,
    ) -> None:
        if isinstance(stem, str):
            trunks = [f"{name}.layer2" for name in TRUNKS]
            check_choice("stem", stem, ("paper", "padded", *STEMS, *trunks))
        convolutions = STEMS[stem] if isinstance(stem, str) else stem
        for convolution in convolutions:
            _check_convolution(convolution)
        super().__init__()
        self.channels = in_channels
        self.grid = size
        layers = []
        step = 1  # pixels between neighbours on the grid
        outside = 0
        for number, (outputs, kernel, stride) in enumerate(convolutions):
            if stem == "resnet" and number:
                self.add_block(outputs, stride)
            else:
                self._add_convolution(outputs, kernel, stride, batch_norm=batch_norm)
            outside += step * (kernel // 2)
            step *= stride
            layers.append((kernel, stride))
        self.field = ReceptiveField(size, tuple(layers), (outside,) * 4)

    def _add_convolution(self, outputs: int, kernel: int, stride: int, *, batch_norm: bool) -> None:
        padding = kernel // 2
        conv = nn.Conv2d(self.channels, outputs, kernel, stride, padding, bias=not batch_norm)
        self.append(conv)
        if batch_norm:
            self.append(nn.BatchNorm2d(outputs))
        self.append(nn.ReLU())
        self._grow(outputs, stride)

    def add_block(self, outputs: int, stride: int = 1, shortcut: nn.Module | None = None) -> None:
        """Append a residual block of two 3x3 convolutions (He 2016, figure 5, left).

        With a stride, the input passes through ``shortcut``, by default a normalised 1x1 convolution.
        """
        # imported here because only residual stems need torchvision
        from torchvision.models.resnet import BasicBlock

        if stride > 1 and shortcut is None:
            conv = nn.Conv2d(self.channels, outputs, 1, stride, bias=False)
            shortcut = nn.Sequential(conv, nn.BatchNorm2d(outputs))
        self.append(BasicBlock(self.channels, outputs, stride, shortcut))
        self._grow(outputs, stride)

    def _grow(self, outputs: int, stride: int) -> None:
        height, width = self.grid
        self.channels = outputs
        self.grid = ((height - 1) // stride + 1, (width - 1) // stride + 1)


def _check_convolution(convolution: object) -> None:
    """Check the description of one convolution of a stem; it may come from a configuration."""
    if isinstance(convolution, Sequence) and len(convolution) == 3:
        whole = all(type(n) is int and n > 0 for n in convolution)
        if whole and convolution[1] % 2 == 1:
            return
    raise ValueError(
        f"stem has {convolution!r}; expected [channels, odd kernel size, stride], such as [64, 3, 2]"
    )


class PaperConvolution(nn.Conv2d):
    """First convolution of Hinton 2018, section 4: 5x5 pixels, stride 2. It has the attributes of ``Stem``.

    ``padded`` surrounds the image with zeros, like ``"same"`` in TensorFlow.
    """

    def __init__(
        self, channels: int, in_channels: int, size: tuple[int, int], *, padded: bool = False
    ) -> None:
        super().__init__(in_channels, channels, IMAGE_KERNEL, IMAGE_STRIDE)
        truncated_normal_(self.weight, 0.05)  # official code
        assert self.bias is not None
        nn.init.constant_(self.bias, 0.1)  # official code
        self.channels = channels
        self.outside = same_padding(size, IMAGE_KERNEL, IMAGE_STRIDE) if padded else (0, 0, 0, 0)
        left, right, top, bottom = self.outside
        height = size[0] + top + bottom
        width = size[1] + left + right
        self.grid = (
            (height - IMAGE_KERNEL) // IMAGE_STRIDE + 1,
            (width - IMAGE_KERNEL) // IMAGE_STRIDE + 1,
        )
        self.field = ReceptiveField(size, ((IMAGE_KERNEL, IMAGE_STRIDE),), self.outside)

    @checks_shapes
    def forward(self, images: ImageBatch) -> Tensor:
        return super().forward(nn.functional.pad(images, self.outside))
