"""Positions and directions of the camera and the lamps.

smallNORB's toys stood on a turntable under a pair of cameras and four lamps; here the toy does not move, and cameras
and lamps move around it. Vectors are x, y, z in the toy's coordinates: see ``shapes``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from toynorb.shapes import cosine_and_sine
from toynorb.toys import Toy

LAMPS = ((-55, 40), (50, 50), (160, 35), (-120, 55))
"""Azimuth relative to the camera and elevation of each lamp, in degrees."""  # ours: two in front, two behind

_DISTANCE = 5.2  # ours: from the toy's centre to the camera, in extents of the toy
_ASIDE = 0.09  # LeCun 2004, from memory: cameras 7.5 cm apart, 41 cm away, which is twice 0.09
_ZOOM = 48 / 41  # ours: the toy spans at most 82 of 96 pixels

Direction = tuple[float, float, float]


class View(NamedTuple):
    """One camera, with the directions of the lamps.

    ``position`` is a point; ``forward`` has length 1; ``right`` and ``up`` point from the centre of the image to its
    edges at distance 1; ``lamps`` are unit vectors towards the lamps.
    """

    position: Direction
    forward: Direction
    right: Direction
    up: Direction
    lamps: tuple[Direction, ...]


def view(toy: Toy, elevation: int, azimuth: int, eye: int) -> View:
    """Return a camera that points to the toy's centre.

    At azimuth 0 the nose points to the viewer, at azimuth 90 to the left of the image.

    Args:
        toy: the toy in view.
        elevation: degrees above the table.
        azimuth: degrees, counted to the toy's left.
        eye: -1 for the left camera, 1 for the right one, 0 between them.
    """
    azimuth_of_toy = azimuth + toy.heading
    outwards, sideways = _outwards(azimuth_of_toy, elevation)
    distance = _DISTANCE * toy.extent
    position = []
    for middle, out, beside in zip(toy.centre, outwards, sideways, strict=True):
        position.append(middle + distance * out + eye * _ASIDE * distance * beside)
    x, y, z = (middle - place for middle, place in zip(toy.centre, position, strict=True))
    length = math.sqrt(x * x + y * y + z * z)
    level_length = math.sqrt(x * x + y * y)
    right = (y / level_length, -x / level_length, 0.0)
    x, y, z = x / length, y / length, z / length
    up = (right[1] * z, -right[0] * z, right[0] * y - right[1] * x)
    half_image = 1.0 / _DISTANCE * _ZOOM
    lamps = []
    for beside, above in LAMPS:
        towards, _ = _outwards(azimuth_of_toy + beside, above)
        lamps.append(_six_digits(towards))
    return View(
        position=_six_digits(position),
        forward=_six_digits((x, y, z)),
        right=_six_digits(right, half_image),
        up=_six_digits(up, half_image),
        lamps=tuple(lamps),
    )


def _outwards(azimuth: float, elevation: int) -> tuple[Direction, Direction]:
    """Return the direction from the toy to this viewpoint, and the horizontal direction to the viewer's right."""
    ahead, aside = cosine_and_sine(azimuth)
    level, steep = cosine_and_sine(elevation)
    return (ahead * level, aside * level, steep), (-aside, ahead, 0.0)


def _six_digits(vector: Sequence[float], scale: float = 1.0) -> Direction:
    """Scale and round a vector, so that all machines have the same digits."""
    x, y, z = (round(component * scale, 6) for component in vector)  # 6: digits
    return x, y, z
