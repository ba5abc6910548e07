"""Convolutional baselines of the capsule papers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from capsule_lab.errors import check_choice, check_number, check_sizes, check_widths
from capsule_lab.layers import Decoder
from capsule_lab.layers.coordinates import AppendedCoordinates
from capsule_lab.layers.primary import Padding
from capsule_lab.networks.base import (
    AbstractNetwork,
    check_equal_lengths,
    decode_one,
    he_conv,
    smallest_side,
)
from capsule_lab.types import CapsuleOutput, Capsules, ImageBatch

LastInitial = Literal["he", "xavier"]
"""Initial weights of the last convolution of ``MatchedCNN``."""


class AbstractCNN(AbstractNetwork):
    """Base of CNNs: convolutions and a classifier of their feature maps."""

    scores_are = "logits"
    features: nn.Module
    classifier: nn.Module

    def forward(self, images: ImageBatch) -> CapsuleOutput:
        self.check_images(images)
        scores = self.classifier(self.features(images).flatten(1))
        scores = scores.to(images.dtype)  # autocast ends here
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
        check_sizes(
            "BaselineCNN",
            num_classes=num_classes,
            layers=min(len(channels), len(hidden)),
            pooling=pooling,
        )
        smallest = 1  # side of an image that shrinks to one pixel
        lost = [size - 1 if padding == "valid" else 0 for size in sizes]
        for pixels in reversed(lost):
            smallest = smallest * pooling + pixels
        inputs, height, width = self.set_image_shape(image_shape, smallest)
        features: list[nn.Module] = []
        for outputs, size, pixels in zip(channels, sizes, lost, strict=True):
            features += [nn.Conv2d(inputs, outputs, size, padding=padding), nn.ReLU()]
            inputs = outputs
            height = (height - pixels) // pooling
            width = (width - pixels) // pooling
            if pooling > 1:
                features.append(nn.MaxPool2d(pooling))
        classifier: list[nn.Module] = []
        for inputs, outputs in pairwise((channels[-1] * height * width, *hidden)):
            classifier += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(
            *classifier, nn.Dropout(dropout), nn.Linear(hidden[-1], num_classes)
        )


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
        pooled_coordinates: give that convolution the row and the column of every position, too: a control for the
            coordinates that ``EMCaps`` adds to its votes.
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
        pooled_coordinates: bool = False,
    ) -> None:
        super().__init__()
        check_number("dropout", dropout, 0, below=1)
        if pooled_coordinates and pooled is None:
            raise ValueError(
                "pooled_coordinates needs the convolution of pooled; expected pooled above 0"
            )
        check_widths("SmallCNN", channels=channels, kernel_sizes=kernel_sizes)
        if len(kernel_sizes) != len(channels) or any(size % 2 == 0 for size in kernel_sizes):
            raise ValueError(
                f"kernel_sizes are {list(kernel_sizes)}; expected {len(channels)} odd sizes, as channels"
            )
        check_sizes(
            "SmallCNN",
            num_classes=num_classes,
            layers=len(channels),
            pooled=1 if pooled is None else pooled,
        )
        inputs, height, width = self.set_image_shape(image_shape)
        features: list[nn.Module] = []
        for outputs, size in zip(channels, kernel_sizes, strict=True):
            features.append(nn.Conv2d(inputs, outputs, size, 2, size // 2, bias=not batch_norm))
            if batch_norm:
                features.append(nn.BatchNorm2d(outputs))
            features.append(nn.ReLU())
            inputs = outputs
            height = (height + 1) // 2
            width = (width + 1) // 2
        numbers = inputs * height * width
        if pooled_coordinates:
            features.append(AppendedCoordinates((height, width)))
            inputs += 2  # row and column
        if pooled is not None:
            features += [
                nn.Conv2d(inputs, pooled, 1, bias=False),
                nn.BatchNorm2d(pooled),
                nn.ReLU(),
                nn.AdaptiveAvgPool2d(1),
            ]
            numbers = pooled
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(numbers, num_classes))


class MatchedCNN(AbstractNetwork):
    """The convolutions of a capsule network and dense units in place of its capsules: a control with its size.

    Each class has ``class_dim`` units with ReLU, as many as a class capsule has components, and a logit that is linear
    in them. The decoder receives the units of one class, as that of a ``CapsNet`` receives one capsule. Nothing is
    squashed or routed, and no length is computed::

        1 x 28 x 28 -> convolutions of Efficient-CapsNet -> 128 -> 10 x 16 (ReLU) -> 10 logits
                                                                   one class  -> decoder

    With ``averaged`` and without units, it is the mean of the feature maps over positions and one linear layer. Gu 2021
    has such a network with three layers and 5.3M parameters. We could not read the paper and infer from the number of
    parameters that its convolutions are those of a ``CapsNet``: ``channels=(256, 256)``, 5,332,234 parameters.

    Args:
        image_shape, num_classes: see ``AbstractNetwork``.
        channels: feature maps of the convolutions, each followed by ReLU.
        kernel_sizes, strides: kernel sizes and strides of the convolutions, which have no padding.
        depthwise: whether each channel of the last convolution sees one channel, as in Efficient-CapsNet.
        last_initial: initial weights of the last convolution: of He 2015, as the others, or of Glorot 2010 (Xavier), as
            in Efficient-CapsNet; in a depthwise convolution of 128 channels, these are 11 times smaller.
        batch_norm: normalise the feature maps *after* the ReLU, except those of the last convolution.
        averaged: average the feature maps over positions.
        class_dim: number of units of each class; ``None`` for a linear layer without units.
        decoder: see ``AbstractCapsuleNetwork``.
    """

    decoder: nn.Module | None
    masked_decoder = True

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        channels: Sequence[int] = (256, 256),  # Sabour 2017, section 4
        kernel_sizes: Sequence[int] = (9, 9),  # Sabour 2017, section 4
        strides: Sequence[int] = (1, 2),  # Sabour 2017, section 4
        depthwise: bool = False,
        last_initial: LastInitial = "he",
        batch_norm: bool = False,
        averaged: bool = False,
        class_dim: int | None = 16,  # Sabour 2017, section 4
        decoder: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_widths(name, channels=channels, kernel_sizes=kernel_sizes, strides=strides)
        units = 1 if class_dim is None else class_dim
        check_sizes(name, num_classes=num_classes, layers=len(channels), class_dim=units)
        check_equal_lengths(name, channels=channels, kernel_sizes=kernel_sizes, strides=strides)
        check_choice("last_initial", last_initial, get_args(LastInitial))
        if depthwise and len({*channels[-2:]}) > 1:
            raise ValueError(
                f"channels are {list(channels)}; a depthwise convolution needs the last two to be equal"
            )
        if decoder is not None and class_dim is None:
            raise ValueError(
                "class_dim is None, but there is a decoder, which reads the units; expected a number"
            )
        smallest = smallest_side(kernel_sizes, strides)
        inputs, height, width = self.set_image_shape(image_shape, smallest)
        features: list[nn.Module] = []
        convolutions = zip(channels, kernel_sizes, strides, strict=True)
        for number, (outputs, size, stride) in enumerate(convolutions, start=1):
            last = number == len(channels)
            groups = inputs if depthwise and last else 1
            conv = he_conv(inputs, outputs, size, stride, groups)
            if last and last_initial == "xavier":
                nn.init.xavier_uniform_(conv.weight)
            features += [conv, nn.ReLU()]
            if batch_norm and not last:
                features.append(nn.BatchNorm2d(outputs, eps=1e-3))  # as EfficientCapsNet
            inputs = outputs
            height = (height - size) // stride + 1
            width = (width - size) // stride + 1
        self.averaged = averaged
        self.features = nn.Sequential(*features)
        numbers = inputs if averaged else inputs * height * width
        if class_dim is None:
            self.units: nn.Linear | None = None
            self.classifier: nn.Module = nn.Linear(numbers, num_classes)
        else:
            self.units = nn.Linear(numbers, num_classes * class_dim)
            self.classifier = _ClassLogits(num_classes, class_dim)
        self.decoder = None
        if decoder is not None and class_dim is not None:
            check_widths("the network", decoder=decoder)
            self.decoder = Decoder(num_classes, class_dim, self.image_shape, hidden=decoder)

    def forward(self, images: ImageBatch) -> CapsuleOutput:
        self.check_images(images)
        maps = self.features(images)
        features = maps.mean((2, 3)) if self.averaged else maps.flatten(1)
        if self.units is None:
            logits = self.classifier(features).to(images.dtype)
            return CapsuleOutput(logits.sigmoid(), logits=logits)
        units = self.units(features).relu().to(images.dtype)
        units = units.unflatten(1, (self.classifier.num_classes, -1))  # [b k d]
        logits = self.classifier(units)
        scores = logits.sigmoid()
        return CapsuleOutput(scores, Capsules(units, scores, logits), logits)

    def reconstruct(self, output: CapsuleOutput, classes: Int64[Tensor, " batch"]) -> ImageBatch:
        """Decode each image from the units of one class, see ``AbstractReconstructingNetwork``."""
        if self.decoder is None or output.capsules is None:
            raise ValueError(
                "this MatchedCNN has no decoder; build it with decoder=(512, 1024) to reconstruct"
            )
        return decode_one(self.decoder, output.capsules.poses, classes)


class _ClassLogits(nn.Module):
    """A linear function of the units of each class."""

    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        bound = dim**-0.5  # as torch's Linear
        self.weight = nn.Parameter(torch.empty(num_classes, dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def forward(self, units: Float[Tensor, "batch class dim"]) -> Float[Tensor, "batch class"]:
        return (units * self.weight).sum(2) + self.bias
