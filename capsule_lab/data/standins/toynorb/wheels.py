"""Wheels of trucks and cars."""

from __future__ import annotations

from collections.abc import Iterable

from capsule_lab.data.standins.toynorb.shapes import Shape


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
