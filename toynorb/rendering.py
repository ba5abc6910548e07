"""Rendering of a toy: toys of one colour on a flat table under four lamps, with antialiased edges and a little grain.

An image depends on its factors only, and not on the other rendered images: any subset is bit-identical to the same
part of the full set.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, UInt8, UInt32

from toynorb import tracing
from toynorb.camera import LAMPS, View, view
from toynorb.shapes import cosine_and_sine
from toynorb.toys import INSTANCES, Toy, make_toy

ELEVATIONS = tuple(range(30, 75, 5))
"""smallNORB's, in degrees above the table."""

AZIMUTHS = tuple(range(0, 360, 20))
"""smallNORB's, in degrees, counted to the toy's left."""

# ours: brightness of each of LAMPS, and of the ambient light: both front lamps, one of them, the other, both
# rear lamps, all, one rear lamp; the ambient light keeps shapes visible in the shadows
_SETTINGS = (
    (1.0, 1.0, 0.0, 0.0, 0.45),
    (1.8, 0.0, 0.0, 0.0, 0.42),
    (0.0, 1.6, 0.0, 0.0, 0.40),
    (0.0, 0.0, 1.2, 0.8, 0.45),
    (0.6, 0.6, 0.6, 0.6, 0.45),
    (0.0, 0.0, 0.0, 1.4, 0.50),
)

LIGHTINGS = len(_SETTINGS)
"""Number of lightings, as in smallNORB."""

SIZES = range(8, 257)
"""Edges of images that can be rendered, in pixels."""  # ours: below 8 toys cannot be recognised

EYES = (-1, 0, 1)
"""Left camera, between the cameras, right camera."""

_EXPOSURE = 0.5  # ours: the camera compensates for half of the brightness of a setting
_JUMP = (
    0.1  # ours: step of depth between neighbouring pixels that is an edge, in extents of the toy
)
_KEYS_PER_VIEW = 8  # ours: more than lightings
_WITHIN_A_PIXEL = ((-0.25, 0.625), (0.625, 0.25), (0.25, -0.625), (-0.625, -0.25))
"""A rotated grid of four points, in half pixels."""  # ours


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
    """Render images of one toy.

    The cost is per view: additional lightings cost almost nothing, because they share the hits of the rays.

    Args:
        category: index in ``CATEGORIES``.
        instance: 0 to 9.
        elevations: indices in ``ELEVATIONS``, 0 to 8.
        azimuths: indices in ``AZIMUTHS``, 0 to 17.
        lightings: 0 to 5.
        eyes: -1 for the left camera, 1 for the right one, 0 between them.
        size: edge of the images in pixels; smallNORB's is 96.
        seed: seed of the whole set; another seed makes other toys.
    """
    toy = make_toy(category, instance, seed)
    number = category * INSTANCES + instance
    views = []
    for elevation, azimuth, eye in product(elevations, azimuths, eyes):
        view_number = _view_number(number, elevation, azimuth, eye)
        keys = np.array(lightings, np.uint32) + np.uint32(view_number * _KEYS_PER_VIEW)
        camera = view(toy, ELEVATIONS[elevation], AZIMUTHS[azimuth], eye)
        views.append(_render_view(toy, camera, lightings, keys, size))
    images = np.stack(views).reshape(
        len(elevations), len(azimuths), len(eyes), len(lightings), size, size
    )
    return np.ascontiguousarray(images.swapaxes(2, 3))


def _view_number(toy: int, elevation: int, azimuth: int, eye: int) -> int:
    """Number the views of all toys, so that each has a grain of its own."""
    number = toy * len(ELEVATIONS) + elevation
    number = number * len(AZIMUTHS) + azimuth
    return number * len(EYES) + EYES.index(eye)


def pixels(size: int) -> tuple[Float32[np.ndarray, " n"], Float32[np.ndarray, " n"]]:
    """Return the coordinates (right, up) of the centres of all pixels, row by row; image edges are at -1 and 1."""
    middles = ((np.arange(size) + 0.5) * (2.0 / size) - 1).astype(np.float32)
    upwards, across = np.meshgrid(-middles, middles, indexing="ij")
    return across.ravel(), upwards.ravel()


def _render_view(
    toy: Toy,
    camera: View,
    lightings: Sequence[int],
    keys: UInt32[np.ndarray, " lighting"],
    size: int,
) -> UInt8[np.ndarray, "lighting size size"]:
    """Render one view under each lighting; each key is unique among all images of all toys."""
    across, upwards = pixels(size)
    shaded = shade(toy, camera, across, upwards, lightings)
    rough = np.empty((size, size), bool)
    tracing.edges(
        shaded.depth.reshape(size, size),
        shaded.normal.reshape(3, size, size),
        shaded.toy.reshape(size, size),
        np.float32(_JUMP * toy.extent),
        rough,
    )
    chosen = np.flatnonzero(rough)
    right = [across[chosen] + np.float32(x / size) for x, _ in _WITHIN_A_PIXEL]
    up = [upwards[chosen] + np.float32(y / size) for _, y in _WITHIN_A_PIXEL]
    within = shade(toy, camera, np.concatenate(right), np.concatenate(up), lightings).radiance
    first, second, third, fourth = within.reshape(len(lightings), 4, -1).swapaxes(0, 1)
    mean = ((first + second) + (third + fourth)) * np.float32(0.25)
    shaded.radiance[:, chosen] = mean
    images = np.empty((len(lightings), size * size), np.uint8)
    tracing.expose(shaded.radiance, keys, images)
    return images.reshape(-1, size, size)


class Shaded(NamedTuple):
    """The shaded surfaces that rays hit first: see ``tracing.shade``."""

    radiance: np.ndarray  # (lighting, n)
    depth: np.ndarray  # (n,)
    normal: np.ndarray  # (3, n)
    toy: np.ndarray  # (n,)


def shade(
    toy: Toy,
    camera: View,
    across: Float32[np.ndarray, " n"],
    upwards: Float32[np.ndarray, " n"],
    lightings: Sequence[int],
) -> Shaded:
    """Apply ``tracing.shade`` to a toy under some of the six lightings."""
    count = len(across)
    shaded = Shaded(
        radiance=np.empty((len(lightings), count), np.float32),
        depth=np.empty(count, np.float32),
        normal=np.empty((3, count), np.float32),
        toy=np.empty(count, bool),
    )
    *vectors, lamps = camera
    directions = np.array([*vectors, *lamps], np.float32)
    settings = [(*_SETTINGS[number], _exposure(number)) for number in lightings]
    parts, box = toy.parts_and_box
    tracing.shade(parts, box, directions, across, upwards, np.array(settings, np.float32), *shaded)
    return shaded


@functools.cache
def _exposure(lighting: int) -> float:
    """Compute the exposure factor of the camera for a setting."""
    *lamps, on_the_table = _SETTINGS[lighting]
    for brightness, (_, elevation) in zip(lamps, LAMPS, strict=True):
        _, sine = cosine_and_sine(elevation)
        on_the_table = on_the_table + brightness * sine
    return round(1.0 / (_EXPOSURE * on_the_table + (1 - _EXPOSURE)), 6)  # 6: digits
