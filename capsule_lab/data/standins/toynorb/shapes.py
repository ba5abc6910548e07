"""What a toy is made of: a few primitives that melt into each other where they touch.

Coordinates: x forward (the nose), y to the toy's left, z up; the table is z = 0. Lengths are in the toy's own units,
about 2 from nose to tail. ``tracing.distance`` computes signed distances: how far a point is from the surface,
negative inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from jaxtyping import Float32

from capsule_lab.data.standins.toynorb import tracing

Number = float | int
Vector = tuple[Number, Number, Number]
"""x, y, z; or, as angles in degrees, yaw (left), pitch (nose down) and roll (left side up)."""

_EDGE = 0.02  # ours: edges of cylinders and boxes are rounded a little, as of cast toys


def cosine_and_sine(degrees: Number) -> tuple[float, float]:
    """To 6 digits, which every machine's mathematics library agrees on."""
    angle = math.radians(degrees)
    return round(math.cos(angle), 6), round(math.sin(angle), 6)  # 6: digits


def _rotation(turned: Vector) -> tuple[Vector, Vector, Vector]:
    """Rows of the matrix from the toy's coordinates to those of a part turned by yaw, pitch and roll in degrees."""
    (a, b), (p, q), (r, s) = (cosine_and_sine(angle) for angle in turned)
    return (
        (a * p, b * p, -q),
        (a * q * s - b * r, b * q * s + a * r, p * s),
        (a * q * r + b * s, b * q * r - a * s, p * r),
    )


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
        self._parts: list[list[Number]] = []

    @property
    def parts(self) -> Float32[np.ndarray, "part column"]:
        """Rows of numbers for ``tracing``, whose columns are named there: one row for each primitive."""
        return np.array(self._parts, np.float32)

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
        measures = [*(1 / radius for radius in radii), *(1 / radius / radius for radius in radii)]
        self._add(tracing.ELLIPSOID, measures, centre, mirrored, blend, turned)

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
        """A round-ended rod from ``start`` to ``end``, whose radius changes evenly from one end to the other."""
        axis = (end[0] - start[0], end[1] - start[1], end[2] - start[2])
        scale = 1.0 / sum(component * component for component in axis)
        growth = (radius if end_radius is None else end_radius) - radius
        self._add(tracing.CAPSULE, [*axis, scale, radius, growth], start, mirrored, blend, None)

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
        measures = [radius - edge, half - edge, edge, "xyz".index(axis)]
        self._add(tracing.CYLINDER, measures, centre, mirrored, blend, turned)

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
        """A box whose faces may lean: bonnets, cabins, swept wings and skirts are all this.

        Args:
            centre: of the box.
            half: half its length, width and height.
            edge: radius of the rounded edges.
            mirrored, blend, turned: see the class.
            front: how fast the front face retreats with z and with y.
            back: how fast the back face advances with z and with y.
            side: how fast the two sides approach each other with z.
        """
        sizes = (component - edge for component in half)
        scales = (1 / math.sqrt(1 + up * up + left * left) for up, left in (front, back, (side, 0)))
        self._add(tracing.BOX, [*sizes, edge, side, *front, *back, *scales], centre, mirrored, blend, turned)

    def distance(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Signed distance of points to the whole, a little less near joints; all float32 and of one shape."""
        points = np.stack([x.ravel(), y.ravel(), z.ravel()])
        whole = np.empty_like(points[0])
        tracing.distances(self.parts, points, whole)
        return whole.reshape(x.shape)

    def _add(
        self,
        kind: int,
        measures: list[Number],
        centre: Vector,
        mirrored: bool,
        blend: Number | None,
        turned: Vector | None,
    ) -> None:
        blend = self.blend if blend is None else blend
        melting = [blend, 1 / blend, blend * 0.25] if blend else [0, 0, 0]  # 0.25: makes the joint smooth
        rows = [0] * 9 if turned is None else [number for row in _rotation(turned) for number in row]
        part = [kind, mirrored, turned is not None, *melting, *centre, *rows, *measures]
        self._parts.append(part + [0] * (tracing.COLUMNS - len(part)))


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
