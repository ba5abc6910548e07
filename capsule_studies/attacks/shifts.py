"""Rotation, scaling, shear and translation of images: shifts with a signed strength and the signature of an attack.

Images are resampled about their centre, bilinearly, by ``transforms.affine``, without a low-pass filter before
downscaling. Strength 0 returns the image bit for bit. ``fill`` determines the pixels from outside: ``"black"`` is the
lower bound of the box; ``"border"`` repeats the outermost pixels, for images without a black background or without
bounds, such as standardised images, whose mean is 0.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from capsule_lab.data.transforms import affine
from capsule_lab.errors import check_number
from capsule_studies.attacks.gradient import UNIT, Box
from capsule_studies.attacks.kind import attack

Pictures = Float[Tensor, "batch channel height width"]
Fill = Literal["black", "border"]


@attack(
    "rotation",
    strengths=(-90.0, -60.0, -45.0, -30.0, -15.0, 15.0, 30.0, 45.0, 60.0, 90.0),  # ours
    unit="degrees counter-clockwise",
)
def rotation(
    objective: object,
    images: Pictures,
    epsilon: float,
    key: object = None,
    box: Box = UNIT,
    *,
    fill: Fill = "black",
) -> Pictures:
    """Rotate about the centre; the strength is in degrees counter-clockwise and may be negative."""
    return _resampled(images, epsilon, fill, box, rotation=math.radians(epsilon))


@attack(
    "scaling",
    strengths=(-0.5, -0.4, -0.3, -0.2, -0.1, 0.1, 0.2, 0.3, 0.4, 0.5),  # ours
    unit="factor less 1",
)
def scaling(
    objective: object,
    images: Pictures,
    epsilon: float,
    key: object = None,
    box: Box = UNIT,
    *,
    fill: Fill = "black",
) -> Pictures:
    """Scale about the centre; the strength is the factor minus 1: 0.2 is a fifth larger, -0.5 half the size."""
    check_number("epsilon", epsilon, above=-1)
    return _resampled(images, epsilon, fill, box, scale_x=1 + epsilon, scale_y=1 + epsilon)


@attack(
    "shear",
    strengths=(-1.0, -0.6, -0.4, -0.2, 0.2, 0.4, 0.6, 1.0),  # ours
    unit="pixels to the right per pixel up",
)
def shear(
    objective: object,
    images: Pictures,
    epsilon: float,
    key: object = None,
    box: Box = UNIT,
    *,
    fill: Fill = "black",
) -> Pictures:
    """Shear; the strength is in pixels to the right for each pixel above the centre and may be negative."""
    return _resampled(images, epsilon, fill, box, shear=epsilon)


@attack(
    "translation",
    strengths=(-8.0, -6.0, -4.0, -2.0, 2.0, 4.0, 6.0, 8.0),  # ours
    unit="pixels",
)
def translation(
    objective: object,
    images: Pictures,
    epsilon: float,
    key: object = None,
    box: Box = UNIT,
    *,
    direction: Literal["right", "down"] = "right",
    fill: Fill = "black",
) -> Pictures:
    """Translate without wrapping around; the strength is in pixels, may be fractional and may be negative."""
    return _resampled(images, epsilon, fill, box, **{direction: epsilon})


def _resampled(images: Pictures, strength: float, fill: Fill, box: Box, **moves: float) -> Pictures:
    if fill == "black" and math.isinf(box.low):
        raise ValueError(
            "fill is 'black', but pixels have no lower bound, as in standardised images; "
            "expected fill='border' or space=grey_levels"
        )
    if strength == 0:
        return images
    low, high = (torch.as_tensor(bound).to(images) for bound in box)
    black = low if fill == "black" else torch.zeros_like(low)
    nothing = {"rotation": 0.0, "shear": 0.0, "right": 0.0, "down": 0.0}
    values = {**nothing, "scale_x": 1.0, "scale_y": 1.0, **moves}
    of_images = {name: images.new_full((len(images),), value) for name, value in values.items()}
    moved = affine(images - black, **of_images, around="zeros" if fill == "black" else "border")
    return torch.clamp(moved + black, low, high)  # weights sum to 1 except for rounding
