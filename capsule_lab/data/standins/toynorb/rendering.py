"""From a toy to its images: views in batches, smooth edges, a little grain.

An image depends on its own factors only, never on what else is rendered: any subset is, to the bit, that part of
the full set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, UInt8

from capsule_lab.data.standins.toynorb.camera import View, dot, rays, view
from capsule_lab.data.standins.toynorb.light import SETTINGS, Shaded, shade
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

_RAYS_AT_ONCE = 73728  # ours: 8 views of 96x96: fewer cost more per ray, more do not fit the cache
_WHITE = 255  # of uint8
_GRAIN = np.float32(2)  # ours: grey levels
_JUMP = 0.1  # ours: of depth between neighbouring pixels, in extents of the toy
_BEND = np.float32(0.35)  # ours: squared difference of normals
_WITHIN_A_PIXEL = ((-0.25, 0.625), (0.625, 0.25), (0.25, -0.625), (-0.625, -0.25))
"""A turned grid of four, in half pixels."""  # ours


class _Job(NamedTuple):
    """One view, and a number that no other view of any toy has, for its grain."""

    view: View
    key: int


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
    jobs = [
        _Job(
            view(toy, ELEVATIONS[elevation], AZIMUTHS[azimuth], eye),
            ((number * len(ELEVATIONS) + elevation) * len(AZIMUTHS) + azimuth) * len(EYES) + EYES.index(eye),
        )
        for elevation in elevations
        for azimuth in azimuths
        for eye in eyes
    ]
    images = np.empty((len(jobs), len(lightings), size, size), np.uint8)
    at_once = max(1, _RAYS_AT_ONCE // (size * size))
    for first in range(0, len(jobs), at_once):
        images[first : first + at_once] = _render_views(toy, jobs[first : first + at_once], lightings, size)
    shape = (len(elevations), len(azimuths), len(eyes), len(lightings), size, size)
    return np.ascontiguousarray(images.reshape(shape).swapaxes(2, 3))


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


def _render_views(
    toy: Toy, jobs: Sequence[_Job], lightings: Sequence[int], size: int
) -> UInt8[np.ndarray, "view lighting size size"]:
    """Images of several views at once."""
    middles = ((np.arange(size) + 0.5) * (2.0 / size) - 1).astype(np.float32)
    upwards, across = (np.tile(grid.ravel(), len(jobs)) for grid in np.meshgrid(-middles, middles, indexing="ij"))
    number = np.repeat(np.arange(len(jobs)), size * size)
    views = [job.view for job in jobs]
    shaded = shade(toy, rays(views, number, across, upwards), lightings)
    rough = np.flatnonzero(_edges(toy, shaded, (len(jobs), size, size)))
    right, up = _four_in(across[rough], 0, size), _four_in(upwards[rough], 1, size)
    within = shade(toy, rays(views, np.tile(number[rough], 4), right, up), lightings).radiance
    first, second, third, fourth = within.reshape(len(lightings), 4, -1).swapaxes(0, 1)
    shaded.radiance[:, rough] = ((first + second) + (third + fourth)) * np.float32(0.25)  # the mean of 4
    grey = np.sqrt(np.minimum(shaded.radiance, np.float32(1))) * _WHITE  # the eye's and the camera's square root
    grey = grey.reshape(len(lightings), len(jobs), size, size).swapaxes(0, 1)
    keys = [job.key * 8 + lighting for job in jobs for lighting in lightings]  # ours: 8, more than there are lightings
    grain = _noise(keys, size).reshape(grey.shape)
    grey = grey + grain * _GRAIN + np.float32(0.5)  # a half: floor then rounds
    return np.floor(np.clip(grey, 0, _WHITE)).astype(np.uint8)


def _four_in(middles: np.ndarray, axis: int, size: int) -> np.ndarray:
    """For each of the four points within a pixel, where it is, to the right or up, in all pixels."""
    return np.concatenate([middles + np.float32(point[axis] / size) for point in _WITHIN_A_PIXEL])


def _edges(toy: Toy, shaded: Shaded, shape: tuple[int, int, int]) -> Bool[np.ndarray, "view size size"]:
    """Pixels where one of the four neighbours is of another surface: the toy against the table, or a step or bend."""
    depth, on_toy, normal = shaded.depth.reshape(shape), shaded.toy.reshape(shape), shaded.normal.reshape(3, *shape)
    edges = np.zeros(shape, bool)
    far = np.float32(_JUMP * toy.extent)
    for here, there in ((np.s_[:, 1:], np.s_[:, :-1]), (np.s_[:, :, 1:], np.s_[:, :, :-1])):
        bend = [axis[here] - axis[there] for axis in normal]
        step = np.abs(depth[here] - depth[there]) > far
        differs = (on_toy[here] | on_toy[there]) & (step | (dot(bend, bend) > _BEND) | (on_toy[here] ^ on_toy[there]))
        edges[here] |= differs
        edges[there] |= differs
    return edges


def _noise(keys: Sequence[int], size: int) -> Float32[np.ndarray, "key size size"]:
    """Numbers in [-1, 1], near 0 more often, by hashing each pixel's index with a key; the same everywhere.

    The hash is two rounds of lowbias32 (Chris Wellons, "Prospecting for Hash Functions", 2018).
    """
    pixels, numbers = np.arange(size * size, dtype=np.uint32), np.array(keys, np.uint32)
    # Knuth's multiplier for the pixels; ours: another for the keys, so that the two do not mix
    hashed = pixels[None] * np.uint32(2654435761) + numbers[:, None] * np.uint32(40503)
    for bits, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        hashed = (hashed ^ (hashed >> np.uint32(bits))) * np.uint32(factor)
    hashed ^= hashed >> np.uint32(16)
    low, high = hashed & np.uint32(0xFFFF), hashed >> np.uint32(16)  # two numbers of 16 bits
    both = low.astype(np.float32) + high.astype(np.float32)
    return (both * np.float32(1 / 65535) - np.float32(1)).reshape(len(keys), size, size)
