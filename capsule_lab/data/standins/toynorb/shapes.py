"""Signed distances: how far a point is from a surface, negative inside.

Toys are unions of a few primitives that melt into each other where they touch. Coordinates: x forward (the nose),
y to the toy's left, z up; the table is z = 0. Lengths are in the toy's own units, about 2 from nose to tail.

Everything here is exact to the bit on any machine: coordinates are float32 arrays, and only + - * / sqrt, absolute
value, minimum and maximum touch them, one operation at a time. No sums, no matrix products, no sine per point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

Number = float | int
Vector = tuple[Number, Number, Number]
"""x, y, z; or, as angles in degrees, yaw (left), pitch (nose down) and roll (left side up)."""

Field = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""x, y and z of points to their signed distances, all float32 and of one shape."""

_ZERO, _ONE = np.float32(0), np.float32(1)
_TINY = np.float32(1e-6)  # ours: keeps the centre of an ellipsoid from dividing by 0

_EDGE = 0.02  # ours: edges of cylinders and boxes are rounded a little, as of cast toys


def cosine_and_sine(degrees: Number) -> tuple[float, float]:
    """To 6 digits, which every machine's mathematics library agrees on."""
    angle = math.radians(degrees)
    return round(math.cos(angle), 6), round(math.sin(angle), 6)  # 6: digits


def ellipsoid(radii: Vector) -> Field:
    """An ellipsoid around the origin; the distance is a first-order estimate, exact on the surface."""
    a, b, c = (1 / radius for radius in radii)
    aa, bb, cc = (1 / radius / radius for radius in radii)

    def distance(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        reach = np.sqrt(np.square(x * a) + np.square(y * b) + np.square(z * c))  # 1 on the surface
        slope = np.sqrt(np.square(x * aa) + np.square(y * bb) + np.square(z * cc))
        return reach * (reach - _ONE) / np.maximum(slope, _TINY)

    return distance


def capsule(axis: Vector, radius: Number, end_radius: Number) -> Field:
    """A round-ended rod from the origin to ``axis``, whose radius changes evenly from one end to the other."""
    a, b, c = axis
    scale = 1.0 / sum(component * component for component in axis)
    growth = end_radius - radius

    def distance(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        along = np.minimum(np.maximum((x * a + y * b + z * c) * scale, _ZERO), _ONE)
        x, y, z = x - along * a, y - along * b, z - along * c
        return np.sqrt(x * x + y * y + z * z) - (radius + along * growth)

    return distance


def cylinder(radius: Number, half: Number, axis: str, edge: Number) -> Field:
    """A cylinder around the origin, ``2 half`` long, along the axis ``"x"``, ``"y"`` or ``"z"``."""

    def distance(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        across, other, along = {"x": (y, z, x), "y": (x, z, y), "z": (x, y, z)}[axis]
        side = np.sqrt(across * across + other * other) - (radius - edge)
        end = np.abs(along) - (half - edge)
        beyond_side, beyond_end = np.maximum(side, _ZERO), np.maximum(end, _ZERO)
        inside = np.minimum(np.maximum(side, end), _ZERO)
        return inside + np.sqrt(beyond_side * beyond_side + beyond_end * beyond_end) - edge

    return distance


def box(half: Vector, edge: Number, front: tuple[Number, Number], back: tuple[Number, Number], side: Number) -> Field:
    """A box around the origin whose faces may lean: bonnets, cabins, swept wings and skirts are all this.

    Args:
        half: half its length, width and height.
        edge: radius of the rounded edges.
        front: how fast the front face retreats with z and with y.
        back: how fast the back face advances with z and with y.
        side: how fast the two sides approach each other with z.
    """
    length, width, height = (component - edge for component in half)
    front_scale, back_scale, side_scale = (
        1 / math.sqrt(1 + up * up + left * left) for up, left in (front, back, (side, 0))
    )

    def distance(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        if any(front) or any(back):
            before = (x - length + front[0] * z + front[1] * y) * front_scale
            behind = (-length - x + back[0] * z + back[1] * y) * back_scale
            long = np.maximum(before, behind)
        else:
            long = np.abs(x) - length
        wide = (np.abs(y) - width + side * z) * side_scale if side else np.abs(y) - width
        high = np.abs(z) - height
        inside = np.minimum(np.maximum(np.maximum(long, wide), high), _ZERO)
        long, wide, high = np.maximum(long, _ZERO), np.maximum(wide, _ZERO), np.maximum(high, _ZERO)
        return np.sqrt(long * long + wide * wide + high * high) + inside - edge

    return distance


def placed(field: Field, centre: Vector, turned: Vector | None) -> Field:
    """``field`` moved to ``centre``, after a turn by yaw, pitch and roll if there is one."""
    right, left, up = (float(component) for component in centre)
    rows = None if turned is None else _rotation(turned)

    def distance(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        x, y, z = x - right, y - left, z - up
        if rows is not None:
            x, y, z = (row[0] * x + row[1] * y + row[2] * z for row in rows)
        return field(x, y, z)

    return distance


def _rotation(turned: Vector) -> tuple[Vector, Vector, Vector]:
    """Rows of the matrix from the toy's coordinates to those of a part turned by yaw, pitch and roll in degrees."""
    (a, b), (p, q), (r, s) = (cosine_and_sine(angle) for angle in turned)
    return (
        (a * p, b * p, -q),
        (a * q * s - b * r, b * q * s + a * r, p * s),
        (a * q * r + b * s, b * q * r - a * s, p * r),
    )


class _Part(NamedTuple):
    field: Field
    mirrored: bool
    blend: Number


class Shape:
    """Primitives added one after another, each melting into those before it.

    Every method takes

    - ``mirrored``: there is another one at -y;
    - ``blend``: how far from a joint the surfaces bend towards each other; by default the shape's own.
    - ``turned``: yaw, pitch and roll in degrees (see ``Vector``), around the part's own centre.

    Args:
        blend: of parts that do not have their own.
    """

    def __init__(self, blend: Number) -> None:
        self.blend = blend
        self.parts: list[_Part] = []

    def ellipsoid(
        self,
        centre: Vector,
        radii: Vector,
        *,
        mirrored: bool = False,
        blend: Number | None = None,
        turned: Vector | None = None,
    ) -> None:
        """An ellipsoid with three radii."""
        self._add(placed(ellipsoid(radii), centre, turned), mirrored, blend)

    def capsule(
        self,
        start: Vector,
        end: Vector,
        radius: Number,
        end_radius: Number | None = None,
        *,
        mirrored: bool = False,
        blend: Number | None = None,
    ) -> None:
        """A round-ended rod from ``start`` to ``end``, perhaps thinner or thicker at its end."""
        axis = (end[0] - start[0], end[1] - start[1], end[2] - start[2])
        rod = capsule(axis, radius, radius if end_radius is None else end_radius)
        self._add(placed(rod, start, None), mirrored, blend)

    def cylinder(
        self,
        centre: Vector,
        radius: Number,
        half: Number,
        axis: str = "y",
        *,
        edge: Number = _EDGE,
        mirrored: bool = False,
        blend: Number | None = None,
        turned: Vector | None = None,
    ) -> None:
        """A cylinder along ``axis``, ``2 half`` long."""
        self._add(placed(cylinder(radius, half, axis, edge), centre, turned), mirrored, blend)

    def box(
        self,
        centre: Vector,
        half: Vector,
        *,
        edge: Number = _EDGE,
        mirrored: bool = False,
        blend: Number | None = None,
        turned: Vector | None = None,
        front: tuple[Number, Number] = (0, 0),
        back: tuple[Number, Number] = (0, 0),
        side: Number = 0,
    ) -> None:
        """A box with half lengths along x, y and z, whose faces may lean: see the function ``box``."""
        self._add(placed(box(half, edge, front, back, side), centre, turned), mirrored, blend)

    def distance(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Signed distance of points to the whole, a little less near joints; all float32 and of one shape."""
        left = np.abs(y)
        (first, mirrored, _), *others = self.parts
        whole = first(x, left if mirrored else y, z)
        for field, mirrored, blend in others:
            part = field(x, left if mirrored else y, z)
            nearest = np.minimum(whole, part)
            if blend:  # the polynomial smooth minimum
                overlap = np.maximum(blend - np.abs(whole - part), _ZERO) * (1 / blend)
                nearest = nearest - overlap * overlap * (blend * 0.25)  # 0.25: makes the joint smooth
            whole = nearest
        return whole

    def _add(self, field: Field, mirrored: bool, blend: Number | None) -> None:
        self.parts.append(_Part(field, mirrored, self.blend if blend is None else blend))


def add_wheels(shape: Shape, axles: Iterable[float], beside: float, radius: float, half_width: float) -> None:
    """A pair of wheels with hubs on the table, for every axle.

    Args:
        shape: gets the wheels.
        axles: x of each.
        beside: y of the left wheel's centre.
        radius: of the wheels.
        half_width: of the wheels.
    """
    for x in axles:
        shape.cylinder((x, beside, radius), radius, half_width, edge=0.025, mirrored=True, blend=0)  # ours: a tyre
        hub = (x, beside + half_width, radius)
        shape.cylinder(hub, radius * 0.45, 0.02, edge=0.01, mirrored=True, blend=0.01)  # ours: just stands out
