"""Shapes of toys: a few primitives that blend into each other where they touch.

Coordinates: x forward (towards the nose), y to the toy's left, z up; the table is at z = 0. Toys are about 2 units
long. ``tracing.distance`` computes signed distances of points from the surface, which are negative inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from random import Random
from typing import TypedDict, Unpack

import numpy as np
from jaxtyping import Float32

from toynorb import tracing

Number = float | int
Range = tuple[Number, Number]
"""Smallest and largest value."""
Vector = tuple[Number, Number, Number]
"""x, y, z; or angles in degrees: yaw (left), pitch (nose down) and roll (left side up)."""

_EDGE = 0.02  # ours: edges of cylinders and boxes are slightly rounded, as on cast toys


class ToyRandom:
    """Random numbers for one toy, the same on every machine and with every version of Python and numpy.

    It uses only ``Random.random``, whose results Python guarantees. The toy depends on the order of the calls.

    Args:
        category, instance: indices of the toy.
        seed: seed of the whole set.
    """

    def __init__(self, category: int, instance: int, seed: int) -> None:
        # ours: factors that give every toy of every set a different seed
        self._random = Random(seed * 1000003 + category * 101 + instance)  # noqa: S311

    def __call__(self, least: Number, most: Number) -> float:
        """Draw a number between ``least`` and ``most``."""
        return least + (most - least) * self._random.random()

    def chance(self, probability: Number) -> bool:
        """Return ``True`` with this probability."""
        return self._random.random() < probability


def cosine_and_sine(degrees: Number) -> tuple[float, float]:
    """Return cosine and sine rounded to 6 digits, which are the same in all mathematics libraries."""
    angle = math.radians(degrees)
    return round(math.cos(angle), 6), round(math.sin(angle), 6)  # 6: digits


class How(TypedDict, total=False):
    """Options of every primitive.

    ``mirrored``: add a copy at -y. ``blend``: distance from a joint within which the surfaces blend; default: that of
    the shape. ``turned``: yaw, pitch and roll in degrees (see ``Vector``) about the centre of the part.
    """

    mirrored: bool
    blend: Number
    turned: Vector | None


class Shape:
    """A sequence of primitives, each of which blends into the previous ones.

    Args:
        blend: default for parts without a ``blend``.
    """

    def __init__(self, blend: Number) -> None:
        self.blend = blend
        self._parts: list[list[Number]] = []

    @property
    def parts(self) -> Float32[np.ndarray, "part column"]:
        """Rows of numbers for ``tracing``, one per primitive; ``tracing`` defines their columns."""
        return np.array(self._parts, np.float32)

    def ellipsoid(self, centre: Vector, radii: Vector, **how: Unpack[How]) -> None:
        """Add an ellipsoid with three radii."""
        inverse = [1 / radius for radius in radii]
        squared = [1 / radius / radius for radius in radii]
        measures = [*inverse, *squared]
        self._add(tracing.ELLIPSOID, measures, centre, **how)

    def capsule(
        self,
        start: Vector,
        end: Vector,
        radius: Number,
        end_radius: Number | None = None,
        **how: Unpack[How],
    ) -> None:
        """Add a rod with round ends from ``start`` to ``end``; its radius changes linearly."""
        x, y, z = end[0] - start[0], end[1] - start[1], end[2] - start[2]
        scale = 1.0 / (x * x + y * y + z * z)
        growth = (radius if end_radius is None else end_radius) - radius
        self._add(tracing.CAPSULE, [x, y, z, scale, radius, growth], start, **how)

    def cylinder(
        self,
        centre: Vector,
        radius: Number,
        half: Number,
        axis: str = "y",
        *,
        edge: Number = _EDGE,
        **how: Unpack[How],
    ) -> None:
        """Add a cylinder along ``axis`` with length ``2 half``."""
        measures = [radius - edge, half - edge, edge, "xyz".index(axis)]
        self._add(tracing.CYLINDER, measures, centre, **how)

    def box(
        self,
        centre: Vector,
        half: Vector,
        *,
        edge: Number = _EDGE,
        front: Range = (0, 0),
        back: Range = (0, 0),
        side: Number = 0,
        **how: Unpack[How],
    ) -> None:
        """Add a box whose faces may be slanted, for bonnets, cabins, swept wings and skirts.

        Args:
            centre: centre of the box.
            half: half its length, width and height.
            edge: radius of the rounded edges.
            front: slope by which the front face recedes with z and with y.
            back: slope by which the back face advances with z and with y.
            side: slope by which the two sides converge with z.
            **how: see ``How``.
        """
        sizes = [component - edge for component in half]
        # the distance to a slanted face is shorter than along the axis
        scales = [_shortening(front), _shortening(back), _shortening((side, 0))]
        self._add(tracing.BOX, [*sizes, edge, side, *front, *back, *scales], centre, **how)

    def distance(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Compute the signed distance of points to the shape, slightly too small near joints; arrays are float32."""
        points = np.stack([x.ravel(), y.ravel(), z.ravel()])
        whole = np.empty_like(points[0])
        tracing.distances(self.parts, points, whole)
        return whole.reshape(x.shape)

    def _add(self, kind: int, measures: list[Number], centre: Vector, **how: Unpack[How]) -> None:
        blend = how.get("blend", self.blend)
        turned = how.get("turned")
        melting: list[Number] = [0, 0, 0]
        if blend:
            melting = [blend, 1 / blend, blend * 0.25]  # 0.25: makes the joint smooth
        rotation: list[Number] = [0] * 9 if turned is None else _rotation(turned)
        switches = [kind, how.get("mirrored", False), turned is not None]
        part = [*switches, *melting, *centre, *rotation, *measures]
        unused = tracing.COLUMNS - len(part)
        self._parts.append(part + [0] * unused)


def _shortening(slope: Range) -> float:
    """Return the cosine of the angle between a face with these two slopes and an upright one."""
    up, left = slope
    return 1 / math.sqrt(1 + up * up + left * left)


def _rotation(turned: Vector) -> list[Number]:
    """Return the matrix from the toy's coordinates to the part's, row by row."""
    (a, b), (p, q), (r, s) = (cosine_and_sine(angle) for angle in turned)
    return [
        a * p, b * p, -q,
        a * q * s - b * r, b * q * s + a * r, p * s,
        a * q * r + b * s, b * q * r - a * s, p * r,
    ]  # fmt: skip


def add_wheels(
    shape: Shape, axles: Iterable[float], beside: float, radius: float, half_width: float
) -> None:
    """Add a pair of wheels with hubs at every x in ``axles``; the centre of the left wheel is at y ``beside``."""
    # ours, all literals: a tyre with round edges, and a hub that protrudes slightly
    for x in axles:
        tyre = (x, beside, radius)
        shape.cylinder(tyre, radius, half_width, edge=0.025, mirrored=True, blend=0)
        hub = (x, beside + half_width, radius)
        shape.cylinder(hub, radius * 0.45, 0.02, edge=0.01, mirrored=True, blend=0.01)
