"""What a toy is made of: a few primitives that melt into each other where they touch.

Coordinates: x forward (the nose), y to the toy's left, z up; the table is z = 0. Lengths are in the toy's own units,
about 2 from nose to tail. ``tracing.distance`` computes signed distances: how far a point is from the surface,
negative inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from random import Random
from typing import TypedDict, Unpack

import numpy as np
from jaxtyping import Float32

from capsule_lab.data.standins.toynorb import tracing

Number = float | int
Range = tuple[Number, Number]
"""Smallest and largest value."""
Vector = tuple[Number, Number, Number]
"""x, y, z; or, as angles in degrees, yaw (left), pitch (nose down) and roll (left side up)."""

_EDGE = 0.02  # ours: edges of cylinders and boxes are rounded a little, as of cast toys


class ToyRandom:
    """Random numbers of one toy, the same on every machine and with every version of Python and numpy.

    Only ``Random.random`` is used, whose results Python guarantees. The toy depends on the order of the calls.

    Args:
        category, instance: of the toy.
        seed: of the whole set.
    """

    def __init__(self, category: int, instance: int, seed: int) -> None:
        # ours: factors that give every toy of every seed a seed of its own
        self._random = Random(seed * 1000003 + category * 101 + instance)  # noqa: S311

    def __call__(self, least: Number, most: Number) -> float:
        """A number between ``least`` and ``most``."""
        return least + (most - least) * self._random.random()

    def chance(self, probability: Number) -> bool:
        """``True`` with this probability."""
        return self._random.random() < probability


def cosine_and_sine(degrees: Number) -> tuple[float, float]:
    """To 6 digits, which every machine's mathematics library agrees on."""
    angle = math.radians(degrees)
    return round(math.cos(angle), 6), round(math.sin(angle), 6)  # 6: digits


class How(TypedDict, total=False):
    """What every primitive may have.

    ``mirrored``: there is another one at -y. ``blend``: how far from a joint the surfaces bend towards each other; by
    default the shape's own. ``turned``: yaw, pitch and roll in degrees (see ``Vector``), around the part's own centre.
    """

    mirrored: bool
    blend: Number
    turned: Vector | None


class Shape:
    """Primitives added one after another, each melting into those before it.

    Args:
        blend: of parts that do not have their own.
    """

    def __init__(self, blend: Number) -> None:
        self.blend = blend
        self._parts: list[list[Number]] = []

    @property
    def parts(self) -> Float32[np.ndarray, "part column"]:
        """Rows of numbers for ``tracing``, whose columns are named there: one row for each primitive."""
        return np.array(self._parts, np.float32)

    def ellipsoid(self, centre: Vector, radii: Vector, **how: Unpack[How]) -> None:
        """An ellipsoid with three radii."""
        measures = [*(1 / radius for radius in radii), *(1 / radius / radius for radius in radii)]
        self._add(tracing.ELLIPSOID, measures, centre, **how)

    def capsule(
        self, start: Vector, end: Vector, radius: Number, end_radius: Number | None = None, **how: Unpack[How]
    ) -> None:
        """A round-ended rod from ``start`` to ``end``, whose radius changes evenly from one end to the other."""
        axis = (end[0] - start[0], end[1] - start[1], end[2] - start[2])
        scale = 1.0 / sum(component * component for component in axis)
        growth = (radius if end_radius is None else end_radius) - radius
        self._add(tracing.CAPSULE, [*axis, scale, radius, growth], start, **how)

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
        """A cylinder along ``axis``, ``2 half`` long."""
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
        """A box whose faces may lean: bonnets, cabins, swept wings and skirts are all this.

        Args:
            centre: of the box.
            half: half its length, width and height.
            edge: radius of the rounded edges.
            front: how fast the front face retreats with z and with y.
            back: how fast the back face advances with z and with y.
            side: how fast the two sides approach each other with z.
            **how: see ``How``.
        """
        sizes = (component - edge for component in half)
        scales = (1 / math.sqrt(1 + up * up + left * left) for up, left in (front, back, (side, 0)))
        self._add(tracing.BOX, [*sizes, edge, side, *front, *back, *scales], centre, **how)

    def distance(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Signed distance of points to the whole, a little less near joints; all float32 and of one shape."""
        points = np.stack([x.ravel(), y.ravel(), z.ravel()])
        whole = np.empty_like(points[0])
        tracing.distances(self.parts, points, whole)
        return whole.reshape(x.shape)

    def _add(self, kind: int, measures: list[Number], centre: Vector, **how: Unpack[How]) -> None:
        blend, turned = how.get("blend", self.blend), how.get("turned")
        melting = [blend, 1 / blend, blend * 0.25] if blend else [0, 0, 0]  # 0.25: makes the joint smooth
        rows: list[Number] = [0] * 9 if turned is None else _rotation(turned)
        part = [kind, how.get("mirrored", False), turned is not None, *melting, *centre, *rows, *measures]
        self._parts.append(part + [0] * (tracing.COLUMNS - len(part)))


def _rotation(turned: Vector) -> list[Number]:
    """The matrix from the toy's coordinates to those of a part, row by row."""
    (a, b), (p, q), (r, s) = (cosine_and_sine(angle) for angle in turned)
    return [
        a * p, b * p, -q,
        a * q * s - b * r, b * q * s + a * r, p * s,
        a * q * r + b * s, b * q * r - a * s, p * r,
    ]  # fmt: skip


def add_wheels(shape: Shape, axles: Iterable[float], beside: float, radius: float, half_width: float) -> None:
    """A pair of wheels with hubs on the table, for every x of ``axles``; the left one's centre is at y ``beside``."""
    for x in axles:
        shape.cylinder((x, beside, radius), radius, half_width, edge=0.025, mirrored=True, blend=0)  # ours: a tyre
        hub = (x, beside + half_width, radius)
        shape.cylinder(hub, radius * 0.45, 0.02, edge=0.01, mirrored=True, blend=0.01)  # ours: just stands out
