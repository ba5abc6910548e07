"""VBCaps: matrix capsules with variational Bayes routing (Ribeiro, Leontidis and Kollias, AAAI 2020).

It has the geometry of a small ``EMCaps``, variational Bayes routing in all layers and batch normalisation of the
convolution, poses and logits. A, B, C, D = 64, 8, 16, 16 has 68,714 parameters with 5 classes on stereo pairs; 74 of
them are scales and shifts that replace the betas of the authors, whose gradient is 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.errors import check_sizes
from capsule_lab.layers import ClassCapsules, ConvStack, LinearPrimaryCapsules
from capsule_lab.layers.classes import coordinate_addition, grid_coordinates
from capsule_lab.layers.stem import IMAGE_KERNEL, IMAGE_STRIDE
from capsule_lab.networks.base import AbstractCapsuleNetwork, numbered
from capsule_lab.routing import RoutingFactory, VariationalBayesRouting
from capsule_lab.types import CapsuleOutput, ImageBatch, OnIteration

POSE_SIZE = 4  # official code: rows and columns of a pose


class VBCaps(AbstractCapsuleNetwork):
    """Network of Ribeiro 2020 with three layers of routing. Scores are the activations of the class capsules.

    Args:
        image_shape, num_classes, routing: see ``AbstractCapsuleNetwork``.
        channels: feature maps of the convolution, A.
        primary_types: kinds of primary capsule per position, B.
        conv_types: kinds of capsule in each convolutional capsule layer, C and D.
        conv_strides: strides of these layers.
        kernel_size: width of their windows, K.

    >>> network = VBCaps((2, 32, 32), num_classes=5)
    >>> sum(p.numel() for p in network.parameters())
    68714
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        routing: RoutingFactory = VariationalBayesRouting,
        channels: int = 64,  # Ribeiro 2020
        primary_types: int = 8,  # Ribeiro 2020
        conv_types: Sequence[int] = (16, 16),  # Ribeiro 2020
        conv_strides: Sequence[int] = (2, 1),  # official code
        kernel_size: int = 3,  # official code
    ) -> None:
        super().__init__()
        check_sizes(
            "VBCaps", num_classes=num_classes, channels=channels, primary_types=primary_types
        )
        channel, height, width = self.set_image_shape(image_shape, IMAGE_KERNEL)
        dim = POSE_SIZE**2
        # without a bias and drawn from this distribution: official code
        self.conv = nn.Conv2d(channel, channels, IMAGE_KERNEL, IMAGE_STRIDE, bias=False)
        nn.init.kaiming_uniform_(self.conv.weight)
        self.norm = nn.BatchNorm2d(channels)
        self.primary = LinearPrimaryCapsules(
            channels, types=primary_types, dim=dim, offset=0.0, norm=True, norm_per_type=True
        )
        for conv in (self.primary.pose, self.primary.activation):
            nn.init.xavier_uniform_(conv.weight)  # official code
        grid = (
            (height - IMAGE_KERNEL) // IMAGE_STRIDE + 1,
            (width - IMAGE_KERNEL) // IMAGE_STRIDE + 1,
        )

        def initialise(weight: nn.Parameter) -> None:
            places, _, parents, _ = weight.shape
            glorot_uniform_(weight, places * dim, parents * kernel_size**2 * dim)

        self.conv_capsules = ConvStack(
            grid,
            primary_types,
            dim,
            routing=routing,
            rows=POSE_SIZE,
            types=conv_types,
            strides=conv_strides,
            kernel_size=kernel_size,
            initialise=initialise,
        )
        types = self.conv_capsules.types
        height, width = self.conv_capsules.grid
        self.classes = ClassCapsules(
            height * width,
            types,
            dim,
            num_classes,
            dim,
            routing=routing,
            rows=POSE_SIZE,
            coordinates=class_coordinates(self.conv_capsules.grid, dim),
        )
        glorot_uniform_(self.classes.weight, types * dim, num_classes * dim)

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


def class_coordinates(grid: tuple[int, int], dim: int) -> Float[Tensor, "position dim"]:
    """Return the vectors added to the votes for the classes, with the coordinates of the official code."""
    height, width = grid
    rows, columns = grid_coordinates(grid)
    # official code: (i + 1) / n, not the centres
    rows = rows + 0.5 / height
    columns = columns + 0.5 / width
    return coordinate_addition(
        axes=(rows / 10, columns / 10),  # 10: official code
        entries=(POSE_SIZE - 1, 2 * POSE_SIZE - 1),  # Hinton 2018, section 4: right-hand column
        dim=dim,
    )


def glorot_uniform_(weight: nn.Parameter, fan_in: int, fan_out: int) -> None:
    """Initialise from Glorot's uniform distribution with the fan-in and fan-out of the official code."""
    bound = (6 / (fan_in + fan_out)) ** 0.5
    nn.init.uniform_(weight, -bound, bound)
