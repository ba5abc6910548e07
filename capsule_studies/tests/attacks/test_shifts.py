"""Shifts compared with torch.rot90, slices and windows, which do not resample."""

from itertools import product

import pytest
import torch
from torch import Tensor

from capsule_studies.attacks.gradient import Box
from capsule_studies.attacks.shifts import rotation, scaling, shear, translation


@pytest.fixture
def images() -> Tensor:
    """No pixel is 0, so that pixels from outside can be recognised."""
    generator = torch.Generator().manual_seed(1)
    uniform = torch.rand(5, 2, 9, 9, generator=generator)
    return 0.2 + 0.8 * uniform


def close(found: Tensor, expected: Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


def test_quarters_of_a_turn_are_rot90(images: Tensor) -> None:
    for square, turns in product((images, images[..., :8, :8]), (1, -1, 2, 3, 4)):
        turned = rotation(None, square, 90.0 * turns, fill="border")
        close(turned, torch.rot90(square, turns, (2, 3)))


def test_positive_is_counter_clockwise_and_black_comes_in() -> None:
    image = torch.zeros(1, 1, 9, 9)
    image[..., 4, 7] = 1.0  # 3 pixels to the right of the middle
    # 2.1 pixels up and 2.1 to the right of the middle
    assert row_and_column_of_peak(rotation(None, image, 45.0)) == (2, 6)
    assert row_and_column_of_peak(rotation(None, image, -45.0)) == (6, 6)
    white = torch.ones(1, 1, 9, 9)
    turned = rotation(None, white, 45.0)[0, 0]
    assert turned[0, 0] == 0
    close(turned[2:7, 2:7], torch.ones(5, 5))


def row_and_column_of_peak(image: Tensor) -> tuple[int, int]:
    place = int(image.argmax())
    return divmod(place, image.shape[3])


@pytest.mark.parametrize(("direction", "axis"), [("right", 3), ("down", 2)])
def test_whole_pixels_are_slices_and_nothing_wraps_around(
    direction: str, axis: int, images: Tensor
) -> None:
    for pixels in (1, 4, -3, 9, 20):
        kept = max(9 - abs(pixels), 0)
        start, end = (0, 9 - kept) if pixels < 0 else (9 - kept, 0)
        expected = torch.zeros_like(images)
        expected.narrow(axis, start, kept).copy_(images.narrow(axis, end, kept))
        found = translation(None, images, float(pixels), direction=direction)
        close(found, expected)


def test_half_a_pixel_is_the_mean_of_neighbours(images: Tensor) -> None:
    moved = translation(None, images, 0.5)
    right, left = images[..., 1:], images[..., :-1]
    close(moved[..., 1:], (right + left) / 2)
    close(moved[..., 0], images[..., 0] / 2)


def test_a_border_is_repeated(images: Tensor) -> None:
    moved = translation(None, images, 3.0, fill="border", box=Box())
    border = images[..., :1].expand(-1, -1, -1, 3)
    expected = torch.cat([border, images[..., :-3]], 3)
    close(moved, expected)


def test_scaling_is_a_factor_minus_1() -> None:
    image = torch.zeros(1, 1, 12, 12)
    image[..., 3:9, 3:9] = 1.0
    # 6 x 6 pixels become 3 x 3, whose edges are in the middle of a pixel
    line = torch.tensor([0.5, 1, 1, 0.5])
    half = torch.zeros_like(image)
    half[..., 4:8, 4:8] = torch.outer(line, line)
    close(scaling(None, image, -0.5), half)
    double = scaling(None, image, 1.0)
    close(double[..., 1:11, 1:11], torch.ones(1, 1, 10, 10))
    assert double[0, 0, 0, 0] < 1


def test_shear_is_pixels_to_the_right_for_each_above_the_middle(images: Tensor) -> None:
    for strength in (1.0, -1.0):
        sheared = shear(None, images, strength)
        lines = zip(images.split(1, 2), sheared.split(1, 2), strict=True)
        for row, (line, sheared_line) in enumerate(lines):
            above_middle = 4.0 - row
            alone = translation(None, line, strength * above_middle)
            close(sheared_line, alone)
