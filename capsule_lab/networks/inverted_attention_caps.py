"""Capsules on a residual network: Tsai, Srivastava, Goh and Salakhutdinov, ICLR 2020, CIFAR10 and CIFAR100.

::

    image          residual network                primary       conv capsules 1   conv capsules 2   class capsules
    3 x 32 x 32 -> 64 x 32 x 32 -> 128 x 16 x 16 -> 32 types ---> 32 types -------> 32 types -------> 10 classes
                   3x3, 3 blocks   4 blocks,        16 x 16       7 x 7             5 x 5             a transform per
                                   stride 2         1x1, layer    K=3 stride 2      K=3 stride 1      (child, class);
                                                    norm          inverted dot-product attention      one linear score

1,828,817 parameters with ten classes; 2,799,629 with 6x6 poses, 20 dense capsules and 100 classes (CIFAR100).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.errors import check_sizes, check_widths
from capsule_lab.functional import HALF
from capsule_lab.layers import ClassCapsules, ConvStack, Stem
from capsule_lab.networks.base import AbstractCapsuleNetwork, numbered, with_options
from capsule_lab.routing import InvertedAttention, RoutingFactory
from capsule_lab.types import CapsuleOutput, Capsules, ImageBatch, OnIteration


class InvertedAttentionCaps(AbstractCapsuleNetwork):
    """The network of Tsai 2020, whose layers are updated one after the other (default of the paper: all at once).

    Scores are the activations of the class capsules; their logits are the scores of the paper.

    Args:
        image_shape, num_classes, routing, class_routing: see ``AbstractCapsuleNetwork``.
        channels: feature maps of each stage of the residual network; each stage after the first halves the image.
        blocks: number of blocks of two convolutions in each stage.
        primary_types: kinds of primary capsule per position.
        conv_types: kinds of capsule in each convolutional capsule layer.
        conv_strides: strides of these layers.
        dense_types: capsules of each fully connected layer between these and the classes (CIFAR100: 20).
        kernel_size: width of the capsules' windows.
        pose_size: rows and columns of a pose.

    >>> network = InvertedAttentionCaps((3, 32, 32), num_classes=10)
    >>> sum(p.numel() for p in network.parameters())
    1828817
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        routing: RoutingFactory = InvertedAttention,
        class_routing: Mapping[str, Any] | None = {"head": True},  # Tsai 2020: scores are linear
        channels: Sequence[int] = (64, 128),  # official code
        blocks: Sequence[int] = (3, 4),  # official code
        primary_types: int = 32,  # official code
        conv_types: Sequence[int] = (32, 32),  # official code
        conv_strides: Sequence[int] = (2, 1),  # official code
        dense_types: Sequence[int] = (),
        kernel_size: int = 3,  # official code
        pose_size: int = 4,  # official code
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_widths(name, channels=channels, blocks=blocks, dense_types=dense_types)
        sizes = {"num_classes": num_classes, "stages": len(channels)}
        check_sizes(name, **sizes, primary_types=primary_types, pose_size=pose_size)
        if len(channels) != len(blocks):
            raise ValueError(
                f"there are {len(channels)} channels and {len(blocks)} blocks; expected equal numbers"
            )
        channel, height, width = self.set_image_shape(image_shape)
        dim = pose_size**2
        self.features = Stem([[channels[0], 3, 1]], channel, (height, width))
        for stage, (outputs, count) in enumerate(zip(channels, blocks, strict=True)):
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                self.features.add_block(outputs, stride)
        self.primary = NormalisedPrimaryCapsules(channels[-1], primary_types, dim)
        self.conv_capsules = ConvStack(
            self.features.grid,
            primary_types,
            dim,
            routing=routing,
            rows=pose_size,
            types=conv_types,
            strides=conv_strides,
            kernel_size=kernel_size,
            initialise=_initialise,
        )
        children = math.prod(self.conv_capsules.grid) * self.conv_capsules.types
        dense: list[ClassCapsules] = []
        for below, parents in pairwise((children, *dense_types, num_classes)):
            last = len(dense) == len(dense_types)
            chosen = with_options(routing, class_routing) if last else routing
            dense.append(ClassCapsules(1, below, dim, parents, dim, rows=pose_size, routing=chosen))
            _initialise(dense[-1].weight)
        self.dense_capsules = nn.ModuleList(dense[:-1])
        self.classes = dense[-1]

    def forward(
        self, images: ImageBatch, *, on_iteration: OnIteration | None = None
    ) -> CapsuleOutput:
        self.check_images(images)
        primary = self.primary(self.features(images))  # [b i c]
        capsules = self.conv_capsules(primary.poses, primary.activations)
        for layer in self.dense_capsules:
            capsules = layer(*capsules[:2])
        classes = self.classes(*capsules[:2], on_iteration=on_iteration)  # [b k d]
        return CapsuleOutput(classes.activations, classes, classes.logits)

    def capsule_layers(self) -> dict[str, nn.Module]:
        return {
            "primary": self.primary,
            **numbered("conv_capsules", self.conv_capsules),
            **numbered("dense_capsules", self.dense_capsules),
            "classes": self.classes,
        }


class NormalisedPrimaryCapsules(nn.Module):
    """Poses linear in the features at one position, then layer normalisation; all activations are 1.

    Capsules are ordered ``(y, x, type)``. Components of matrix poses are stored row by row.
    """

    def __init__(self, in_channels: int, types: int, dim: int) -> None:
        super().__init__()
        self.types = types
        self.pose = nn.Conv2d(in_channels, types * dim, 1, bias=False)
        self.norm = nn.LayerNorm(dim)

    def forward(self, features: Float[Tensor, "batch channel height width"]) -> Capsules:
        poses = self.pose(features).unflatten(1, (self.types, -1))  # [b type c h w]
        poses = poses.permute(0, 3, 4, 1, 2).flatten(1, 3)  # [b i c]
        poses = self.norm(poses.to(self.pose.weight.dtype))  # autocast ends here
        if poses.dtype in HALF:  # of a network after .bfloat16() or .half()
            poses = poses.float()
        return Capsules(poses, torch.ones_like(poses[..., 0]))


def _initialise(weight: nn.Parameter) -> None:
    """Draw from a normal of variance ``J / (sqrt(d) children)``, which keeps the size of poses (official code)."""
    children, inner, parents, _ = weight.shape
    nn.init.normal_(weight, std=math.sqrt(parents / (inner * children)))
