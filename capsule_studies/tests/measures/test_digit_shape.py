"""Shapes of drawn strokes, whose attributes are known, and a slow transcription."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from capsule_studies.measures.digit_shape import ATTRIBUTES, digit_shape
from capsule_studies.tests.strokes import SIDE, bar, ring


def shape(image: Tensor) -> dict[str, float]:
    (values,) = digit_shape(image[None]).tolist()
    return dict(zip(ATTRIBUTES, values, strict=True))


@pytest.mark.parametrize("slant", [-30, 0, 15, 40])
def test_slant_of_sheared_bars(slant: int) -> None:
    found = shape(bar(3, slant, length=18))
    assert found["slant"] == pytest.approx(slant, abs=0.3)
    assert found["height"] == pytest.approx(18, abs=0.5)
    assert found["area"] == pytest.approx(3 * 18, rel=0.02)


@pytest.mark.parametrize("thickness", [2, 3, 4, 5])
def test_thickness_and_length_of_strokes_without_ends(thickness: int) -> None:
    found = shape(ring(thickness, radius=7))
    assert found["thickness"] == pytest.approx(thickness, abs=0.2)
    assert found["length"] == pytest.approx(2 * math.pi * 7, rel=0.06)


def test_width_is_measured_across_the_slant() -> None:
    upright = shape(bar(8, 0, length=16))
    slanted = shape(bar(8, 30, length=16))
    assert upright["width"] == pytest.approx(8, abs=0.5)
    assert slanted["width"] == pytest.approx(upright["width"], abs=0.5)


def test_stroke_at_the_edge_of_the_image_ends_there() -> None:
    image = torch.zeros(1, SIDE, SIDE)
    image[:, :, :4] = 1.0
    inside = torch.zeros(1, SIDE, SIDE)
    inside[:, :, 8:12] = 1.0
    assert shape(image)["thickness"] == pytest.approx(shape(inside)["thickness"], abs=0.3)


def reference(image: Tensor) -> list[float]:
    """Slow transcription: loops over the pixels of the enlarged image, distances from all pixels of the background."""
    scale = 4
    enlarged = torch.nn.functional.interpolate(
        image[None].double(), scale_factor=scale, mode="bicubic"
    )
    ink = enlarged[0, 0].clamp(0, 1).numpy()
    side = len(ink)
    pixels = [(row, column) for row in range(side) for column in range(side)]
    stroke = [pixel for pixel in pixels if ink[pixel] >= 0.5]
    background = np.array([pixel for pixel in pixels if ink[pixel] < 0.5])
    distance = np.zeros((side, side))
    for pixel in stroke:
        distance[pixel] = np.sqrt(((background - np.array(pixel)) ** 2).sum(1).min())
    ridge = []
    for row, column in stroke:
        down = (distance[row + 1, column] - distance[row - 1, column]) / 2
        right = (distance[row, column + 1] - distance[row, column - 1]) / 2
        if math.sqrt(down**2 + right**2) < 0.75:
            ridge.append(distance[row, column])
    area = len(stroke) / scale**2
    thickness = 2 * sum(ridge) / len(ridge) / scale

    total = sum(ink[pixel] for pixel in pixels)
    middle_row = sum(ink[pixel] * pixel[0] for pixel in pixels) / total
    middle_column = sum(ink[pixel] * pixel[1] for pixel in pixels) / total
    covariance = variance = 0.0
    for row, column in pixels:
        covariance += ink[row, column] * (column - middle_column) * (row - middle_row)
        variance += ink[row, column] * (row - middle_row) ** 2
    shear = covariance / variance
    across, down_page = [], []
    for row, column in pixels:
        if ink[row, column] > 0:
            across.append((column - shear * (row - middle_row), ink[row, column]))
            down_page.append((row, ink[row, column]))
    width = (position_of(across, 0.99 * total) - position_of(across, 0.01 * total)) / scale
    height = (position_of(down_page, 0.99 * total) - position_of(down_page, 0.01 * total)) / scale
    return [area, area / thickness, thickness, math.degrees(math.atan(-shear)), width, height]


def position_of(weighted: list[tuple[float, float]], wanted: float) -> float:
    """Return where the weight to the left of it reaches ``wanted``, interpolated."""
    total, before = 0.0, None
    for position, weight in sorted(weighted):
        if total + weight >= wanted:
            if before is None:
                return position
            return before + (position - before) * (wanted - total) / weight
        total += weight
        before = position
    raise AssertionError("not reached")


@pytest.mark.parametrize("image", [bar(3, 20, length=9, side=16), ring(2.5, radius=4, side=16)])
def test_equals_a_slow_transcription(image: Tensor) -> None:
    found = digit_shape(image[None])[0]
    expected = torch.tensor(reference(image), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_blank_image_is_refused() -> None:
    images = torch.stack([bar(3, 0), torch.zeros(1, SIDE, SIDE)])
    with pytest.raises(ValueError, match="image 1 is blank; expected bright strokes on black"):
        digit_shape(images)
