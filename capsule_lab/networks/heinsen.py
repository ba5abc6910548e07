"""The smallNORB network of Heinsen 2019 (arXiv 1911.00792, section 4).

::

    image           six convolutions        primary capsules       64 parts             class capsules
    2 x 96 x 96 ->  64 x 9 x 9 -----------> 64 types x 9 x 9 ----> one transformation ->  5 classes
    and two         3x3, strides 1 and 2    1x1                    per part, shared by    one transformation per
    coordinates     by turns, batch norm    pose 4x4, activation:  all 5,184 children     (part, class)
                    before, Swish after     logistic

It has 271,688 parameters with 5 classes for any image size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from capsule_lab.errors import check_sizes, check_widths
from capsule_lab.layers import ClassCapsules, ComposedPrimaryCapsules
from capsule_lab.layers.coordinates import AppendedCoordinates
from capsule_lab.networks.base import AbstractCapsuleNetwork, with_options
from capsule_lab.routing import HeinsenRouting, RoutingFactory
from capsule_lab.types import CapsuleOutput, ImageBatch, OnIteration

KERNEL = 3  # Heinsen 2019, section 4: all convolutions


class HeinsenNet(AbstractCapsuleNetwork):
    """Convolutions of the image and its coordinates, then primary capsules, parts and classes.

    The scores of Heinsen 2019 are the logits of the class capsules; the scores here are the logistic of these.

    Args:
        image_shape, num_classes, routing, class_routing: see ``AbstractCapsuleNetwork``.
        channels: feature maps of the convolutions.
        strides: stride of each convolution.
        parts: kinds of primary capsule per position, and number of capsules between these and the classes.
        pose_size: rows and columns of a pose.

    >>> network = HeinsenNet((2, 96, 96), num_classes=5)
    >>> sum(p.numel() for p in network.parameters())
    271688
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        routing: RoutingFactory = HeinsenRouting,
        class_routing: Mapping[str, Any] | None = None,
        channels: int = 64,  # Heinsen 2019, section 4
        strides: Sequence[int] = (1, 2, 1, 2, 1, 2),  # Heinsen 2019, section 4
        parts: int = 64,  # Heinsen 2019, section 4
        pose_size: int = 4,  # Heinsen 2019, section 4
    ) -> None:
        super().__init__()
        check_sizes(
            "HeinsenNet",
            num_classes=num_classes,
            channels=channels,
            parts=parts,
            pose_size=pose_size,
        )
        check_widths("HeinsenNet", strides=strides)
        smallest = 1  # side of an image that shrinks to one pixel
        for stride in reversed(strides):
            smallest = (smallest - 1) * stride + KERNEL
        channel, height, width = self.set_image_shape(image_shape, smallest)
        features: list[nn.Module] = []
        inputs = channel + 2  # 2: row and column
        for stride in strides:
            features += [
                nn.BatchNorm2d(inputs),
                nn.Conv2d(inputs, channels, KERNEL, stride),
                nn.SiLU(),
            ]
            inputs, height, width = (
                channels,
                (height - KERNEL) // stride + 1,
                (width - KERNEL) // stride + 1,
            )
        self.features = nn.Sequential(*features)
        dim = pose_size**2
        children = height * width * parts
        self.primary = ComposedPrimaryCapsules(
            nn.Sequential(nn.BatchNorm2d(inputs), nn.Conv2d(inputs, parts * dim, 1)),
            nn.Sequential(nn.BatchNorm2d(inputs), nn.Conv2d(inputs, parts, 1)),
            types=parts,
        )
        self.parts = ClassCapsules(children, 1, dim, parts, dim, routing=routing, rows=pose_size)
        last = with_options(routing, class_routing)
        self.classes = ClassCapsules(1, parts, dim, num_classes, dim, routing=last, rows=pose_size)
        for capsules in (self.parts, self.classes):
            nn.init.normal_(capsules.weight, std=1 / pose_size)  # official code
        self.with_coordinates = AppendedCoordinates(self.image_shape[1:])

    def forward(
        self, images: ImageBatch, *, on_iteration: OnIteration | None = None
    ) -> CapsuleOutput:
        self.check_images(images)
        capsules = self.primary(self.features(self.with_coordinates(images)))  # [b i c]
        parts = self.parts(*capsules[:2])
        classes = self.classes(*parts[:2], on_iteration=on_iteration)  # [b k d]
        return CapsuleOutput(classes.activations, classes, classes.logits)

    def capsule_layers(self) -> dict[str, nn.Module]:
        return {"primary": self.primary, "parts": self.parts, "classes": self.classes}
