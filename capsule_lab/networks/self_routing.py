"""Networks of self-routing (Hahn, Pyeon and Kim, NeurIPS 2019, section 5), and their trunks without capsules.

::

    image          trunk             primary capsules    conv capsules        class capsules
    3 x 32 x 32 -> 64 x 8 x 8 -----> 32 types x 8 x 8 -> 32 types x 4 x 4 -> 10 classes
                   resnet20          3x3, batch norm     3x3, stride 2        no poses; a coupling network per
                                     pose 16: linear     padding 1, poses     (position, type, class)
    1 x 32 x 32 -> 128 x 4 x 4       activation:         batch normalised
                   convnet           logistic            any number of these

Parameters without and with one layer of convolutional capsules: 931,664 and 3,187,536 with resnet20 for CIFAR10,
814,960 and 3,331,952 with convnet for one eye of smallNORB; 269,722 and 144,309 if the mean over positions and a
linear layer replace all capsules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, get_args

from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.errors import check_choice, check_sizes, check_widths
from capsule_lab.layers import ComposedPrimaryCapsules, ConvCapsules, DenseCapsules, Stem
from capsule_lab.networks.base import (
    AbstractCapsuleNetwork,
    AbstractNetwork,
    numbered,
    with_options,
)
from capsule_lab.routing import RoutingFactory, SelfRouting
from capsule_lab.types import CapsuleOutput, ImageBatch, OnIteration

Trunk = Literal["resnet20", "convnet"]

RESNET20 = ((1, 1), (1, 1), (1, 1), (2, 2), (2, 1), (2, 1), (4, 2), (4, 1), (4, 1))
"""Planes as a multiple of the first, and stride, of each block of ResNet-20 (He 2016, section 4.2)."""

CONVNET = ((1, 1), (2, 2), (2, 1), (4, 2), (4, 1), (8, 2))  # official code
"""Planes as a multiple of the first, and stride, of each convolution."""

CLASS_ROUTING: Mapping[str, Any] = MappingProxyType({"poses": False})  # Hahn 2019, official code


class SelfRoutingNet(AbstractCapsuleNetwork):
    """Convolutional trunk, primary capsules, convolutional capsules and class capsules.

    Scores are the activations of the class capsules, which sum to one with self-routing.

    Args:
        image_shape, num_classes, routing, class_routing: see ``AbstractCapsuleNetwork``.
        trunk: ``"resnet20"`` or ``"convnet"`` (six convolutions).
        planes: feature maps of the trunk's first convolution.
        types, dim: kinds of capsule per position and components of their poses, in all layers except the last.
        conv_strides: stride of each layer of convolutional capsules; no such layers by default.
        class_dim: components of a class capsule's pose, if ``class_routing`` has poses.

    >>> network = SelfRoutingNet((3, 32, 32), num_classes=10)
    >>> sum(p.numel() for p in network.parameters())
    931664
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        routing: RoutingFactory = SelfRouting,
        class_routing: Mapping[str, Any] | None = CLASS_ROUTING,
        trunk: Trunk = "resnet20",
        planes: int = 16,  # official code
        types: int = 32,  # Hahn 2019, section 5
        dim: int = 16,  # Hahn 2019, section 5
        conv_strides: Sequence[int] = (),
        class_dim: int = 16,  # official code, for its other routings
    ) -> None:
        super().__init__()
        check_sizes(
            "SelfRoutingNet",
            num_classes=num_classes,
            planes=planes,
            types=types,
            dim=dim,
            class_dim=class_dim,
        )
        check_widths("SelfRoutingNet", conv_strides=conv_strides)
        self.set_image_shape(image_shape)
        self.trunk = build_trunk(trunk, self.image_shape, planes)
        channels, grid = self.trunk.channels, self.trunk.grid
        self.primary = ComposedPrimaryCapsules(
            conv3x3(channels, types * dim), conv3x3(channels, types), types=types
        )
        # official code: Kaiming with all numbers of a child as fan-in
        bound = (6 / (types * dim * dim)) ** 0.5
        self.conv_capsules = nn.ModuleList()
        self.norms = nn.ModuleList()
        for stride in conv_strides:
            layer = ConvCapsules(
                grid, types, dim, types, dim, routing=routing, stride=stride, padding=1
            )
            nn.init.uniform_(layer.weight, -bound, bound)
            self.conv_capsules.append(layer)
            self.norms.append(nn.BatchNorm1d(types * dim))
            grid = layer.windows.grid
        self.classes = DenseCapsules(
            grid[0] * grid[1] * types,
            dim,
            num_classes,
            class_dim,
            routing=with_options(routing, class_routing),
        )

    def forward(
        self, images: ImageBatch, *, on_iteration: OnIteration | None = None
    ) -> CapsuleOutput:
        self.check_images(images)
        capsules = self.primary(self.trunk(images))  # [b i c]
        for layer, norm in zip(self.conv_capsules, self.norms, strict=True):
            capsules = layer(*capsules[:2])
            grid = capsules.poses.unflatten(1, (-1, self.primary.types))
            by_component = grid.flatten(2).transpose(1, 2)  # [b type·c position]
            # routing is float32, also in a network after .bfloat16() or .half()
            normalised = norm(by_component.to(norm.weight.dtype)).to(by_component.dtype)
            poses = normalised.transpose(1, 2).reshape(capsules.poses.shape)
            capsules = capsules._replace(poses=poses)
        classes = self.classes(*capsules[:2], on_iteration=on_iteration)  # [b k d]
        return CapsuleOutput(classes.activations, classes, classes.logits)

    def capsule_layers(self) -> dict[str, nn.Module]:
        return {
            "primary": self.primary,
            **numbered("conv_capsules", self.conv_capsules),
            "classes": self.classes,
        }


class AveragePoolingNet(AbstractNetwork):
    """Trunk of a ``SelfRoutingNet``, mean of its features over all positions, and a linear layer.

    Args:
        image_shape, num_classes, trunk, planes: see ``SelfRoutingNet``.
    """

    scores_are = "logits"

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        trunk: Trunk = "resnet20",
        planes: int = 16,  # official code
    ) -> None:
        super().__init__()
        check_sizes("AveragePoolingNet", num_classes=num_classes, planes=planes)
        self.set_image_shape(image_shape)
        self.trunk = build_trunk(trunk, self.image_shape, planes)
        self.classifier = nn.Linear(self.trunk.channels, num_classes)
        nn.init.kaiming_uniform_(self.classifier.weight)  # official code

    def forward(self, images: ImageBatch) -> CapsuleOutput:
        self.check_images(images)
        scores = self.classifier(self.trunk(images).mean((2, 3)))
        scores = scores.to(images.dtype)  # autocast ends here
        return CapsuleOutput(scores, logits=scores)


class PaddedShortcut(nn.Module):
    """Shortcut without parameters between different sizes (He 2016, section 4.2, option A).

    It takes every ``stride``-th pixel and adds channels of zeros, half of them on each side.
    """

    def __init__(self, added: int, stride: int) -> None:
        super().__init__()
        self.added = added
        self.stride = stride

    def forward(self, features: Float[Tensor, "batch channel height width"]) -> Tensor:
        before = self.added // 2
        strided = features[:, :, :: self.stride, :: self.stride]
        return nn.functional.pad(strided, (0, 0, 0, 0, before, self.added - before))


def build_trunk(trunk: Trunk, image_shape: tuple[int, int, int], planes: int) -> Stem:
    """Build a trunk with the initial weights of the official code."""
    check_choice("trunk", trunk, get_args(Trunk))
    channel, height, width = image_shape
    convolutions, blocks = (((1, 1),), RESNET20) if trunk == "resnet20" else (CONVNET, ())
    layers = Stem(
        [[multiple * planes, 3, stride] for multiple, stride in convolutions],
        channel,
        (height, width),
    )
    for multiple, stride in blocks:
        added = multiple * planes - layers.channels
        layers.add_block(
            multiple * planes, stride, PaddedShortcut(added, stride) if added else None
        )
    return layers.apply(initialise)


def initialise(module: nn.Module) -> None:
    """Initialise weights as the official code does."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_uniform_(module.weight)


def conv3x3(inputs: int, outputs: int) -> nn.Sequential:
    """Return a 3x3 convolution with batch normalisation."""
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs)).apply(initialise)
