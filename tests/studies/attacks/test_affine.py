"""Affine shifts against torch.rot90, slices and windows, which know nothing of resampling."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.studies.attacks import UNIT, Box, rotation, scaling, shear, translation

SHIFTS: dict[str, Callable[..., Tensor]] = {
    "rotation": rotation,
    "scaling": scaling,
    "shear": shear,
    "translation": translation,
    "translation down": functools.partial(translation, direction="down"),
}
STRENGTHS = {"rotation": 20.0, "scaling": 0.3, "shear": 0.4, "translation": 2.5, "translation down": 1.5}
GREY = Box(0.0, 255.0)
NO_BOX = Box()
each_shift = pytest.mark.parametrize("name", SHIFTS)


@pytest.fixture
def images() -> Tensor:
    """No pixel is 0, so that one that came in from outside can be told."""
    return 0.2 + 0.8 * torch.rand(5, 2, 9, 9, generator=torch.Generator().manual_seed(1))


def close(found: Tensor, expected: Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@each_shift
@pytest.mark.parametrize("options", [{}, {"box": GREY}, {"box": NO_BOX, "fill": "border"}])
def test_strength_0_is_the_image_bit_for_bit(name: str, options: dict[str, Any], images: Tensor) -> None:
    odd = 100 * images + 1 / 3
    assert torch.equal(SHIFTS[name](None, odd, 0.0, **options), odd)


@pytest.mark.parametrize(("degrees", "turns"), [(90.0, 1), (-90.0, -1), (180.0, 2), (270.0, 3), (360.0, 0)])
@pytest.mark.parametrize("side", [8, 9])
def test_quarters_of_a_turn_are_rot90(degrees: float, turns: int, side: int, images: Tensor) -> None:
    square = images[..., :side, :side]
    close(rotation(None, square, degrees, fill="border"), torch.rot90(square, turns, (2, 3)))


def test_positive_is_counter_clockwise_and_black_comes_in() -> None:
    image = torch.zeros(1, 1, 9, 9)
    image[..., 4, 7] = 1.0  # to the right of the middle
    assert divmod(int(rotation(None, image, 45.0).argmax()), 9) == (2, 6)  # 3 pixels away: 2.1 up, 2.1 to the right
    assert divmod(int(rotation(None, image, -45.0).argmax()), 9) == (6, 6)
    white = rotation(None, torch.ones(1, 1, 9, 9), 45.0)[0, 0]
    assert white[0, 0] == 0
    close(white[2:7, 2:7], torch.ones(5, 5))


@pytest.mark.parametrize("pixels", [1, 4, -3, 9, 20])
@pytest.mark.parametrize("direction", ["right", "down"])
def test_whole_pixels_are_slices_and_nothing_wraps_around(pixels: int, direction: str, images: Tensor) -> None:
    axis = 3 if direction == "right" else 2
    moved = translation(None, images, float(pixels), direction=direction)  # type: ignore[arg-type]
    kept = max(9 - abs(pixels), 0)
    expected = torch.zeros_like(images)
    first, last = (0, 9 - kept) if pixels < 0 else (9 - kept, 0)
    expected.narrow(axis, first, kept).copy_(images.narrow(axis, last, kept))
    close(moved, expected)
    assert (moved[expected == 0].abs() < 2e-5).all()


def test_half_a_pixel_is_the_mean_of_neighbours(images: Tensor) -> None:
    moved = translation(None, images, 0.5)
    close(moved[..., 1:], (images[..., 1:] + images[..., :-1]) / 2)
    close(moved[..., 0], images[..., 0] / 2)


def test_scaling_is_a_factor_minus_1() -> None:
    image = torch.zeros(1, 1, 12, 12)
    image[..., 3:9, 3:9] = 1.0
    half = torch.zeros_like(image)
    half[..., 4:8, 4:8] = torch.tensor([0.5, 1, 1, 0.5])[:, None] * torch.tensor([0.5, 1, 1, 0.5])
    close(scaling(None, image, -0.5), half)  # 6 x 6 pixels become 3 x 3, whose edges are in the middle of a pixel
    double = scaling(None, image, 1.0)
    close(double[..., 1:11, 1:11], torch.ones(1, 1, 10, 10))
    assert double[0, 0, 0, 0] < 1


def test_shear_is_pixels_to_the_right_for_each_above_the_middle(images: Tensor) -> None:
    sheared = shear(None, images, 1.0)
    for row in range(9):
        alone = translation(None, images[:, :, row : row + 1], 4.0 - row)
        close(sheared[:, :, row : row + 1], alone)


@each_shift
def test_back_again_is_the_image_but_for_interpolation(name: str) -> None:
    """Of a smooth spot, so that negative strengths are seen to be the other way."""
    rows, columns = torch.meshgrid(torch.arange(31.0) - 15, torch.arange(31.0) - 15, indexing="ij")
    spot = torch.exp(-((rows - 3) ** 2 + (columns + 2) ** 2) / 15)[None, None]
    there = STRENGTHS[name]
    back = 1 / (1 + there) - 1 if name == "scaling" else -there
    moved = SHIFTS[name](None, spot, there)
    assert (moved - spot).abs().max() > 0.1
    close(SHIFTS[name](None, moved, back), spot, 0.07)


@each_shift
@pytest.mark.parametrize("sign", [1, -1])
def test_an_image_is_shifted_as_it_would_be_alone(name: str, sign: int, images: Tensor) -> None:
    together = SHIFTS[name](None, images, sign * STRENGTHS[name])
    assert torch.equal(SHIFTS[name](None, images, sign * STRENGTHS[name]), together)
    close(SHIFTS[name](None, images[3:4], sign * STRENGTHS[name])[0], together[3], 1e-6)
    assert (together - images).abs().mean() > 0.05


@each_shift
def test_stays_in_the_box_and_scales_with_it(name: str, images: Tensor) -> None:
    shifted = SHIFTS[name](None, images, STRENGTHS[name], box=UNIT)
    grey = SHIFTS[name](None, 255 * images, STRENGTHS[name], box=GREY)
    assert (shifted >= 0).all()
    assert (shifted <= 1).all()
    assert (grey <= 255).all()
    close(grey / 255, shifted)
    white = SHIFTS[name](None, torch.ones(2, 1, 9, 9), STRENGTHS[name], fill="border")
    close(white, torch.ones_like(white), 1e-6)
    assert (white <= 1).all()


@each_shift
def test_black_is_the_lower_bound(name: str, images: Tensor) -> None:
    shifted = SHIFTS[name](None, images - 3, 3 * STRENGTHS[name], box=Box(-3.0, -2.0))
    close(shifted + 3, SHIFTS[name](None, images, 3 * STRENGTHS[name]))


def test_the_border_is_repeated(images: Tensor) -> None:
    moved = translation(None, images, 3.0, fill="border", box=NO_BOX)
    close(moved, torch.cat([images[..., :1].expand(-1, -1, -1, 3), images[..., :-3]], 3))


@each_shift
def test_black_of_standardised_images_is_not_guessed(name: str, images: Tensor) -> None:
    with pytest.raises(ValueError, match=r"^fill is 'black', and pixels have no lower bound.*; expected fill='border'"):
        SHIFTS[name](None, images, STRENGTHS[name], box=NO_BOX)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("shift", "strength", "options", "message"),
    [
        (rotation, math.nan, {}, "epsilon is nan; expected a finite number"),
        (shear, math.inf, {}, "epsilon is inf; expected a finite number"),
        (scaling, -1.0, {}, "epsilon is -1.0; expected more than -1"),
        (translation, 1.0, {"direction": "up"}, "direction is 'up'; expected 'right' or 'down'"),
        (rotation, 1.0, {"fill": "white"}, "fill is 'white'; expected 'black' or 'border'"),
    ],
)
def test_wrong_options(
    shift: Callable[..., Tensor], strength: float, options: dict[str, Any], message: str, images: Tensor
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        shift(None, images, strength, **options)
