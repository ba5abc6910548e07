"""The shape of handwritten digits: area, length, thickness, slant, width and height (Castro 2019, arXiv 1809.10780)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.ndimage import distance_transform_edt
from torch import Tensor
from torch.nn.functional import interpolate

ATTRIBUTES = ("area", "length", "thickness", "slant", "width", "height")

_SCALE = 4  # Castro 2019, official code: the images are enlarged
_STROKE = 0.5  # Castro 2019, official code: smallest ink of a pixel of the stroke
_OUTSIDE = 0.02  # Castro 2019, official code: share of the ink outside of width or height
_SLOPE = 0.75  # ours: above 0.71, so that the pixel with the largest distance is on the ridge

Array = np.ndarray[Any, np.dtype[Any]]


def digit_shape(
    images: Float[Tensor, "image 1 height width"],
) -> Float[Tensor, "image attribute"]:
    """Measure the ``ATTRIBUTES`` of bright strokes on black, with pixels in [0, 1], in float64.

    Area is in square pixels, slant in degrees (0: upright, positive: top to the right), all others in pixels. As in
    the code of Castro 2019, images are enlarged four times; strokes are the pixels above half of the range; thickness
    is twice the mean distance from the background on the ridge of the stroke; slant is that of the regression of
    columns on rows, by the moments of the ink; width, across the slant, and height contain 98 % of the ink.

    There are three differences: enlarged images are not smoothed; the ridge consists of the pixels where the gradient
    of the distance is below 0.75, instead of the medial axis; and length is area divided by thickness.

    Raises:
        ValueError: if an image is blank.
    """
    enlarged = interpolate(images.double(), scale_factor=_SCALE, mode="bicubic")
    pictures = enlarged.clamp(0, 1).squeeze(1).cpu().numpy()
    blank = np.flatnonzero(pictures.max((1, 2)) < _STROKE)
    if len(blank):
        raise ValueError(f"image {blank[0]} is blank; expected bright strokes on black")
    shapes = [_shape(ink) for ink in pictures]
    return torch.tensor(shapes, dtype=torch.float64, device=images.device)


def _shape(ink: Array) -> list[float]:
    """Return the attributes of an enlarged image, in the order of their names."""
    stroke = ink >= _STROKE
    area = stroke.sum() / _SCALE**2
    distance = _ridge(stroke).mean()
    thickness = 2 * distance / _SCALE

    rows, columns = ink.nonzero()
    weight = ink[rows, columns]
    down = rows - np.average(rows, weights=weight)
    right = columns - np.average(columns, weights=weight)
    covariance = np.average(down * right, weights=weight)
    variance = np.average(down**2, weights=weight)
    shear = covariance / variance
    slant = np.arctan(-shear)
    across = right - shear * down
    width = _extent(across, weight) / _SCALE
    height = _extent(down, weight) / _SCALE
    length = area / thickness
    return [area, length, thickness, np.rad2deg(slant), width, height]


def _ridge(stroke: Array) -> Array:
    """Return the distances from the background of the pixels in the middle of the stroke."""
    padded = np.pad(stroke, 1)
    distance = distance_transform_edt(padded)
    slope = np.hypot(*np.gradient(distance))
    ridge: Array = distance[padded & (slope < _SLOPE)]
    return ridge


def _extent(position: Array, weight: Array) -> float:
    """Return the length of the interval that contains all but the outermost weights."""
    order = position.argsort()
    share = weight[order].cumsum() / weight.sum()
    left = _OUTSIDE / 2
    first, last = np.interp([left, 1 - left], share, position[order])
    return float(last - first)
