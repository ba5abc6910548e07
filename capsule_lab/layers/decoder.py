"""Decoder that reconstructs the image from the class capsules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.functional import truncated_normal_
from capsule_lab.shapes import checks_shapes
from capsule_lab.types import ImageBatch


class Decoder(nn.Module):
    """Fully connected decoder of images from masked class capsules (Sabour 2017, section 4.1).

    Args:
        capsules: number of class capsules.
        dim: components of their poses.
        image_shape: ``(channel, height, width)`` of the reconstruction.
        hidden: widths of the hidden layers.
        weight_std: standard deviation of the truncated normal that initialises the weights; biases start at 0.1.

    Shapes:
        poses ``(batch, capsules, dim)``, mask ``(batch, capsules)`` -> images ``(batch, *image_shape)`` in [0, 1].
    """

    def __init__(
        self,
        capsules: int,
        dim: int,
        image_shape: tuple[int, int, int],
        *,
        hidden: Sequence[int] = (512, 1024),  # Sabour 2017, figure 2
        weight_std: float = 0.1,  # official code
    ) -> None:
        super().__init__()
        self.capsules = capsules
        self.dim = dim
        self.image_shape = image_shape
        channel, height, width = image_shape
        widths = [capsules * dim, *hidden, channel * height * width]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            linear = nn.Linear(inputs, outputs)
            truncated_normal_(linear.weight, weight_std)
            nn.init.constant_(linear.bias, 0.1)  # official code
            layers += [linear, nn.ReLU()]
        # the last layer is followed by the sigmoid in ``forward``
        self.layers = nn.Sequential(*layers[:-1])

    @checks_shapes
    def forward(
        self,
        poses: Float[Tensor, "batch {self.capsules} {self.dim}"],
        mask: Float[Tensor, "batch {self.capsules}"],
    ) -> ImageBatch:
        masked = poses * mask.to(poses.dtype).unsqueeze(2)
        # routing is float32, also in a network after .bfloat16() or .half()
        inputs = masked.flatten(1).to(next(self.parameters()).dtype)
        logits = self.layers(inputs).to(poses.dtype)
        return logits.sigmoid().unflatten(1, self.image_shape)
