"""A plain auto-encoder that receives the change: the control of a transforming auto-encoder."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.errors import check_choice, check_sizes, check_widths
from capsule_lab.networks.base import (
    CHANGES,
    AbstractPairNetwork,
    Pose,
    TransformedImages,
    check_image_shape,
    check_images,
)


class PairAutoencoder(AbstractPairNetwork):
    """An image to a code; the code and the change, one after the other, to the second image.

    The change enters beside the code, so that nothing makes the code follow it. With the defaults 710,434 parameters
    at 28x28, as many as the transforming auto-encoder for translations.

    Args:
        image_shape: ``(channel, height, width)``.
        code: numbers that an image is made of: 90, as many as 30 capsules with two coordinates and a presence have.
        hidden: units of the layers between image and code, and, in reverse, between code and image.
        pose: what it receives: ``"translation"`` or ``"matrix"``, see ``TransformingAutoencoder``.

    >>> sum(p.numel() for p in PairAutoencoder((1, 28, 28)).parameters())
    710434
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        *,
        code: int = 90,  # ours: 30 capsules of Hinton 2011 have as many
        hidden: Sequence[int] = (405,),  # ours: as many parameters as that network
        pose: Pose = "translation",
    ) -> None:
        super().__init__()
        check_choice("pose", pose, get_args(Pose))
        check_sizes("PairAutoencoder", code=code)
        check_widths("PairAutoencoder", hidden=hidden)
        self.image_shape = check_image_shape(image_shape, 1, "PairAutoencoder")
        self.capsules = 0
        self.pose = pose
        pixels = prod(self.image_shape)
        self.encoder = _layers([pixels, *hidden, code])
        self.decoder = _layers([code + prod(CHANGES[pose]), *reversed(hidden), pixels])

    def forward(
        self,
        images: Float[Tensor, "batch channel height width"],
        change: Float[Tensor, "batch 2"] | Float[Tensor, "batch 3 3"],
    ) -> TransformedImages:
        self.check_change(change)
        code, there = self.recognise(images)
        made = self.decoder(torch.cat([code.flatten(1), change.flatten(1)], 1))
        return TransformedImages(made.unflatten(1, self.image_shape), code, there)

    def recognise(
        self, images: Float[Tensor, "batch channel height width"]
    ) -> tuple[Float[Tensor, "batch 1 code"], Float[Tensor, "batch 1"]]:
        check_images(images, self.image_shape, "PairAutoencoder")
        code = self.encoder(images.flatten(1)).unsqueeze(1)
        return code, torch.ones_like(code[..., 0])


def _layers(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    linear = [nn.Linear(*sizes) for sizes in pairwise(widths)]
    return nn.Sequential(*[part for layer in linear[:-1] for part in (layer, nn.ReLU())], linear[-1])
