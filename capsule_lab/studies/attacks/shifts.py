"""Images turned, scaled, sheared and moved: shifts of a strength that may be negative, called like attacks.

Images are resampled about their centre, bilinearly, by ``transforms.affine``, without a low-pass filter before they are
made smaller. Strength 0 is the image itself, bit for bit. ``fill`` is what comes in from outside: ``"black"``, the
lower bound of the box; or ``"border"``, the outermost pixels repeated, for images without a black background, or
without bounds, as standardised ones, of which 0 is the mean.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from capsule_lab.data.transforms import affine
from capsule_lab.errors import check_number
from capsule_lab.studies.attacks.gradient import UNIT, Box
from capsule_lab.studies.attacks.kind import attack

Pictures = Float[Tensor, "batch channel height width"]
Fill = Literal["black", "border"]


@attack(
    "rotation",
    strengths=(-90.0, -60.0, -45.0, -30.0, -15.0, 15.0, 30.0, 45.0, 60.0, 90.0),  # ours
    unit="degrees counter-clockwise",
)
def rotation(
    objective: object, images: Pictures, epsilon: float, key: object = None, box: Box = UNIT, *, fill: Fill = "black"
) -> Pictures:
    """Turned about the centre; a strength is degrees counter-clockwise, and may be negative."""
    return _resampled(images, epsilon, fill, box, rotation=math.radians(epsilon))


@attack("scaling", strengths=(-0.5, -0.4, -0.3, -0.2, -0.1, 0.1, 0.2, 0.3, 0.4, 0.5), unit="factor less 1")  # ours
def scaling(
    objective: object, images: Pictures, epsilon: float, key: object = None, box: Box = UNIT, *, fill: Fill = "black"
) -> Pictures:
    """Scaled about the centre; a strength is the factor minus 1: 0.2 is a fifth larger, -0.5 half the size."""
    check_number("epsilon", epsilon, above=-1)
    return _resampled(images, epsilon, fill, box, scale_x=1 + epsilon, scale_y=1 + epsilon)


@attack(
    "shear",
    strengths=(-1.0, -0.6, -0.4, -0.2, 0.2, 0.4, 0.6, 1.0),  # ours
    unit="pixels to the right per pixel up",
)
def shear(
    objective: object, images: Pictures, epsilon: float, key: object = None, box: Box = UNIT, *, fill: Fill = "black"
) -> Pictures:
    """Sheared; a strength is pixels to the right for each pixel above the centre, and may be negative."""
    return _resampled(images, epsilon, fill, box, shear=epsilon)


@attack("translation", strengths=(-8.0, -6.0, -4.0, -2.0, 2.0, 4.0, 6.0, 8.0), unit="pixels")  # ours
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
    """Moved without wrapping around; a strength is pixels, whole or not, and may be negative."""
    return _resampled(images, epsilon, fill, box, **{direction: epsilon})


def _resampled(images: Pictures, strength: float, fill: Fill, box: Box, **moves: float) -> Pictures:
    if fill == "black" and math.isinf(box.low):
        raise ValueError(
            "fill is 'black', and pixels have no lower bound, as those of standardised images; "
            "expected fill='border', or an attack in space=grey_levels"
        )
    if strength == 0:
        return images
    low, high = (torch.as_tensor(bound).to(images) for bound in box)
    black = low if fill == "black" else torch.zeros_like(low)
    values = {"rotation": 0.0, "shear": 0.0, "right": 0.0, "down": 0.0, "scale_x": 1.0, "scale_y": 1.0} | moves
    of_images = {name: images.new_full((len(images),), value) for name, value in values.items()}
    moved = affine(images - black, **of_images, around="zeros" if fill == "black" else "border")
    return torch.clamp(moved + black, low, high)  # weights that sum to 1 but for rounding
