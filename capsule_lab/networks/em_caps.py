"""EMCaps: matrix capsules with EM routing (Hinton, Sabour and Frosst, ICLR 2018, section 4 and figure 1).

::

    image          conv           primary capsules      conv capsules 1      conv capsules 2      class capsules
    2 x 32 x 32 -> A x 14 x 14 -> B types x 14 x 14 --> C types x 6 x 6 ---> D types x 4 x 4 ---> E classes
                   5x5 stride 2   1x1                   K=3 stride 2         K=3 stride 1         one transform per
                   ReLU           pose 4x4: linear      EM routing among the 9 · B or 9 · C       (type, class) for all
                                  activation: logistic  children of each position                 positions, plus where
                                                                                                  each position is

With 5 classes it has 316,650 parameters for A = B = C = D = 32 and 68,618 for A, B, C, D = 64, 8, 16, 16.
Images of 24, 28, 32, 40, 48 pixels have grids of 10, 12, 14, 18, 22, then 4, 5, 6, 8, 10, then 2, 3, 4, 6, 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast, get_args

from torch import nn

from capsule_lab.errors import check_choice, check_sizes
from capsule_lab.layers import (
    ClassCapsules,
    ConvStack,
    CoordinateClassCapsules,
    LinearPrimaryCapsules,
    Stem,
    Trunk,
)
from capsule_lab.layers.stem import IMAGE_KERNEL, PaperConvolution
from capsule_lab.layers.trunk import is_trunk
from capsule_lab.networks.base import (
    AbstractReconstructingNetwork,
    build_decoder,
    numbered,
    with_options,
)
from capsule_lab.routing import EMRouting, RoutingFactory
from capsule_lab.routing.em_costs import CLASS_ROUTING
from capsule_lab.types import CapsuleOutput, ImageBatch, OnIteration

Pose = Literal["matrix", "vector"]


class EMCaps(AbstractReconstructingNetwork):
    """The network of Hinton 2018, with options for the choices of paper, official code and ports.

    Scores are the activations of the class capsules.

    Args:
        image_shape, num_classes, routing, decoder: see ``AbstractCapsuleNetwork``.
        class_routing: see ``AbstractCapsuleNetwork``; by default as in the EM routing of the official code.
        stem: ``"paper"``: one convolution without padding (official code); ``"padded"``: the same with zeros around the
            image (IBM's and other ports); or a stem that replaces it, see ``Stem``.
        channels: feature maps of the convolution, A.
        batch_norm: normalise the feature maps before the ReLU, as some ports do.
        primary: builds the primary capsules; all poses have their ``dim``.
        conv: builds the convolutional capsules.
        classes: builds the class capsules.
        pose: ``"matrix"``: a vote is the child's 4x4 pose times a 4x4 transformation; ``"vector"``: 16 components
            times a 16x16 transformation (ablation of the paper).

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
        stem: str | Sequence[Sequence[int]] = "paper",
        channels: int = 32,  # Hinton 2018, section 4
        batch_norm: bool = False,
        primary: Callable[[int], LinearPrimaryCapsules] = LinearPrimaryCapsules,
        conv: Callable[..., ConvStack] = ConvStack,
        classes: Callable[..., ClassCapsules] = CoordinateClassCapsules,
        pose: Pose = "matrix",
        decoder: Sequence[int] | None = None,  # Hinton 2018 has none
    ) -> None:
        super().__init__()
        check_choice("pose", pose, get_args(Pose))
        check_sizes("EMCaps", num_classes=num_classes, channels=channels)
        smallest = IMAGE_KERNEL if stem == "paper" else 1
        channel, height, width = self.set_image_shape(image_shape, smallest)
        self.norm: nn.Module = nn.Identity()
        if stem in ("paper", "padded"):
            self.conv: PaperConvolution | Stem | Trunk = PaperConvolution(
                channels, channel, (height, width), padded=stem == "padded"
            )
            if batch_norm:
                self.norm = nn.BatchNorm2d(channels)
        elif is_trunk(stem):
            self.conv = Trunk(cast(str, stem), channel, (height, width))
        else:
            self.conv = Stem(stem, channel, (height, width), batch_norm=batch_norm)
        self.primary = primary(self.conv.channels)
        dim = self.primary.dim
        if math.isqrt(dim) ** 2 != dim:
            raise ValueError(
                f"poses have {dim} components; expected a square number, such as 16 for matrices of 4x4"
            )
        rows = math.isqrt(dim) if pose == "matrix" else 1
        self.conv_capsules = conv(
            self.conv.grid, self.primary.types, dim, routing=routing, rows=rows
        )
        kernels = self.conv.field.layers + self.conv_capsules.kernels
        self.classes = classes(
            self.conv_capsules.grid,
            self.conv_capsules.types,
            dim,
            num_classes,
            routing=with_options(routing, class_routing),
            rows=rows,
            field=self.conv.field._replace(layers=kernels),
        )
        self.decoder = build_decoder(decoder, self.classes, num_classes, dim, self.image_shape)

    def forward(
        self, images: ImageBatch, *, on_iteration: OnIteration | None = None
    ) -> CapsuleOutput:
        self.check_images(images)
        features = self.norm(self.conv(images)).relu()  # [b channels h w]
        primary = self.primary(features)  # [b i c]
        capsules = self.conv_capsules(*primary[:2])
        classes = self.classes(*capsules[:2], on_iteration=on_iteration)  # [b k d]
        return CapsuleOutput(classes.activations, classes, classes.logits)

    def capsule_layers(self) -> dict[str, nn.Module]:
        return {
            "primary": self.primary,
            **numbered("conv_capsules", self.conv_capsules),
            "classes": self.classes,
        }
