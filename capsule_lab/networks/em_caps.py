"""EMCaps: matrix capsules with EM routing (Hinton, Sabour and Frosst, ICLR 2018, section 4 and figure 1).

::

    image          conv           primary capsules      conv capsules 1      conv capsules 2      class capsules
    2 x 32 x 32 -> A x 14 x 14 -> B types x 14 x 14 --> C types x 6 x 6 ---> D types x 4 x 4 ---> E classes
                   5x5 stride 2   1x1                   K=3 stride 2         K=3 stride 1         one transform per
                   ReLU           pose 4x4: linear      EM routing among the 9 · B or 9 · C       (type, class) for all
                                  activation: logistic  children of each position                 positions, plus where
                                                                                                  each position is

A = B = C = D = 32 has 316,650 parameters with 5 classes, A, B, C, D = 64, 8, 16, 16 has 68,618.
Sizes below an image of 24, 28, 32, 40, 48 pixels: 10, 12, 14, 18, 22, then 4, 5, 6, 8, 10, then 2, 3, 4, 6, 8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.errors import check_choice, check_number
from capsule_lab.functional import same_padding, truncated_normal_
from capsule_lab.layers import ClassCapsules, ConvCapsules, Decoder, LinearPrimaryCapsules, Stem
from capsule_lab.layers.coordinates import (
    coordinate_addition,
    grid_coordinates,
    image_share_coordinates,
    receptive_field_coordinates,
)
from capsule_lab.layers.primary import Padding
from capsule_lab.networks.base import (
    AbstractReconstructingNetwork,
    check_decodable,
    check_image_shape,
    check_images,
    check_sizes,
    check_widths,
)
from capsule_lab.routing import AbstractRouting, EMRouting, RoutingFactory
from capsule_lab.routing.em_costs import CLASS_ROUTING
from capsule_lab.types import CapsuleOutput, OnIteration

Pose = Literal["matrix", "vector"]
Coordinates = Literal["receptive_field", "image_share", "grid", "none"]
Entries = Literal["official", "paper"]

_OF_RECEPTIVE_FIELDS = {
    "receptive_field": receptive_field_coordinates,
    "image_share": image_share_coordinates,
}
IMAGE_KERNEL, IMAGE_STRIDE = 5, 2  # Hinton 2018, section 4: of the first convolution


class EMCaps(AbstractReconstructingNetwork):
    """The network of Hinton 2018 with the choices of paper, official code and ports as switches.

    Scores are the activations of the class capsules.

    Args:
        image_shape: ``(channel, height, width)``; a stereo pair has two channels.
        num_classes: number of classes, E.
        routing: called with ``(parents=…, dim=…)`` in all capsule layers.
        class_routing: options of ``routing`` that are different in the class layer; by default those of the official
            code's EM routing, ``None`` for no difference.
        channels: feature maps of the convolution, A.
        primary_types: kinds of primary capsule per position, B.
        conv_types: kinds of capsule in each convolutional capsule layer, C and D.
        conv_strides: their strides.
        kernel_size: width of their windows, K.
        pose: ``"matrix"``: a vote is the child's 4x4 pose times a 4x4 transformation; ``"vector"``: 16 components
            times a 16x16 transformation, the paper's ablation.
        pose_size: rows and columns of a pose; a vector has its square.
        padding: of the convolution, ``"valid"`` (official code) or ``"same"`` (IBM and other ports).
        stem: ``"paper"``, that convolution; or what takes its place, see ``Stem``, where ``channels`` and ``padding``
            say nothing.
        batch_norm: normalise the feature maps before the ReLU, as some ports do.
        primary_bias, primary_offset, primary_norm, interleaved_primary, pose_std, activation_std: see
            ``LinearPrimaryCapsules``.
        coordinates: what coordinate addition adds: ``"receptive_field"``, distance of a position's receptive
            field from the image's middle in units of 100 pixels (official code), ``"image_share"``, its place as a
            share of the image (a tutorial's text), ``"grid"``, ``(i + 0.5) / n`` of the i-th of n positions (ports), or
            ``"none"``.
        coordinate_entries: where: ``"official"``, x to the first and y to the second component of a vote, or
            ``"paper"``, row and column to the first two entries of a matrix's right-hand column.
        conv_weight_std, class_weight_std: standard deviations of the transformations' truncated normals; in a
            vector's they are divided by the root of ``pose_size``, which gives votes of the same size.
        decoder: widths of the hidden layers of a decoder as that of Sabour 2017, section 4.1; ``None`` (the paper) for
            no decoder.

    Raises:
        ValueError: if the image is too small, a size not positive, a switch unknown, or a pose too small for
            coordinates.

    >>> network = EMCaps((2, 32, 32), num_classes=5)
    >>> sum(p.numel() for p in network.parameters())
    316650
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        routing: RoutingFactory = EMRouting,
        class_routing: Mapping[str, Any] | None = CLASS_ROUTING,
        channels: int = 32,  # Hinton 2018, section 4
        primary_types: int = 32,  # Hinton 2018, section 4
        conv_types: Sequence[int] = (32, 32),  # Hinton 2018, section 4
        conv_strides: Sequence[int] = (2, 1),  # Hinton 2018, section 4
        kernel_size: int = 3,  # Hinton 2018, section 4
        pose: Pose = "matrix",
        pose_size: int = 4,  # Hinton 2018, section 2
        padding: Padding = "valid",
        stem: str | Sequence[Sequence[int]] = "paper",
        batch_norm: bool = False,
        primary_bias: bool = False,
        primary_offset: float = 1.0,
        primary_norm: bool = False,
        pose_std: float = 0.5,  # official code
        activation_std: float = 3.0,  # official code
        interleaved_primary: bool = False,
        coordinates: Coordinates = "receptive_field",
        coordinate_entries: Entries = "official",
        conv_weight_std: float = 0.1,  # official code, fast
        class_weight_std: float = 0.01,  # official code
        decoder: Sequence[int] | None = None,  # Hinton 2018 has none
    ) -> None:
        super().__init__()
        check_choice("pose", pose, get_args(Pose))
        check_choice("padding", padding, get_args(Padding))
        check_choice("coordinates", coordinates, get_args(Coordinates))
        check_choice("coordinate_entries", coordinate_entries, get_args(Entries))
        check_widths(
            "EMCaps", conv_types=conv_types, conv_strides=conv_strides, decoder=() if decoder is None else decoder
        )
        if len(conv_types) != len(conv_strides):
            raise ValueError(
                f"there are {len(conv_types)} conv_types and {len(conv_strides)} conv_strides; expected as many"
            )
        check_sizes(
            "EMCaps", num_classes=num_classes, channels=channels, primary_types=primary_types, kernel_size=kernel_size,
            pose_size=pose_size,
        )  # fmt: skip
        check_number("conv_weight_std", conv_weight_std, above=0)
        check_number("class_weight_std", class_weight_std, above=0)
        check_number("pose_std", pose_std, above=0)
        check_number("activation_std", activation_std, above=0)
        check_number("primary_offset", primary_offset)
        if pose_size == 1 and coordinates != "none":
            raise ValueError(
                "pose_size is 1, which has no room for two coordinates; expected 2 or more, or coordinates='none'"
            )
        whole_image = stem != "paper" or padding == "same"
        channel, height, width = check_image_shape(image_shape, 1 if whole_image else IMAGE_KERNEL, "EMCaps")
        self.image_shape = (channel, height, width)
        dim = pose_size**2
        rows, narrower = (pose_size, 1.0) if pose == "matrix" else (1, pose_size**-0.5)

        self.padding: tuple[int, int, int, int] = (0, 0, 0, 0)
        if stem == "paper":
            if padding == "same":
                self.padding = same_padding((height, width), IMAGE_KERNEL, IMAGE_STRIDE)
            self.conv: nn.Conv2d | Stem = nn.Conv2d(channel, channels, IMAGE_KERNEL, IMAGE_STRIDE)
            truncated_normal_(self.conv.weight, 0.05)  # official code
            assert self.conv.bias is not None
            nn.init.constant_(self.conv.bias, 0.1)  # official code
            self.norm = nn.BatchNorm2d(channels) if batch_norm else nn.Identity()
            left, right, top, bottom = seen_outside = self.padding
            receptive = [(IMAGE_KERNEL, IMAGE_STRIDE)]
            grid = (
                (height + top + bottom - IMAGE_KERNEL) // IMAGE_STRIDE + 1,
                (width + left + right - IMAGE_KERNEL) // IMAGE_STRIDE + 1,
            )
        else:
            self.conv, self.norm = Stem(stem, channel, (height, width), batch_norm=batch_norm), nn.Identity()
            channels, grid, receptive = self.conv.channels, self.conv.grid, [*self.conv.receptive]
            seen_outside = (self.conv.padding,) * 4
        self.primary = LinearPrimaryCapsules(
            channels,
            types=primary_types,
            dim=dim,
            bias=primary_bias,
            offset=primary_offset,
            interleaved=interleaved_primary,
            pose_std=pose_std,
            activation_std=activation_std,
            norm=primary_norm,
        )
        types = primary_types
        self.conv_capsules = nn.ModuleList()
        for parent_types, stride in zip(conv_types, conv_strides, strict=True):
            layer = ConvCapsules(
                grid,
                types,
                dim,
                parent_types,
                dim,
                routing=routing,
                rows=rows,
                kernel_size=kernel_size,
                stride=stride,
                weight_std=conv_weight_std * narrower,
            )
            self.conv_capsules.append(layer)
            grid, types = layer.windows.grid, parent_types
            receptive.append((kernel_size, stride))
        self.classes = ClassCapsules(
            grid[0] * grid[1],
            types,
            dim,
            num_classes,
            dim,
            routing=with_options(routing, class_routing or {}),
            rows=rows,
            coordinates=None
            if coordinates == "none"
            else coordinate_addition(
                axes=(
                    grid_coordinates(grid)
                    if coordinates == "grid"
                    else _OF_RECEPTIVE_FIELDS[coordinates](grid, (height, width), receptive, seen_outside)
                ),
                entries=(1, 0) if coordinate_entries == "official" else (pose_size - 1, 2 * pose_size - 1),
                dim=dim,
            ),
            weight_std=class_weight_std * narrower,
        )
        check_decodable(decoder, self.classes.routing)
        self.decoder = None if decoder is None else Decoder(num_classes, dim, self.image_shape, hidden=decoder)

    def forward(
        self, images: Float[Tensor, "batch channel height width"], *, on_iteration: OnIteration | None = None
    ) -> CapsuleOutput:
        check_images(images, self.image_shape, "EMCaps")
        features = self.norm(self.conv(nn.functional.pad(images, self.padding))).relu()  # [b channels h w]
        capsules = self.primary(features)  # [b i c]
        for layer in self.conv_capsules:
            capsules = layer(capsules.poses, capsules.activations)
        classes = self.classes(capsules.poses, capsules.activations, on_iteration=on_iteration)  # [b k d]
        return CapsuleOutput(classes.activations, classes, classes.logits)

    def capsule_layers(self) -> dict[str, nn.Module]:
        convolutional = {f"conv_capsules_{number}": layer for number, layer in enumerate(self.conv_capsules, start=1)}
        return {"primary": self.primary, **convolutional, "classes": self.classes}


def with_options(routing: RoutingFactory, options: Mapping[str, Any]) -> RoutingFactory:
    """``routing`` with these options in place of its own."""

    def build(**sizes: int) -> AbstractRouting:
        try:
            return routing(**sizes, **options)
        except TypeError as error:
            raise ValueError(
                f"class_routing has {', '.join(map(str, options))}: {error}; expected options of the routing, or None"
            ) from error

    return build
