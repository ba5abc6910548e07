"""The first stages of a ResNet of torchvision, as a stem whose weights come from a file."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from capsule_lab.layers.classes import ReceptiveField
from capsule_lab.shapes import checks_shapes
from capsule_lab.types import ImageBatch

TRUNKS = ("resnet18", "resnet34", "resnet50")
_STAGES = ("layer1", "layer2", "layer3", "layer4")
# of ImageNet, in red, green and blue: torchvision's transforms of these weights
_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)


def is_trunk(stem: str | Sequence[Sequence[int]]) -> bool:
    """Return whether a stem is a ``Trunk``."""
    return isinstance(stem, str) and stem.partition(".")[0] in TRUNKS


class Trunk(nn.Sequential):
    """A ResNet of torchvision (He et al. 2016) up to a stage; nothing is downloaded, and weights are random.

    Its tensors have torchvision's names, so that ``load_state_dict(…, strict=False)`` and ``train.start_from`` load
    torchvision's files. Images in [0, 1] are normalised here with mean and standard deviation of ImageNet.

    Args:
        stem: network and last stage, such as ``"resnet18.layer2"``. The feature maps of ``layer1`` to ``layer4`` have
            a fourth, an eighth, a 16th and a 32nd of the image's height and width, rounded up.
        in_channels: 3, or 1 for grey images, which are repeated.
        size: ``(height, width)`` of the image.

    Attributes:
        channels, grid, field: as in ``Stem``.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, stem: str, in_channels: int, size: tuple[int, int]) -> None:
        # imported here because only these stems need torchvision
        from torchvision.models import get_model

        name, _, last = stem.partition(".")
        if name not in TRUNKS or last not in _STAGES:
            raise ValueError(
                f"stem is {stem!r}; expected {' or '.join(TRUNKS)} with the stage whose features are taken, such as "
                "'resnet18.layer2', from layer1 to layer4"
            )
        _check_channels(in_channels)
        super().__init__()
        for child, module in get_model(name, weights=None).named_children():
            self.add_module(child, module)
            if child == last:
                break
        stage = _STAGES.index(last)
        self.channels = 64 * 2**stage * module[-1].expansion
        layers = [(7, 2), (3, 2)] + [(3, 2)] * stage  # kernel and stride of what reduces the grid
        self.grid = size
        outside = 0
        step = 1  # pixels between neighbours on the grid
        for kernel, stride in layers:
            height, width = self.grid
            self.grid = ((height - 1) // stride + 1, (width - 1) // stride + 1)
            outside += step * (kernel // 2)
            step *= stride
        self.field = ReceptiveField(size, tuple(layers), (outside,) * 4)
        # not in checkpoints: a file of torchvision has neither
        self.register_buffer("mean", torch.tensor(_MEAN)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(_STD)[:, None, None], persistent=False)

    @checks_shapes
    def forward(self, images: ImageBatch) -> Tensor:
        _check_channels(images.shape[1])
        colours = images.expand(-1, 3, -1, -1)
        return super().forward((colours - self.mean) / self.std)


def _check_channels(channels: int) -> None:
    if channels not in (1, 3):
        raise ValueError(
            f"a ResNet of torchvision received images of {channels} channels; expected 3, or 1 for grey images"
        )
