"""CapsNet: dynamic routing between capsules (Sabour, Frosst and Hinton, NeurIPS 2017, section 4).

::

    image           conv1          primary capsules            digit capsules          scores
    1 x 28 x 28 --> 256 x 20 x 20 --> 32 types x 6 x 6 x 8-D --> 10 x 16-D  ----------> length of each
                    9x9, ReLU         9x9 stride 2,              votes, routing          |
                                      squash over 8              squash over 16          v
                                                                 masked by one class --> decoder 512-1024-784
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from capsule_lab.errors import check_choice, check_sizes
from capsule_lab.functional import same_padding, truncated_normal_
from capsule_lab.layers import ClassCapsules, DenseCapsules, PrimaryCapsules, UntransformedCapsules
from capsule_lab.layers.primary import Padding
from capsule_lab.networks.base import AbstractReconstructingNetwork, build_decoder, numbered
from capsule_lab.routing import DynamicRouting, RoutingFactory
from capsule_lab.types import CapsuleOutput, Capsules, ImageBatch, OnIteration

Transformation = Literal["per_pair", "shared", "none"]

STRIDE = 2  # Sabour 2017, section 4: primary capsules


def _hidden_layers(
    primary: tuple[int, int],
    hidden: Sequence[Sequence[int]],
    routing: RoutingFactory,
) -> nn.ModuleList:
    layers = nn.ModuleList()
    children, child_dim = primary
    for parents, parent_dim in hidden:
        layers.append(DenseCapsules(children, child_dim, parents, parent_dim, routing=routing))
        children, child_dim = parents, parent_dim
    return layers


class CapsNet(AbstractReconstructingNetwork):
    """The network of Sabour 2017, with options for all choices of the official code.

    With 28x28 pixels and ten classes it has 6,804,384 parameters, 8,215,728 with the decoder (8,215,568 without the
    bias of the digit capsules, as in most ports).

    Args:
        image_shape, num_classes, decoder: see ``AbstractCapsuleNetwork``.
        routing: see ``AbstractCapsuleNetwork``; its ``leaky`` also applies to the primary capsules.
        channels: feature maps of the first convolution.
        kernel_size: kernel size of both convolutions.
        padding: padding of both convolutions, ``"valid"`` or ``"same"`` (CIFAR10 network of the official code).
        primary: builds the primary capsules; called with the number of feature maps, ``kernel_size``, ``stride``,
            ``padding`` and ``leaky``.
        transformation: matrices between the poses of primary and class capsules. ``"per_pair"``: one for each pair;
            ``"shared"``: one for each type and class, the same at all positions; ``"none"``: the pose of a primary
            capsule is the vote of its position for one class, so there are as many types as classes and poses have
            the same size, see ``UntransformedCapsules``.
        hidden: ``[capsules, components]`` of each additional dense capsule layer between primary and class capsules
            (Mitterreiter 2023); they use the same routing.
        class_dim: components of a class capsule's pose.
        masked_decoder: the decoder sees the capsule of only one class; ``False``: all of them (Gu 2021).

    >>> network = CapsNet((1, 28, 28), num_classes=10)
    >>> sum(p.numel() for p in network.parameters())
    8215728
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        routing: RoutingFactory = DynamicRouting,
        channels: int = 256,  # Sabour 2017, section 4
        kernel_size: int = 9,  # Sabour 2017, section 4
        padding: Padding = "valid",
        primary: Callable[..., PrimaryCapsules] = PrimaryCapsules,
        transformation: Transformation = "per_pair",  # Sabour 2017, section 4
        hidden: Sequence[Sequence[int]] = (),  # Sabour 2017 has none
        class_dim: int = 16,  # Sabour 2017, section 4
        decoder: Sequence[int] | None = (512, 1024),  # Sabour 2017, figure 2
        masked_decoder: bool = True,  # Sabour 2017, section 4.1
    ) -> None:
        super().__init__()
        check_sizes(
            "CapsNet",
            num_classes=num_classes,
            channels=channels,
            kernel_size=kernel_size,
            class_dim=class_dim,
        )
        _check_hidden(hidden, transformation)
        check_choice("padding", padding, get_args(Padding))
        check_choice("transformation", transformation, get_args(Transformation))
        smallest = 2 * kernel_size - 1 if padding == "valid" else 1
        channel, height, width = self.set_image_shape(image_shape, smallest)
        self.padding = padding
        self.conv = nn.Conv2d(channel, channels, kernel_size)
        truncated_normal_(self.conv.weight, 0.05)  # official code
        nn.init.constant_(cast(Tensor, self.conv.bias), 0.1)  # official code

        options = {"kernel_size": kernel_size, "stride": STRIDE, "padding": padding}
        # a layer on "meta" draws no random numbers: the weights of the next layers are drawn first
        with torch.device("meta"):
            sizes = primary(channels, **options)
        types, dim = sizes.types, sizes.dim
        lost = 0 if padding == "same" else 2 * (kernel_size - 1)
        positions = math.ceil((height - lost) / STRIDE) * math.ceil((width - lost) / STRIDE)
        self.hidden = _hidden_layers((types * positions, dim), hidden, routing)
        children, child_dim = hidden[-1] if hidden else (types * positions, dim)
        classes = num_classes, class_dim
        digits: DenseCapsules | ClassCapsules | UntransformedCapsules
        if transformation == "per_pair":
            digits = DenseCapsules(children, child_dim, *classes, routing=routing)
        elif transformation == "shared":
            weight_std = 0.1  # official code, with one transformation per pair
            digits = ClassCapsules(
                positions, types, dim, *classes, routing=routing, weight_std=weight_std
            )
        else:
            _check_votes((types, dim), classes)
            digits = UntransformedCapsules(positions, *classes, routing=routing)
        self.primary = primary(channels, **options, leaky=digits.routing.leaky)
        self.digits = digits
        self.scores_are = "activations" if digits.routing.bounded else "logits"
        self.masked_decoder = masked_decoder
        self.decoder = build_decoder(decoder, digits, num_classes, class_dim, self.image_shape)

    def forward(
        self, images: ImageBatch, *, on_iteration: OnIteration | None = None
    ) -> CapsuleOutput:
        self.check_images(images)
        if self.padding == "same":
            padding = same_padding(self.image_shape[1:], self.conv.kernel_size[0], 1)
            images = nn.functional.pad(images, padding)
        capsules: Capsules = self.primary(self.conv(images).relu())  # [b i c]
        if not isinstance(self.digits, DenseCapsules):
            capsules = self._by_position(capsules)
        for layer in self.hidden:
            capsules = layer(*capsules[:2])
        digits = self.digits(*capsules[:2], on_iteration=on_iteration)  # [b k d]
        return CapsuleOutput(digits.activations, digits, digits.logits)

    def _by_position(self, primary: Capsules) -> Capsules:
        """Reorder capsules from (type, position) to (position, type), as layers that share weights expect."""
        grid = (self.primary.types, -1)
        poses = primary.poses.unflatten(1, grid).transpose(1, 2)
        activations = primary.activations.unflatten(1, grid).transpose(1, 2)
        return Capsules(poses.flatten(1, 2), activations.flatten(1, 2))

    def capsule_layers(self) -> dict[str, nn.Module]:
        return {"primary": self.primary, **numbered("hidden", self.hidden), "digits": self.digits}


def _check_hidden(hidden: Sequence[Sequence[int]], transformation: str) -> None:
    if not isinstance(hidden, Sequence) or not all(_is_layer(each) for each in hidden):
        raise ValueError(
            f"hidden is {hidden!r}; expected [capsules, components] of each layer, such as [[32, 8]]"
        )
    if hidden and transformation != "per_pair":
        raise ValueError(
            f"transformation is {transformation!r}, and hidden capsules, which have no positions, are "
            "given; expected transformation='per_pair' or hidden=[]"
        )


def _is_layer(sizes: object) -> bool:
    """Return whether these are ``[capsules, components]``."""
    if not isinstance(sizes, Sequence) or len(sizes) != 2:
        return False
    return all(type(n) is int and n > 0 for n in sizes)


def _check_votes(primary: tuple[int, int], classes: tuple[int, int]) -> None:
    """Check that the poses of primary capsules can be votes; both arguments are numbers of capsules and components."""
    if primary != classes:
        raise ValueError(
            f"transformation is 'none', and primary capsules are {primary[0]} types of {primary[1]} components; "
            "expected those of the classes, because poses are votes: "
            f"primary.types={classes[0]} and primary.dim={classes[1]}"
        )
