"""Images turned, scaled, sheared and moved: shifts of a strength that may be negative, called like attacks.

Nothing is drawn and no objective is asked. Images are resampled about their centre, bilinearly, by
``transforms.affine``, without a low-pass filter before they are made smaller. Strength 0 is the image itself, bit for
bit.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from capsule_lab.attacks.gradient import UNIT, Box, Key, Objective
from capsule_lab.data.transforms import affine
from capsule_lab.errors import check_choice, check_number

Pictures = Float[Tensor, "batch channel height width"]
Fill = Literal["black", "border"]


def rotation(
    objective: Objective | None,  # noqa: ARG001
    images: Pictures,
    epsilon: float,
    *,
    key: Key | None = None,  # noqa: ARG001
    fill: Fill = "black",
    box: Box = UNIT,
) -> Pictures:
    """Images turned by ``epsilon`` degrees, counter-clockwise as one sees them; negative: clockwise.

    Args:
        objective, key: of no use; all attacks are called alike.
        images: to turn about their centre.
        epsilon: degrees.
        fill: what comes in from outside of the image: ``"black"``, the lower bound of the box; or ``"border"``, the
            outermost pixels repeated, for images without a black background, or without bounds, as standardised ones,
            of which 0 is the mean.
        box: the pixels that there are.

    Raises:
        ValueError: for a strength that is not finite, an unknown fill, or ``"black"`` in a box without a lower bound.
    """
    check_number("epsilon", epsilon)
    return _resampled(images, epsilon, fill, box, rotation=math.radians(epsilon))


def scaling(
    objective: Objective | None,  # noqa: ARG001
    images: Pictures,
    epsilon: float,
    *,
    key: Key | None = None,  # noqa: ARG001
    fill: Fill = "black",
    box: Box = UNIT,
) -> Pictures:
    """Images scaled by a factor of ``1 + epsilon``: 0.2 is a fifth larger, -0.5 half the size.

    affNIST and MNIST-C give factors, 0.8 to 1.2 and 0.5 to 0.9, which are round numbers on this axis, not on a
    logarithmic one.

    Args:
        objective, images, key, fill, box: see ``rotation``.
        epsilon: the factor minus 1, more than -1.

    Raises:
        ValueError: for a factor that is not positive, and see ``rotation``.
    """
    check_number("epsilon", epsilon, above=-1)
    return _resampled(images, epsilon, fill, box, scale=1 + epsilon)


def shear(
    objective: Objective | None,  # noqa: ARG001
    images: Pictures,
    epsilon: float,
    *,
    key: Key | None = None,  # noqa: ARG001
    fill: Fill = "black",
    box: Box = UNIT,
) -> Pictures:
    """Images whose rows are moved sideways, the more the further they are from the middle one.

    Args:
        objective, images, key, fill, box: see ``rotation``.
        epsilon: pixels to the right for each pixel above the centre, the tangent of the angle of an upright; negative:
            to the left. affNIST has -0.2 to 0.2.

    Raises:
        ValueError: see ``rotation``.
    """
    check_number("epsilon", epsilon)
    return _resampled(images, epsilon, fill, box, shear=epsilon)


def translation(
    objective: Objective | None,  # noqa: ARG001
    images: Pictures,
    epsilon: float,
    *,
    key: Key | None = None,  # noqa: ARG001
    direction: Literal["right", "down"] = "right",
    fill: Fill = "black",
    box: Box = UNIT,
) -> Pictures:
    """Images moved by ``epsilon`` pixels, whole or not; what leaves on one side does not come in on the other.

    Args:
        objective, images, key, fill, box: see ``rotation``.
        epsilon: pixels; negative: to the left, or up.
        direction: of a positive strength.

    Raises:
        ValueError: for an unknown direction, and see ``rotation``.
    """
    check_number("epsilon", epsilon)
    check_choice("direction", direction, ("right", "down"))
    return _resampled(images, epsilon, fill, box, **{direction: epsilon})


def _resampled(
    images: Pictures,
    strength: float,
    fill: Fill,
    box: Box,
    *,
    rotation: float = 0.0,
    shear: float = 0.0,
    scale: float = 1.0,
    right: float = 0.0,
    down: float = 0.0,
) -> Pictures:
    check_choice("fill", fill, ("black", "border"))
    low, high = (torch.as_tensor(bound).to(images) for bound in box)
    if fill == "black" and not low.isfinite().all():
        raise ValueError(
            "fill is 'black', and pixels have no lower bound, as those of standardised images; "
            "expected fill='border', or an attack in space=grey_levels"
        )
    if strength == 0:
        return images
    black = low if fill == "black" else torch.zeros_like(low)

    def each(value: float) -> Tensor:
        return images.new_full((len(images),), value)

    moved = affine(
        images - black,
        rotation=each(rotation),
        shear=each(shear),
        scale_x=each(scale),
        scale_y=each(scale),
        right=each(right),
        down=each(down),
        around="zeros" if fill == "black" else "border",
    )
    return torch.clamp(moved + black, low, high)  # weights that sum to 1 but for rounding
