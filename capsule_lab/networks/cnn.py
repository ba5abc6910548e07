"""Convolutional baselines that the capsule papers compare with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.networks.base import AbstractNetwork, check_image_shape, check_sizes
from capsule_lab.types import CapsuleOutput


class BaselineCNN(AbstractNetwork):
    """The baseline of Sabour 2017, section 5: three 5x5 convolutions and two hidden layers, no pooling.

    ::

        1 x 28 x 28 -> 256 -> 256 -> 128 (5x5, stride 1, same padding, ReLU) -> 328 -> 192 -> dropout -> 10

    With padding that keeps 28x28 it has exactly 35,445,522 parameters, the paper's 35.4M.

    Args:
        image_shape: ``(channel, height, width)``.
        num_classes: number of classes.
        channels: feature maps of the convolutions.
        kernel_size: of the convolutions; odd.
        hidden: widths of the fully connected layers.
        dropout: probability of dropping a unit of the last hidden layer.

    Raises:
        ValueError: if ``dropout`` is not in [0, 1) or ``kernel_size`` is even.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        channels: Sequence[int] = (256, 256, 128),  # Sabour 2017, section 5
        kernel_size: int = 5,  # Sabour 2017, section 5
        hidden: Sequence[int] = (328, 192),  # Sabour 2017, section 5
        dropout: float = 0.5,  # ours: the usual rate, the paper gives none
    ) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is {dropout}; expected a probability in [0, 1)")
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size is {kernel_size}; expected an odd number, so that padding is symmetric")
        check_sizes("BaselineCNN", num_classes=num_classes, layers=min(len(channels), len(hidden)))
        channel, height, width = check_image_shape(image_shape, 1, "BaselineCNN")
        features: list[nn.Module] = []
        for inputs, outputs in pairwise((channel, *channels)):
            features += [nn.Conv2d(inputs, outputs, kernel_size, padding="same"), nn.ReLU()]
        classifier: list[nn.Module] = []
        for inputs, outputs in pairwise((channels[-1] * height * width, *hidden)):
            classifier += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(*classifier, nn.Dropout(dropout), nn.Linear(hidden[-1], num_classes))

    def forward(self, images: Float[Tensor, "batch channel height width"]) -> CapsuleOutput:
        scores = self.classifier(self.features(images).flatten(1))
        return CapsuleOutput(scores.to(images.dtype))  # autocast ends here
