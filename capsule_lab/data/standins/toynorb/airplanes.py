"""Airplanes: a fuselage, wings that sweep and taper, a tail, and what drives them."""

from __future__ import annotations

from typing import NamedTuple

from capsule_lab.data.standins.toynorb.rng import Range, ToyRandom
from capsule_lab.data.standins.toynorb.shapes import Number, Shape


class _Kind(NamedTuple):
    """What an airplane of one kind measures; pairs are the least and the most.

    ``length`` is half the fuselage, ``chord`` half the wing's depth, ``span`` one wing. ``nose`` is the front's
    radius in radii of the fuselage, ``wing_height`` the wing's in the same, above the fuselage's axis;
    ``wing_forward`` is in half lengths. The leading edge retreats by ``sweep`` and the trailing edge advances by
    ``-taper`` for each unit outwards; ``dihedral`` is how fast the wing rises.
    """

    length: Range
    radius: Range
    nose: Number
    span: Range
    chord: Range
    sweep: Range
    taper: Range
    wing_height: Range
    wing_forward: Range
    dihedral: Range


# ours: by eye, so that outlines distinguish the kinds
_KINDS = {
    "airliner": _Kind(
        length=(0.85, 1.05), radius=(0.09, 0.15), nose=1, span=(0.75, 1.05), chord=(0.14, 0.2), sweep=(0.3, 0.7),
        taper=(0.15, 0.4), wing_height=(-0.6, -0.4), wing_forward=(0.05, 0.22), dihedral=(0.03, 0.15),
    ),
    "jet fighter": _Kind(
        length=(0.75, 1), radius=(0.08, 0.12), nose=0.75, span=(0.48, 0.68), chord=(0.28, 0.4), sweep=(0.6, 1.05),
        taper=(-0.2, 0.1), wing_height=(-0.3, 0.3), wing_forward=(-0.2, 0), dihedral=(-0.08, 0.05),
    ),
    "high wing": _Kind(
        length=(0.62, 0.8), radius=(0.11, 0.15), nose=0.9, span=(0.8, 1.08), chord=(0.13, 0.18), sweep=(-0.03, 0.08),
        taper=(-0.08, 0.03), wing_height=(0.85, 1), wing_forward=(0.15, 0.32), dihedral=(0, 0.06),
    ),
    "biplane": _Kind(
        length=(0.55, 0.72), radius=(0.11, 0.16), nose=0.95, span=(0.65, 0.88), chord=(0.13, 0.18), sweep=(0, 0.12),
        taper=(-0.1, 0), wing_height=(-0.8, -0.6), wing_forward=(0.2, 0.35), dihedral=(0, 0.01),
    ),
    "T-tail cargo": _Kind(
        length=(0.75, 0.95), radius=(0.14, 0.2), nose=1, span=(0.85, 1.08), chord=(0.15, 0.21), sweep=(0.05, 0.35),
        taper=(0, 0.2), wing_height=(0.7, 0.9), wing_forward=(0.05, 0.22), dihedral=(-0.08, 0.02),
    ),
    "delta airliner": _Kind(
        length=(0.95, 1.1), radius=(0.07, 0.1), nose=0.8, span=(0.45, 0.6), chord=(0.5, 0.62), sweep=(1.1, 1.5),
        taper=(-0.1, 0.05), wing_height=(-0.5, -0.3), wing_forward=(-0.3, -0.2), dihedral=(0, 0.01),
    ),
    "twin boom": _Kind(
        length=(0.6, 0.75), radius=(0.11, 0.16), nose=0.9, span=(0.75, 1), chord=(0.13, 0.19), sweep=(-0.05, 0.2),
        taper=(-0.1, 0.05), wing_height=(-0.5, 0.8), wing_forward=(0.05, 0.2), dihedral=(0.02, 0.1),
    ),
}  # fmt: skip

KINDS = tuple(_KINDS)
"""Names of the kinds."""

# ours, all literals below: where parts join, as shares of length, radius and span, and their sizes; by eye
_DEGREES = 57.3  # of a radian, as the wings were first drawn


class _Plane(NamedTuple):
    """The measures of one airplane: see ``_Kind``; ``axis`` is the fuselage's height, ``wing_x, wing_z`` the wing's."""

    length: float
    radius: float
    span: float
    chord: float
    sweep: float
    taper: float
    axis: float
    wing_x: float
    wing_z: float


def airplane(kind: str, draw: ToyRandom) -> Shape:
    """One airplane of a kind in ``KINDS``."""
    shape = Shape(blend=0.04)
    plane = _measures(kind, draw)
    _add_fuselage(shape, kind, plane, draw)
    _add_wings(shape, kind, plane, draw)
    beside = _add_tail(shape, kind, plane, draw)
    if kind in ("airliner", "T-tail cargo", "delta airliner"):
        _add_engines(shape, kind, plane, draw)
    if kind in ("high wing", "biplane", "twin boom"):
        _add_propeller(shape, kind, plane, beside, draw)
    if kind == "jet fighter" and draw.chance(0.5):
        y, z = plane.span * 0.55, plane.wing_z - 0.07
        shape.capsule((-0.1, y, z), (0.3, y, z), 0.035, mirrored=True, blend=0.02)  # missiles
    _add_gear(shape, kind, plane)
    return shape


def _measures(kind: str, draw: ToyRandom) -> _Plane:
    ranges = _KINDS[kind]
    length, radius = draw(*ranges.length), draw(*ranges.radius)
    span, chord = draw(*ranges.span), draw(*ranges.chord)
    sweep, taper = draw(*ranges.sweep), draw(*ranges.taper)
    axis = radius + draw(0.13, 0.24)
    height, forward = draw(*ranges.wing_height), draw(*ranges.wing_forward) * length
    return _Plane(length, radius, span, chord, sweep, taper, axis, forward, axis + radius * height)


def _add_fuselage(shape: Shape, kind: str, plane: _Plane, draw: ToyRandom) -> None:
    length, radius, axis = plane.length, plane.radius, plane.axis
    shape.capsule((-length * 0.3, 0, axis), (length * 0.8, 0, axis), radius * 1.05, radius * _KINDS[kind].nose)
    tail = -length * 0.25 if kind == "twin boom" else -length
    shape.capsule((-length * 0.25, 0, axis), (tail, 0, axis + radius * draw(0.2, 0.6)), radius, radius * 0.35)
    if kind in ("jet fighter", "delta airliner"):  # a needle of a nose
        shape.capsule((length * 0.7, 0, axis), (length * 1.15, 0, axis - draw(0, 0.05)), radius * 0.75, 0.03)
    if kind in ("jet fighter", "high wing", "biplane", "twin boom"):
        canopy = (length * draw(0.1, 0.45), 0, axis + radius * 0.85)
        shape.ellipsoid(canopy, (draw(0.15, 0.25), radius * 0.65, radius * draw(0.6, 0.95)), blend=0.02)


def _add_wing(
    shape: Shape,
    centre: tuple[float, float],
    half: tuple[float, float, float],
    sweep: Number,
    taper: Number,
    dihedral: float = 0.0,
) -> None:
    """A pair of wings.

    Args:
        shape: gets the wings.
        centre: x and z of the wing's root.
        half: half the chord, the span of one wing, half the thickness.
        sweep: see ``_Kind``.
        taper: see ``_Kind``.
        dihedral: see ``_Kind``.
    """
    (x, z), (chord, span, thickness) = centre, half
    shape.box(
        (x, span / 2, z + dihedral * span / 2), (chord, span / 2, thickness),
        edge=0.018, mirrored=True, blend=0.03, turned=(0, 0, dihedral * _DEGREES) if dihedral else None,
        front=(0, sweep), back=(0, -taper),
    )  # fmt: skip


def _add_wings(shape: Shape, kind: str, plane: _Plane, draw: ToyRandom) -> None:
    """A pair of wings, or two of them with struts between."""
    x, z, span, chord = plane.wing_x, plane.wing_z, plane.span, plane.chord
    dihedral = draw(*_KINDS[kind].dihedral)
    _add_wing(shape, (x - plane.sweep * span * 0.25, z), (chord, span, 0.028), plane.sweep, plane.taper, dihedral)
    if kind == "biplane":
        above = z + draw(0.3, 0.44)
        _add_wing(shape, (x + 0.04, above), (chord, span * draw(0.85, 1.05), 0.028), plane.sweep, plane.taper)
        shape.capsule((x, span * 0.7, z), (x + 0.04, span * 0.7, above), 0.02, mirrored=True, blend=0.01)
        shape.capsule((x, 0.1, plane.axis), (x + 0.04, 0.12, above), 0.02, mirrored=True, blend=0.01)


def _add_tail(shape: Shape, kind: str, plane: _Plane, draw: ToyRandom) -> float:
    """One fin or two, a tailplane, and perhaps the booms that carry them; returns how far beside y = 0 the fin is."""
    height, x, z = draw(0.2, 0.36), -plane.length * 0.9, plane.axis + plane.radius * 0.4
    two = (kind == "jet fighter" and draw.chance(0.4)) or kind == "twin boom"
    y = 0.0 if not two else plane.radius * 1.2 if kind == "jet fighter" else plane.span * 0.38
    shape.box(
        (x - 0.02, y, z + height / 2), (draw(0.09, 0.16), 0.022, height / 2),
        edge=0.015, mirrored=two, blend=0.03, front=(draw(0.2, 0.8), 0), back=(draw(-0.5, 0.1), 0),
    )  # fmt: skip
    if kind == "twin boom":
        root = (plane.wing_x, y, plane.wing_z)
        shape.capsule(root, (x - 0.1, y, z), 0.06, 0.035, mirrored=True)
        shape.capsule(root, (plane.wing_x + 0.3, y, plane.wing_z), 0.07, 0.05, mirrored=True)
        _add_wing(shape, (x, z), (plane.chord * draw(0.5, 0.75), y, 0.022), 0, 0)
    elif kind != "delta airliner":
        z += height * 0.95 if kind == "T-tail cargo" else 0
        span = plane.span * draw(0.32, 0.44)
        chord = plane.chord * draw(0.5, 0.75)
        _add_wing(shape, (x, z), (chord, span, 0.022), min(plane.sweep, 0.6) * 0.7, plane.taper * 0.5)
    return y


def _add_engines(shape: Shape, kind: str, plane: _Plane, draw: ToyRandom) -> None:
    """One or two under each wing."""
    delta = kind == "delta airliner"
    one = (0.2,) if delta else (0.36,)
    for share in one if draw.chance(0.5) else (0.3, 0.58):
        x = plane.wing_x - plane.sweep * plane.span * (share - 0.1) + draw(-0.02, 0.06) - (0.2 if delta else 0)
        y, z = plane.span * share, plane.wing_z - 0.08
        shape.capsule((x + 0.1, y, z), (x + 0.32, y, z), draw(0.045, 0.075), mirrored=True, blend=0.02)


def _add_propeller(shape: Shape, kind: str, plane: _Plane, beside: float, draw: ToyRandom) -> None:
    """At the nose, or at the front of each boom; stopped at some angle."""
    two = kind == "twin boom"
    x, z = (plane.wing_x + 0.36, plane.wing_z) if two else (plane.length * 0.8 + plane.radius, plane.axis)
    y = beside if two else 0.0
    shape.ellipsoid((x, y, z), (0.09, 0.05, 0.05), mirrored=True)
    blades = (0.018, draw(0.18, 0.28), 0.035)
    shape.box((x + 0.02, y, z), blades, edge=0.015, mirrored=two, turned=(0, 0, draw(-60, 60)), blend=0.01)


def _add_gear(shape: Shape, kind: str, plane: _Plane) -> None:
    """Two wheels under the wing, one under the nose."""
    y, x, z = 0.17 if kind == "biplane" else 0.12, plane.wing_x, plane.axis - plane.radius * 0.6
    shape.capsule((x - 0.08, y, z), (x - 0.06, y * 1.3, 0.06), 0.025, mirrored=True, blend=0.02)
    shape.cylinder((x - 0.06, y * 1.4, 0.06), 0.06, 0.03, mirrored=True, blend=0.01)
    nose = plane.length * 0.6
    shape.capsule((nose, 0, plane.axis - plane.radius * 0.5), (plane.length * 0.62, 0, 0.05), 0.025, 0.05, blend=0.02)
