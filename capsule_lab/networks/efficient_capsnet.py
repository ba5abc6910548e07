"""Efficient-CapsNet: capsules with self-attention routing (Mazzia, Salvetti and Chiaberge, Scientific Reports 2021).

::

    image           four convolutions                          primary capsules      digit capsules       scores
    1 x 28 x 28 --> 32 x 24 x 24 -> 64 x 22 x 22            --> 16 x 8-D ----------> 10 x 16-D ---------> length of each
                    -> 64 x 20 x 20 -> 128 x 9 x 9              a 9x9 kernel per     self-attention,       |
                    5x5, 3x3, 3x3, 3x3 stride 2                 channel,             squash over 16        v
                    each: ReLU, then batch normalisation        squash over 8        masked by one class --> decoder

It has 161,824 parameters without the decoder for 28x28 pixels and ten classes. For other images the authors use other
strides and kernels: ``conf/experiment/mazzia2021``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from torch import nn

from capsule_lab.errors import check_choice, check_sizes, check_widths
from capsule_lab.functional import he_std
from capsule_lab.layers import DenseCapsules, DepthwisePrimaryCapsules
from capsule_lab.networks import base
from capsule_lab.routing import RoutingFactory, SelfAttentionRouting
from capsule_lab.types import CapsuleOutput, ImageBatch, OnIteration

Normalisation = Literal["batch", "instance", "none"]
Activation = Literal["relu", "leaky_relu"]

log = logging.getLogger(__name__)

LEAK = 0.3  # Keras's default
_LARGE_KERNEL = 16  # ours: 9 at the paper's size of MNIST, 13 at 36x36
NORMALISATION_EPS = 1e-3  # Keras's default
# Keras's default for "random_uniform": bound of both parameters of instance normalisation
INITIAL_SCALE = 0.05


class EfficientCapsNet(base.AbstractReconstructingNetwork):
    """The networks of Mazzia 2021; the defaults are those for MNIST.

    Args:
        image_shape, num_classes, routing, decoder: see ``AbstractCapsuleNetwork``.
        channels: feature maps of the convolutions; the last ones are divided into primary capsules.
        kernel_sizes, strides: kernel sizes and strides of the convolutions, which have no padding.
        activation: ``"relu"`` or ``"leaky_relu"`` (smallNORB).
        normalisation: normalises the feature maps *after* the activation: ``"batch"``, ``"instance"`` (smallNORB) or
            ``"none"``.
        primary: builds the primary capsules from the number of feature maps and their size.
        class_dim: components of a class capsule's pose.

    >>> network = EfficientCapsNet((1, 28, 28), num_classes=10, decoder=None)
    >>> sum(p.numel() for p in network.parameters())
    161824
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        routing: RoutingFactory = SelfAttentionRouting,
        channels: Sequence[int] = (32, 64, 64, 128),  # Mazzia 2021
        kernel_sizes: Sequence[int] = (5, 3, 3, 3),  # Mazzia 2021
        strides: Sequence[int] = (1, 1, 1, 2),  # Mazzia 2021
        activation: Activation = "relu",
        normalisation: Normalisation = "batch",
        primary: Callable[
            [int, tuple[int, int]], DepthwisePrimaryCapsules
        ] = DepthwisePrimaryCapsules,
        class_dim: int = 16,  # Mazzia 2021
        decoder: Sequence[int] | None = (512, 1024),  # as Sabour 2017
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_sizes(name, num_classes=num_classes, class_dim=class_dim)
        check_widths(name, channels=channels, kernel_sizes=kernel_sizes, strides=strides)
        check_choice("activation", activation, get_args(Activation))
        check_choice("normalisation", normalisation, get_args(Normalisation))
        base.check_equal_lengths(
            name, channels=channels, kernel_sizes=kernel_sizes, strides=strides
        )
        smallest = base.smallest_side(kernel_sizes, strides)
        inputs, height, width = self.set_image_shape(image_shape, smallest)

        features: list[nn.Module] = []
        for outputs, size, stride in zip(channels, kernel_sizes, strides, strict=True):
            conv = base.he_conv(inputs, outputs, size, stride)  # official code
            rectifier = nn.ReLU() if activation == "relu" else nn.LeakyReLU(LEAK)
            features += [conv, rectifier, _normalisation(normalisation, outputs)]
            inputs = outputs
            height = (height - size) // stride + 1
            width = (width - size) // stride + 1
        self.features = nn.Sequential(*features)
        self.primary = primary(channels[-1], (height, width))
        rows, columns = self.primary.conv.kernel_size
        if max(rows, columns) > _LARGE_KERNEL:
            log.warning(
                "each primary capsule sees feature maps of %dx%d through one kernel of this size; larger model.strides "
                "such as [2,1,2,2] make both smaller",
                rows,
                columns,
            )
        children, dim = self.primary.count, self.primary.dim
        # official code: fan-in as Keras derives it from the shape
        weight_std = he_std(num_classes * children * dim)
        self.digits = DenseCapsules(
            children, dim, num_classes, class_dim, routing=routing, weight_std=weight_std
        )
        self.decoder = base.build_decoder(
            decoder, self.digits, num_classes, class_dim, self.image_shape
        )

    def forward(
        self, images: ImageBatch, *, on_iteration: OnIteration | None = None
    ) -> CapsuleOutput:
        self.check_images(images)
        primary = self.primary(self.features(images))  # [b i c]
        digits = self.digits(*primary[:2], on_iteration=on_iteration)  # [b k d]
        return CapsuleOutput(digits.activations, digits, digits.logits)

    def capsule_layers(self) -> dict[str, nn.Module]:
        return {"primary": self.primary, "digits": self.digits}


def _normalisation(kind: Normalisation, channels: int) -> nn.Module:
    if kind == "batch":
        return nn.BatchNorm2d(channels, eps=NORMALISATION_EPS)
    if kind == "none":
        return nn.Identity()
    norm = nn.InstanceNorm2d(channels, eps=NORMALISATION_EPS, affine=True)
    for parameter in (norm.weight, norm.bias):
        nn.init.uniform_(parameter, -INITIAL_SCALE, INITIAL_SCALE)  # official code
    return norm
