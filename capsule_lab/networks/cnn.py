"""Convolutional baselines of the capsule papers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import get_args

from torch import nn

from capsule_lab.errors import check_choice, check_number, check_sizes, check_widths
from capsule_lab.layers.primary import Padding
from capsule_lab.networks.base import AbstractNetwork
from capsule_lab.types import CapsuleOutput, ImageBatch


class AbstractCNN(AbstractNetwork):
    """Base of CNNs: convolutions and a classifier of their feature maps or of the mean over all positions."""

    scores_are = "logits"
    averaged = False
    features: nn.Module
    classifier: nn.Module

    def forward(self, images: ImageBatch) -> CapsuleOutput:
        self.check_images(images)
        maps = self.features(images)
        features = maps.mean((2, 3)) if self.averaged else maps.flatten(1)
        scores = self.classifier(features).to(images.dtype)  # autocast ends here
        return CapsuleOutput(scores, logits=scores)


class BaselineCNN(AbstractCNN):
    """Convolutions with ReLU and max pooling, then hidden layers and dropout.

    ::

        Sabour 2017, section 5 (the defaults, no pooling), 35,445,522 parameters, in the paper 35.4M:
        1 x 28 x 28 -> 256 -> 256 -> 128 (5x5, stride 1, same padding, ReLU) -> 328 -> 192 -> dropout -> 10

        Hinton 2018, section 5 (``conf/model/cnn_smallnorb.yaml``), 4,253,349 parameters, in the paper 4.2M:
        2 x 32 x 32 -> 32 (5x5, ReLU, 2x2 pooling) -> 64 (5x5, ReLU, 2x2 pooling) -> 1024 -> dropout -> 5

        Sabour 2017, section 6, MultiMNIST (``cnn_multimnist.yaml``), 24,563,978 parameters, in the paper 24.56M:
        1 x 36 x 36 -> 512 (9x9, ReLU, 2x2 pooling) -> 256 (5x5, ReLU, 2x2 pooling) -> 1024 -> 10

    Args:
        image_shape, num_classes: see ``AbstractNetwork``.
        channels: feature maps of the convolutions.
        kernel_size: odd kernel size of the convolutions, one for all or one for each.
        padding: ``"same"`` keeps the size of the image, ``"valid"`` loses ``kernel_size - 1`` pixels.
        pooling: size and stride of the max pooling after each convolution; 1 for no pooling.
        hidden: widths of the fully connected layers.
        dropout: probability of dropping a unit of the last hidden layer.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        channels: Sequence[int] = (256, 256, 128),  # Sabour 2017, section 5
        kernel_size: int | Sequence[int] = 5,  # Sabour 2017, section 5
        padding: Padding = "same",
        pooling: int = 1,
        hidden: Sequence[int] = (328, 192),  # Sabour 2017, section 5
        dropout: float = 0.5,  # ours: the usual rate; the paper states none
    ) -> None:
        super().__init__()
        check_number("dropout", dropout, 0, below=1)
        check_widths("BaselineCNN", channels=channels, hidden=hidden)
        sizes = [kernel_size] * len(channels) if isinstance(kernel_size, int) else list(kernel_size)
        if len(sizes) != len(channels) or any(size % 2 == 0 for size in sizes):
            raise ValueError(
                f"kernel_size is {kernel_size}; expected one odd number, so that padding is symmetric, or one for "
                f"each of the {len(channels)} convolutions"
            )
        check_widths("BaselineCNN", kernel_size=sizes)
        check_choice("padding", padding, get_args(Padding))
        check_sizes("BaselineCNN", num_classes=num_classes, layers=min(len(channels), len(hidden)), pooling=pooling)
        smallest = 1  # side of an image that shrinks to one pixel
        lost = [size - 1 if padding == "valid" else 0 for size in sizes]
        for pixels in reversed(lost):
            smallest = smallest * pooling + pixels
        channel, height, width = self.set_image_shape(image_shape, smallest)
        features: list[nn.Module] = []
        for (inputs, outputs), size, pixels in zip(pairwise((channel, *channels)), sizes, lost, strict=True):
            features += [nn.Conv2d(inputs, outputs, size, padding=padding), nn.ReLU()]
            height, width = (height - pixels) // pooling, (width - pixels) // pooling
            if pooling > 1:
                features.append(nn.MaxPool2d(pooling))
        classifier: list[nn.Module] = []
        for inputs, outputs in pairwise((channels[-1] * height * width, *hidden)):
            classifier += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(*classifier, nn.Dropout(dropout), nn.Linear(hidden[-1], num_classes))


class SmallCNN(AbstractCNN):
    """Strided convolutions with batch normalisation and ReLU, dropout, and one linear layer.

    Ours: not a baseline of a paper but a modern network without capsules, so that comparisons do not depend
    only on old baselines.

    ::

        2 x 32 x 32 -> 32 x 16 x 16 (5x5) -> 64 x 8 x 8 (3x3) -> 64 x 4 x 4 (3x3) -> dropout -> 5

    Args:
        image_shape, num_classes: see ``AbstractNetwork``.
        channels: feature maps of the convolutions, each of stride 2.
        kernel_sizes: odd kernel sizes of the convolutions.
        dropout: probability of dropping a feature.
        batch_norm: normalise the feature maps before the ReLU.
        pooled: number of features of a 1x1 convolution with batch normalisation and ReLU, averaged over the image
            before the linear layer; ``None`` for no such layer. It makes the network a control for ``EMCaps`` with
            ``stem="conv3"``, which has as many primary capsule numbers and also averages over the image.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        channels: Sequence[int] = (32, 64, 64),
        kernel_sizes: Sequence[int] = (5, 3, 3),
        dropout: float = 0.3,
        batch_norm: bool = True,
        pooled: int | None = None,
    ) -> None:
        super().__init__()
        check_number("dropout", dropout, 0, below=1)
        check_widths("SmallCNN", channels=channels, kernel_sizes=kernel_sizes)
        if len(kernel_sizes) != len(channels) or any(size % 2 == 0 for size in kernel_sizes):
            raise ValueError(f"kernel_sizes are {list(kernel_sizes)}; expected {len(channels)} odd sizes, as channels")
        check_sizes("SmallCNN", num_classes=num_classes, layers=len(channels), pooled=1 if pooled is None else pooled)
        channel, height, width = self.set_image_shape(image_shape)
        features: list[nn.Module] = []
        for inputs, outputs, size in zip((channel, *channels), channels, kernel_sizes, strict=False):
            features.append(nn.Conv2d(inputs, outputs, size, 2, size // 2, bias=not batch_norm))
            features += [nn.BatchNorm2d(outputs), nn.ReLU()] if batch_norm else [nn.ReLU()]
            height, width = (height + 1) // 2, (width + 1) // 2
        inputs = channels[-1] * height * width
        if pooled is not None:
            features += [nn.Conv2d(channels[-1], pooled, 1, bias=False), nn.BatchNorm2d(pooled), nn.ReLU()]
            features.append(nn.AdaptiveAvgPool2d(1))
            inputs = pooled
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(inputs, num_classes))


class AveragedCNN(AbstractCNN):
    """Convolutions with ReLU, the mean of their feature maps over all positions, and one linear layer.

    By default the convolutions are those of a ``CapsNet``, with 5,332,234 parameters::

        1 x 40 x 40 -> 256 x 32 x 32 (9x9) -> 256 x 12 x 12 (9x9, stride 2) -> mean over positions -> 10

    Gu 2021 has a network with such pooling, three layers and 5.3M parameters. We could not read the paper and infer
    from the number of parameters that it is this network.

    Args:
        image_shape, num_classes: see ``AbstractNetwork``.
        channels: feature maps of the convolutions; the last convolution has stride 2.
        kernel_size: kernel size of all convolutions.
    """

    averaged = True

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        channels: Sequence[int] = (256, 256),  # ours: as in a CapsNet
        kernel_size: int = 9,  # Gu 2021
    ) -> None:
        super().__init__()
        check_widths("AveragedCNN", channels=channels)
        check_sizes("AveragedCNN", num_classes=num_classes, layers=len(channels), kernel_size=kernel_size)
        smallest = len(channels) * (kernel_size - 1) + 1
        self.set_image_shape(image_shape, smallest)
        strides = [1] * (len(channels) - 1) + [2]
        features: list[nn.Module] = []
        for inputs, outputs, stride in zip((image_shape[0], *channels), channels, strides, strict=False):
            features += [nn.Conv2d(inputs, outputs, kernel_size, stride), nn.ReLU()]
        self.features = nn.Sequential(*features)
        self.classifier = nn.Linear(channels[-1], num_classes)
