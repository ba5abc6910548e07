"""Rendering of toynorb: reproducible pixels, orientation, and light."""

import functools
import hashlib
import itertools

import numpy as np
import pytest

from toynorb import AZIMUTHS, ELEVATIONS, LIGHTINGS
from toynorb.camera import view
from toynorb.rendering import pixels, render, shade
from toynorb.shapes import Shape
from toynorb.toys import Toy, on_the_table

# of one view of the first toy of each category, in stereo, under all lightings, at 16x16; if one fails on a machine
# while the others' pixels differ by 1, that machine's sine or square root is another: see shapes.py
SHA256 = (
    "9d34bda14171531d",
    "9c99957a9ee2b69b",
    "17d7c21e1c256dd3",
    "5b70efa23034241a",
    "3f9eebbe663fd7ca",
)

SOME_ELEVATIONS = [1, 6]
SOME_AZIMUTHS = [2, 9, 15]
SOME_LIGHTINGS = [0, 3, 5]


@functools.cache
def truck() -> np.ndarray:
    return render(3, 2, SOME_ELEVATIONS, SOME_AZIMUTHS, SOME_LIGHTINGS, size=16)


@pytest.mark.whole
def test_pixels_have_the_recorded_hashes():
    for category, known in enumerate(SHA256):
        images = render(category, 0, [1], [2], range(6), size=16)
        assert hashlib.sha256(images.tobytes()).hexdigest()[:16] == known, category


def test_image_does_not_depend_on_the_others():
    assert truck().shape == (2, 3, 3, 2, 16, 16)
    assert truck().dtype == np.uint8
    assert truck().flags.c_contiguous
    reverse = render(3, 2, [6, 1], [15, 9, 2], [5, 3, 0], (1, -1), size=16)
    np.testing.assert_array_equal(reverse, truck()[::-1, ::-1, ::-1, ::-1])
    # building the toy takes longer than its images
    for e, a, n, eye in ((0, 0, 0, 0), (0, 2, 2, 1), (1, 0, 2, 0), (1, 2, 0, 1)):
        elevation, azimuth, lighting = SOME_ELEVATIONS[e], SOME_AZIMUTHS[a], SOME_LIGHTINGS[n]
        side = (-1, 1)[eye]
        alone = render(3, 2, [elevation], [azimuth], [lighting], [side], size=16)
        np.testing.assert_array_equal(alone.squeeze(), truck()[e, a, n, eye])


def test_every_level_and_argument_changes_the_image():
    for axis in range(4):
        levels = np.moveaxis(truck(), axis, 0).astype(int)
        for one, other in itertools.combinations(levels, 2):
            apart = np.abs(one - other).mean(axis=(-1, -2))
            assert apart.min() > 2, axis  # grain alone makes 1.1
    for change in ({"seed": 1}, {"category": 4}, {"instance": 3}):
        options = {"category": 3, "instance": 2, "seed": 0, **change}
        other = render(**options, elevations=[1], azimuths=[2], lightings=[0], size=16)
        assert np.abs(other.astype(int) - truck()[:1, :1, :1]).mean() > 3, change


def test_levels_are_those_of_smallnorb():
    assert ELEVATIONS == (30, 35, 40, 45, 50, 55, 60, 65, 70)
    assert AZIMUTHS[:3] == (0, 20, 40)
    assert AZIMUTHS[-1] == 340
    assert len(AZIMUTHS) == 18
    assert {*np.diff(AZIMUTHS)} == {20}
    assert LIGHTINGS == 6


@functools.cache
def marked(*mark: float) -> Toy:
    """A plate with a mast in its middle, and a ball at ``mark``."""
    shape = Shape(blend=0)
    shape.box((0, 0, 0.05), (1, 0.5, 0.05))
    shape.capsule((0, 0, 0), (0, 0, 1), 0.05)
    toy = on_the_table(shape, 0.0)  # looked at as it is without the ball
    if mark:
        shape.ellipsoid(mark, (0.15, 0.15, 0.15))
    return toy


def place_of(mark: tuple[float, float, float], *camera: int) -> tuple[float, float]:
    """How far to the right of and above the image's centre the ball appears, in pixels."""
    difference = depth(marked(), *camera) - depth(marked(*mark), *camera)
    rows, columns = np.nonzero(difference > 0.05)
    assert 3 < len(rows) < 50
    return columns.mean() - 19.5, 19.5 - rows.mean()


def depth(toy: Toy, *camera: int) -> np.ndarray:
    return shade(toy, view(toy, *camera), *pixels(40), [0]).depth.reshape(40, 40)


NOSE = (0.8, 0, 0.3)
LEFT = (0, 0.4, 0.3)
TOP = (0, 0, 0.9)
ACROSS, UPWARDS = 0, 1


@pytest.mark.parametrize(
    ("mark", "elevation", "azimuth", "axis", "sign"),
    [
        (NOSE, 40, 0, UPWARDS, -1),  # towards the viewer
        (NOSE, 40, 90, ACROSS, -1),
        (NOSE, 40, 180, UPWARDS, 1),  # away from the viewer
        (NOSE, 40, 270, ACROSS, 1),
        (LEFT, 40, 0, ACROSS, 1),
        (LEFT, 40, 180, ACROSS, -1),
        (LEFT, 40, 90, UPWARDS, -1),
        (TOP, 30, 0, UPWARDS, 1),
        (TOP, 30, 130, UPWARDS, 1),
    ],
)
def test_toys_are_not_mirrored(
    mark: tuple[float, float, float], elevation: int, azimuth: int, axis: int, sign: int
) -> None:
    assert sign * place_of(mark, elevation, azimuth, 0)[axis] > 3


def test_heading_turns_the_toy_to_its_right_as_the_camera_goes_left():
    straight, turned = marked(), on_the_table(marked().shape, 20.0)
    assert view(turned, 30, 40, 0) == view(straight, 30, 60, 0)


def test_left_eye_comes_first_and_is_to_the_left():
    left, middle, right = (view(marked(), 30, 70, eye) for eye in (-1, 0, 1))
    apart = np.subtract(right.position, left.position)
    assert np.dot(apart, middle.right) > 0
    expected = 2 * 0.09 * 5.2 * marked().extent
    assert np.linalg.norm(apart) == pytest.approx(expected, rel=1e-4)
    of_left_eye = render(3, 2, [1], [2], [0], [-1], size=16)
    np.testing.assert_array_equal(of_left_eye[..., 0, :, :], truck()[:1, :1, :1, 0])
    for mark, sign in ((0.8, 1), (-0.8, -1)):  # what is near lies to the right for the left eye
        for_left, _ = place_of((mark, 0, 0.3), 30, 0, -1)
        for_right, _ = place_of((mark, 0, 0.3), 30, 0, 1)
        assert sign * (for_left - for_right) > 1


def test_toys_cast_shadows():
    images = render(1, 0, [0], [0], [1, 2], [0], size=48).squeeze().astype(int)
    table = np.median(images[:, :5], axis=(1, 2), keepdims=True)
    dark = images < 0.85 * table
    assert np.all(dark.mean(axis=(1, 2)) > 0.05)
    columns = [np.flatnonzero(image.any(axis=0)).mean() for image in dark]
    assert columns[0] > columns[1] + 5  # lamp 1 is to the left, lamp 2 to the right
