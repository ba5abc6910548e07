"""Airplanes: a fuselage, swept and tapered wings, a tail, and engines or propellers."""

from __future__ import annotations

from typing import NamedTuple

from toynorb.shapes import Number, Range, Shape, ToyRandom


class _Measures(NamedTuple):
    """Measures of the airplanes of one kind, in the toy's units unless stated otherwise; pairs are least and most.

    Attributes:
        length: of the fuselage, halved.
        radius: of the fuselage.
        span: length of one wing.
        chord: depth of the wing, halved.
        sweep: how much the leading edge recedes per unit outwards.
        taper: how much the trailing edge recedes per unit outwards.
        wing_height: above the axis of the fuselage, in its radii.
        wing_forward: in half lengths.
        dihedral: how much the wing rises per unit outwards.
        nose: radius of the front, in radii of the fuselage.
    """

    length: Range
    radius: Range
    span: Range
    chord: Range
    sweep: Range
    taper: Range
    wing_height: Range
    wing_forward: Range
    dihedral: Range
    nose: Number


# ours: by eye, so that outlines distinguish the kinds
_MEASURES = {
    "airliner": _Measures(
        length=(0.85, 1.05),
        radius=(0.09, 0.15),
        span=(0.75, 1.05),
        chord=(0.14, 0.2),
        sweep=(0.3, 0.7),
        taper=(0.15, 0.4),
        wing_height=(-0.6, -0.4),
        wing_forward=(0.05, 0.22),
        dihedral=(0.03, 0.15),
        nose=1,
    ),
    "jet fighter": _Measures(
        length=(0.75, 1),
        radius=(0.08, 0.12),
        span=(0.48, 0.68),
        chord=(0.28, 0.4),
        sweep=(0.6, 1.05),
        taper=(-0.2, 0.1),
        wing_height=(-0.3, 0.3),
        wing_forward=(-0.2, 0),
        dihedral=(-0.08, 0.05),
        nose=0.75,
    ),
    "high wing": _Measures(
        length=(0.62, 0.8),
        radius=(0.11, 0.15),
        span=(0.8, 1.08),
        chord=(0.13, 0.18),
        sweep=(-0.03, 0.08),
        taper=(-0.08, 0.03),
        wing_height=(0.85, 1),
        wing_forward=(0.15, 0.32),
        dihedral=(0, 0.06),
        nose=0.9,
    ),
    "biplane": _Measures(
        length=(0.55, 0.72),
        radius=(0.11, 0.16),
        span=(0.65, 0.88),
        chord=(0.13, 0.18),
        sweep=(0, 0.12),
        taper=(-0.1, 0),
        wing_height=(-0.8, -0.6),
        wing_forward=(0.2, 0.35),
        dihedral=(0, 0.01),
        nose=0.95,
    ),
    "T-tail cargo": _Measures(
        length=(0.75, 0.95),
        radius=(0.14, 0.2),
        span=(0.85, 1.08),
        chord=(0.15, 0.21),
        sweep=(0.05, 0.35),
        taper=(0, 0.2),
        wing_height=(0.7, 0.9),
        wing_forward=(0.05, 0.22),
        dihedral=(-0.08, 0.02),
        nose=1,
    ),
    "delta airliner": _Measures(
        length=(0.95, 1.1),
        radius=(0.07, 0.1),
        span=(0.45, 0.6),
        chord=(0.5, 0.62),
        sweep=(1.1, 1.5),
        taper=(-0.1, 0.05),
        wing_height=(-0.5, -0.3),
        wing_forward=(-0.3, -0.2),
        dihedral=(0, 0.01),
        nose=0.8,
    ),
    "twin boom": _Measures(
        length=(0.6, 0.75),
        radius=(0.11, 0.16),
        span=(0.75, 1),
        chord=(0.13, 0.19),
        sweep=(-0.05, 0.2),
        taper=(-0.1, 0.05),
        wing_height=(-0.5, 0.8),
        wing_forward=(0.05, 0.2),
        dihedral=(0.02, 0.1),
        nose=0.9,
    ),
}

KINDS = tuple(_MEASURES)
"""Names of the kinds."""

# ours, all literals below: where parts join, as shares of length, radius and span, and their sizes; by eye
_DEGREES = 57.3  # degrees per radian, rounded as in the first version


class _Plane(NamedTuple):
    """Measures of one airplane, see ``_Measures``.

    Attributes:
        axis: height of the fuselage's axis.
        wing_x, wing_z: position of the wing.
    """

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
    """Build an airplane of a kind in ``KINDS``."""
    shape = Shape(blend=0.04)
    plane = _measured(kind, draw)
    _add_fuselage(shape, kind, plane, draw)
    _add_wings(shape, kind, plane, draw)
    beside = _add_tail(shape, kind, plane, draw)
    if kind in ("airliner", "T-tail cargo", "delta airliner"):
        _add_engines(shape, kind, plane, draw)
    elif kind != "jet fighter":
        _add_propellers(shape, kind, plane, beside, draw)
    elif draw.chance(0.5):
        y, z = plane.span * 0.55, plane.wing_z - 0.07
        missile = (-0.1, y, z), (0.3, y, z)
        shape.capsule(*missile, 0.035, mirrored=True, blend=0.02)
    _add_gear(shape, kind, plane)
    return shape


def _measured(kind: str, draw: ToyRandom) -> _Plane:
    measures = _MEASURES[kind]
    length = draw(*measures.length)
    radius = draw(*measures.radius)
    span = draw(*measures.span)
    chord = draw(*measures.chord)
    sweep = draw(*measures.sweep)
    taper = draw(*measures.taper)
    axis = radius + draw(0.13, 0.24)
    wing_z = axis + radius * draw(*measures.wing_height)
    wing_x = draw(*measures.wing_forward) * length
    return _Plane(length, radius, span, chord, sweep, taper, axis, wing_x, wing_z)


def _add_fuselage(shape: Shape, kind: str, plane: _Plane, draw: ToyRandom) -> None:
    length, radius, axis = plane.length, plane.radius, plane.axis
    front = (length * 0.8, 0, axis)
    shape.capsule((-length * 0.3, 0, axis), front, radius * 1.05, radius * _MEASURES[kind].nose)
    end = -length * 0.25 if kind == "twin boom" else -length
    tail = (end, 0, axis + radius * draw(0.2, 0.6))
    shape.capsule((-length * 0.25, 0, axis), tail, radius, radius * 0.35)
    if kind in ("jet fighter", "delta airliner"):  # a pointed nose
        tip = (length * 1.15, 0, axis - draw(0, 0.05))
        shape.capsule((length * 0.7, 0, axis), tip, radius * 0.75, 0.03)
    if kind in ("jet fighter", "high wing", "biplane", "twin boom"):
        canopy = (length * draw(0.1, 0.45), 0, axis + radius * 0.85)
        radii = (draw(0.15, 0.25), radius * 0.65, radius * draw(0.6, 0.95))
        shape.ellipsoid(canopy, radii, blend=0.02)


def _add_wings(shape: Shape, kind: str, plane: _Plane, draw: ToyRandom) -> None:
    """Add a pair of wings; a biplane has another pair above it, and struts between the two."""
    x, z, span, sweep, taper = plane.wing_x, plane.wing_z, plane.span, plane.sweep, plane.taper
    dihedral = draw(*_MEASURES[kind].dihedral)
    half = (plane.chord, span, 0.028)
    _add_wing(shape, (x - sweep * span * 0.25, z), half, sweep, taper, dihedral)
    if kind == "biplane":
        above = z + draw(0.3, 0.44)
        half = (plane.chord, span * draw(0.85, 1.05), 0.028)
        _add_wing(shape, (x + 0.04, above), half, sweep, taper)
        outer = (x, span * 0.7, z), (x + 0.04, span * 0.7, above)
        inner = (x, 0.1, plane.axis), (x + 0.04, 0.12, above)
        shape.capsule(*outer, 0.02, mirrored=True, blend=0.01)
        shape.capsule(*inner, 0.02, mirrored=True, blend=0.01)


def _add_wing(
    shape: Shape,
    root: tuple[float, float],
    half: tuple[float, float, float],
    sweep: Number,
    taper: Number,
    dihedral: float = 0.0,
) -> None:
    """Add wings at x and z of ``root``; ``half`` is half the chord, the span of one wing, and half the thickness."""
    x, z = root
    chord, span, thickness = half
    shape.box(
        (x, span / 2, z + dihedral * span / 2),
        (chord, span / 2, thickness),
        edge=0.018,
        mirrored=True,
        blend=0.03,
        turned=(0, 0, dihedral * _DEGREES) if dihedral else None,
        front=(0, sweep),
        back=(0, -taper),
    )


def _add_tail(shape: Shape, kind: str, plane: _Plane, draw: ToyRandom) -> float:
    """Add one or two fins, a tailplane, and booms for a twin boom; return the distance of the fin from y = 0."""
    height = draw(0.2, 0.36)
    x = -plane.length * 0.9
    z = plane.axis + plane.radius * 0.4
    y = 0.0
    if kind == "twin boom":
        y = plane.span * 0.38
    elif kind == "jet fighter" and draw.chance(0.4):
        y = plane.radius * 1.2
    shape.box(
        (x - 0.02, y, z + height / 2),
        (draw(0.09, 0.16), 0.022, height / 2),
        edge=0.015,
        mirrored=y > 0,
        blend=0.03,
        front=(draw(0.2, 0.8), 0),
        back=(draw(-0.5, 0.1), 0),
    )
    if kind == "twin boom":
        root = (plane.wing_x, y, plane.wing_z)
        shape.capsule(root, (x - 0.1, y, z), 0.06, 0.035, mirrored=True)
        shape.capsule(root, (plane.wing_x + 0.3, y, plane.wing_z), 0.07, 0.05, mirrored=True)
        _add_wing(shape, (x, z), (plane.chord * draw(0.5, 0.75), y, 0.022), 0, 0)
    elif kind != "delta airliner":
        if kind == "T-tail cargo":
            z += height * 0.95
        span = plane.span * draw(0.32, 0.44)
        chord = plane.chord * draw(0.5, 0.75)
        sweep = min(plane.sweep, 0.6) * 0.7
        _add_wing(shape, (x, z), (chord, span, 0.022), sweep, plane.taper * 0.5)
    return y


def _add_engines(shape: Shape, kind: str, plane: _Plane, draw: ToyRandom) -> None:
    """Add one or two engines under each wing."""
    is_delta = kind == "delta airliner"
    shares: tuple[float, ...] = (0.3, 0.58)  # of the span
    if draw.chance(0.5):
        shares = (0.2,) if is_delta else (0.36,)
    for share in shares:
        x = plane.wing_x - plane.sweep * plane.span * (share - 0.1) + draw(-0.02, 0.06)
        if is_delta:
            x -= 0.2
        y = plane.span * share
        z = plane.wing_z - 0.08
        engine = (x + 0.1, y, z), (x + 0.32, y, z)
        shape.capsule(*engine, draw(0.045, 0.075), mirrored=True, blend=0.02)


def _add_propellers(shape: Shape, kind: str, plane: _Plane, beside: float, draw: ToyRandom) -> None:
    """Add a propeller at the nose, or one at each boom, at a random angle."""
    has_booms = kind == "twin boom"
    if has_booms:
        x, y, z = plane.wing_x + 0.36, beside, plane.wing_z
    else:
        x, y, z = plane.length * 0.8 + plane.radius, 0.0, plane.axis
    shape.ellipsoid((x, y, z), (0.09, 0.05, 0.05), mirrored=True)
    shape.box(
        (x + 0.02, y, z),
        (0.018, draw(0.18, 0.28), 0.035),
        edge=0.015,
        mirrored=has_booms,
        turned=(0, 0, draw(-60, 60)),
        blend=0.01,
    )


def _add_gear(shape: Shape, kind: str, plane: _Plane) -> None:
    """Add a leg with a wheel on each side, and a leg under the nose."""
    x = plane.wing_x
    y = 0.17 if kind == "biplane" else 0.12
    leg = (x - 0.08, y, plane.axis - plane.radius * 0.6), (x - 0.06, y * 1.3, 0.06)
    nose = (plane.length * 0.6, 0, plane.axis - plane.radius * 0.5), (plane.length * 0.62, 0, 0.05)
    shape.capsule(*leg, 0.025, mirrored=True, blend=0.02)
    shape.cylinder((x - 0.06, y * 1.4, 0.06), 0.06, 0.03, mirrored=True, blend=0.01)
    shape.capsule(*nose, 0.025, 0.05, blend=0.02)
