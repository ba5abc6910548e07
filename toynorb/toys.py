"""The toys and their bounding boxes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from toynorb import airplanes, animals, cars, humans, trucks
from toynorb.shapes import Shape, ToyRandom, cosine_and_sine

CATEGORIES = ("animal", "human", "airplane", "truck", "car")
"""Categories in smallNORB's order."""

INSTANCES = 10
"""Toys per category, as in smallNORB."""

TRAIN_INSTANCES = (4, 6, 7, 8, 9)
"""Training toys, as in smallNORB."""

TEST_INSTANCES = (0, 1, 2, 3, 5)
"""Test toys, as in smallNORB."""


class _Category(NamedTuple):
    """How to build the toys of a category."""

    kinds: tuple[str, ...]
    build: Callable[[str, ToyRandom], Shape]


_CATEGORIES = (  # in the order of CATEGORIES
    _Category(animals.KINDS, animals.animal),
    _Category(humans.KINDS, humans.human),
    _Category(airplanes.KINDS, airplanes.airplane),
    _Category(trucks.KINDS, trucks.truck),
    _Category(cars.KINDS, cars.car),
)

# ours: the kind of each instance, of seven kinds per category. Training toys have kinds 0, 1, 2, 3 and 5, test toys
# 0, 1, 3 and the unseen 4 and 6: the error of a convolutional network is then about 9 % on the test images
_KIND_OF_INSTANCE = (0, 4, 6, 3, 0, 1, 1, 2, 3, 5)

_HEADING = 12  # ours: degrees; smallNORB's toys are not perfectly straight, either
_SCAN_STEP = 0.05  # ours: finer than any protruding part
_SCAN_REACH = 1.6  # ours: no toy of the tested seeds is longer
_SCAN_HEIGHT = 2.4  # ours: no toy of the tested seeds is higher
_SCAN_CLOSE = 0.03  # ours: a thin part may pass between the points of the scan
_MARGIN = 0.05  # ours: one step of the scan


@dataclass(frozen=True)
class Toy:
    """A toy on the table.

    Attributes:
        shape: its signed distances.
        heading: rotation of the toy, in degrees to the right.
        low: lowest x, y and z of the bounding box.
        high: highest x, y and z of the bounding box.
        centre: centre of the box, to which cameras point.
        extent: largest distance from the centre, horizontal or vertical in the image, from any viewpoint.
    """

    shape: Shape
    heading: float
    low: tuple[float, float, float]
    high: tuple[float, float, float]
    centre: tuple[float, float, float]
    extent: float

    @functools.cached_property
    def parts_and_box(
        self,
    ) -> tuple[Float32[np.ndarray, "part column"], Float32[np.ndarray, "2 3"]]:
        """``shape.parts``, and the lowest and highest corners, for ``tracing``."""
        return self.shape.parts, np.array([self.low, self.high], np.float32)


def kind_of(category: int, instance: int) -> str:
    """Return the kind of a toy in a word or two, such as ``"cement mixer"``."""
    return _CATEGORIES[category].kinds[_KIND_OF_INSTANCE[instance]]


def make_toy(category: int, instance: int, seed: int = 0) -> Toy:
    """Build a toy, which the arguments determine completely: see ``rendering.render``."""
    draw = ToyRandom(category, instance, seed)
    shape = _CATEGORIES[category].build(kind_of(category, instance), draw)
    return on_the_table(shape, draw(-_HEADING, _HEADING))


def on_the_table(shape: Shape, heading: float) -> Toy:
    """Make a toy from a shape, turned by ``heading`` degrees to the right, with its bounding box."""
    along = np.arange(-_SCAN_REACH, _SCAN_REACH + 0.0001, _SCAN_STEP)  # 0.0001: with the end
    upwards = np.arange(0, _SCAN_HEIGHT, _SCAN_STEP)
    grid = np.stack(np.meshgrid(along, along, upwards, indexing="ij")).astype(np.float32)
    is_close = shape.distance(*grid) < _SCAN_CLOSE  # in the toy or close to it
    points = grid[:, is_close]
    low_x, low_y, _ = (float(edge) - _MARGIN for edge in points.min(axis=1))
    high_x, high_y, high_z = (float(edge) + _MARGIN for edge in points.max(axis=1))
    centre = (_middle(low_x, high_x), _middle(low_y, high_y), _middle(0.0, high_z))
    return Toy(
        shape,
        heading,
        low=(low_x, low_y, 0.0),
        high=(high_x, high_y, high_z),
        centre=centre,
        extent=_extent(points, centre),
    )


def _middle(low: float, high: float) -> float:
    return round((low + high) / 2, 6)  # 6: digits


def _extent(points: Float32[np.ndarray, "3 n"], centre: tuple[float, float, float]) -> float:
    """Compute half of the largest span of the toy's image, over the elevations and azimuths of the data set."""
    x, y, z = (values - np.float32(middle) for values, middle in zip(points, centre, strict=True))
    extent = 0.0
    # smallNORB's lowest, middle and highest elevation, and its azimuths up to 180, in degrees: the other azimuths show
    # the same from behind
    for elevation, azimuth in product((30, 50, 70), range(0, 180, 20)):
        ahead, aside = cosine_and_sine(azimuth)
        level, steep = cosine_and_sine(elevation)
        across = np.abs(x * -aside + y * ahead).max()
        upwards = np.abs(z * level - (x * ahead + y * aside) * steep).max()
        extent = max(extent, float(across), float(upwards))
    return round(extent, 6)  # 6: digits
