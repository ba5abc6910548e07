"""From a toy to its images: smooth edges, a little grain.

An image depends on its own factors only, never on what else is rendered: any subset is, to the bit, that part of
the full set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np
from jaxtyping import UInt8, UInt32

from capsule_lab.data.standins.toynorb import tracing
from capsule_lab.data.standins.toynorb.camera import View, view
from capsule_lab.data.standins.toynorb.light import SETTINGS, shade
from capsule_lab.data.standins.toynorb.toys import CATEGORIES, INSTANCES, Toy, make_toy

ELEVATIONS = tuple(range(30, 75, 5))
"""smallNORB's, in degrees above the table."""

AZIMUTHS = tuple(range(0, 360, 20))
"""smallNORB's, in degrees, counted to the toy's left."""

LIGHTINGS = len(SETTINGS)
"""As many as smallNORB's."""

SIZES = range(8, 257)
"""Edges of images that can be rendered, in pixels."""  # ours: below 8 toys cannot be recognised

EYES = (-1, 0, 1)
"""Left camera, between the cameras, right camera."""

_JUMP = 0.1  # ours: of depth between neighbouring pixels, in extents of the toy
_WITHIN_A_PIXEL = ((-0.25, 0.625), (0.625, 0.25), (0.25, -0.625), (-0.625, -0.25))
"""A turned grid of four, in half pixels."""  # ours


def render(
    category: int,
    instance: int,
    elevations: Sequence[int],
    azimuths: Sequence[int],
    lightings: Sequence[int],
    eyes: Sequence[int] = (-1, 1),
    *,
    size: int = 96,
    seed: int = 0,
) -> UInt8[np.ndarray, "elevation azimuth lighting eye size size"]:
    """Images of one toy.

    Costs by the view: more lightings cost next to nothing, as they share what the rays hit.

    Args:
        category: index in ``CATEGORIES``.
        instance: 0 to 9.
        elevations: indices in ``ELEVATIONS``, 0 to 8.
        azimuths: indices in ``AZIMUTHS``, 0 to 17.
        lightings: 0 to 5.
        eyes: -1 the left camera, 1 the right one, 0 between them.
        size: edge of the images in pixels; smallNORB's is 96.
        seed: of the whole set; another seed makes other toys.

    Raises:
        ValueError: for anything out of these ranges.
    """
    check_levels(elevations, azimuths, lightings)
    _check("category", [category], range(len(CATEGORIES)))
    _check("instance", [instance], range(INSTANCES))
    _check("eyes", eyes, EYES)
    check_size_and_seed(size, seed)
    toy = make_toy(category, instance, seed)
    number = category * INSTANCES + instance
    images = np.empty((len(elevations), len(azimuths), len(eyes), len(lightings), size, size), np.uint8)
    for (row, elevation), (column, azimuth), (side, eye) in product(*map(enumerate, (elevations, azimuths, eyes))):
        key = ((number * len(ELEVATIONS) + elevation) * len(AZIMUTHS) + azimuth) * len(EYES) + EYES.index(eye)
        keys = np.array([key * 8 + lighting for lighting in lightings], np.uint32)  # ours: 8, more than lightings
        camera = view(toy, ELEVATIONS[elevation], AZIMUTHS[azimuth], eye)
        images[row, column, side] = _render_view(toy, camera, lightings, keys, size)
    return np.ascontiguousarray(images.swapaxes(2, 3))


def check_levels(elevations: Sequence[int], azimuths: Sequence[int], lightings: Sequence[int]) -> None:
    """Check indices of elevations, azimuths and lightings.

    Raises:
        ValueError: if one is out of range.
    """
    _check("elevations", elevations, range(len(ELEVATIONS)))
    _check("azimuths", azimuths, range(len(AZIMUTHS)))
    _check("lightings", lightings, range(LIGHTINGS))


def check_size_and_seed(size: int, seed: int) -> None:
    """Check the size of the images and the seed.

    Raises:
        ValueError: if one is out of range.
    """
    if size not in SIZES:
        raise ValueError(f"size is {size}; expected {SIZES[0]} to {SIZES[-1]} pixels, smallNORB's are 96")
    if seed < 0:
        raise ValueError(f"seed is {seed}; expected 0 or more")


def _check(name: str, given: Iterable[int], allowed: Sequence[int]) -> None:
    levels = list(given)
    if not levels or not set(levels) <= set(allowed) or len(set(levels)) < len(levels):
        some = "one" if name in ("category", "instance") else "some, each once,"
        raise ValueError(f"{name} is {', '.join(map(str, levels)) or 'empty'}; expected {some} of {_range(allowed)}")


def _range(levels: Sequence[int]) -> str:
    return f"{levels[0]} to {levels[-1]}"


def _render_view(
    toy: Toy, camera: View, lightings: Sequence[int], keys: UInt32[np.ndarray, " lighting"], size: int
) -> UInt8[np.ndarray, "lighting size size"]:
    """The image of one view under each lighting; each key is a number that no other image of any toy has."""
    middles = ((np.arange(size) + 0.5) * (2.0 / size) - 1).astype(np.float32)
    upwards, across = (grid.ravel() for grid in np.meshgrid(-middles, middles, indexing="ij"))
    shaded = shade(toy, camera, across, upwards, lightings)
    rough = np.empty((size, size), bool)
    square = shaded.depth.reshape(size, size), shaded.normal.reshape(3, size, size), shaded.toy.reshape(size, size)
    tracing.edges(*square, np.float32(_JUMP * toy.extent), rough)
    pixels = np.flatnonzero(rough)
    right, up = _four_in(across[pixels], 0, size), _four_in(upwards[pixels], 1, size)
    within = shade(toy, camera, right, up, lightings).radiance
    first, second, third, fourth = within.reshape(len(lightings), 4, -1).swapaxes(0, 1)
    shaded.radiance[:, pixels] = ((first + second) + (third + fourth)) * np.float32(0.25)  # the mean of 4
    images = np.empty((len(lightings), size * size), np.uint8)
    tracing.expose(shaded.radiance, keys, images)
    return images.reshape(-1, size, size)


def _four_in(middles: np.ndarray, axis: int, size: int) -> np.ndarray:
    """For each of the four points within a pixel, where it is, to the right or up, in all pixels."""
    return np.concatenate([middles + np.float32(point[axis] / size) for point in _WITHIN_A_PIXEL])
