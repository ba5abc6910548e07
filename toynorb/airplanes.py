"""Airplanes: a fuselage, swept and tapered wings, a tail, and engines or propellers."""

from __future__ import annotations

from collections import namedtuple

from toynorb.shapes import Number, Shape, ToyRandom

KINDS = (
    "airliner",
    "jet fighter",
    "high wing",
    "biplane",
    "T-tail cargo",
    "delta airliner",
    "twin boom",
)
"""Names of the kinds."""

# ours: least and most of each kind, by eye, so that outlines distinguish the kinds. length is half the fuselage, chord
# half the wing's depth, span the length of one wing. Per unit outwards, the leading edge recedes by sweep, the trailing
# edge advances by -taper, and the wing rises by dihedral; wing_height is in radii above the fuselage's axis,
# wing_forward in half lengths
_RANGES = {
    "length": (
        (0.85, 1.05),
        (0.75, 1),
        (0.62, 0.8),
        (0.55, 0.72),
        (0.75, 0.95),
        (0.95, 1.1),
        (0.6, 0.75),
    ),
    "radius": (
        (0.09, 0.15),
        (0.08, 0.12),
        (0.11, 0.15),
        (0.11, 0.16),
        (0.14, 0.2),
        (0.07, 0.1),
        (0.11, 0.16),
    ),
    "span": (
        (0.75, 1.05),
        (0.48, 0.68),
        (0.8, 1.08),
        (0.65, 0.88),
        (0.85, 1.08),
        (0.45, 0.6),
        (0.75, 1),
    ),
    "chord": (
        (0.14, 0.2),
        (0.28, 0.4),
        (0.13, 0.18),
        (0.13, 0.18),
        (0.15, 0.21),
        (0.5, 0.62),
        (0.13, 0.19),
    ),
    "sweep": (
        (0.3, 0.7),
        (0.6, 1.05),
        (-0.03, 0.08),
        (0, 0.12),
        (0.05, 0.35),
        (1.1, 1.5),
        (-0.05, 0.2),
    ),
    "taper": (
        (0.15, 0.4),
        (-0.2, 0.1),
        (-0.08, 0.03),
        (-0.1, 0),
        (0, 0.2),
        (-0.1, 0.05),
        (-0.1, 0.05),
    ),
    "wing_height": (
        (-0.6, -0.4),
        (-0.3, 0.3),
        (0.85, 1),
        (-0.8, -0.6),
        (0.7, 0.9),
        (-0.5, -0.3),
        (-0.5, 0.8),
    ),
    "wing_forward": (
        (0.05, 0.22),
        (-0.2, 0),
        (0.15, 0.32),
        (0.2, 0.35),
        (0.05, 0.22),
        (-0.3, -0.2),
        (0.05, 0.2),
    ),
    "dihedral": (
        (0.03, 0.15),
        (-0.08, 0.05),
        (0, 0.06),
        (0, 0.01),
        (-0.08, 0.02),
        (0, 0.01),
        (0.02, 0.1),
    ),
}
_NOSES = (
    1,
    0.75,
    0.9,
    0.95,
    1,
    0.8,
    0.9,
)  # ours: radius of the front in radii of the fuselage, for each kind

# ours, all literals below: where parts join, as shares of length, radius and span, and their sizes; by eye
_DEGREES = 57.3  # degrees per radian, rounded as in the first version

_Plane = namedtuple("_Plane", "length radius span chord sweep taper axis wing_x wing_z")
"""Measures of an airplane: see ``_RANGES``; ``axis`` is the fuselage's height, ``wing_x, wing_z`` the wing's place."""


def airplane(kind: str, draw: ToyRandom) -> Shape:
    """Build an airplane of a kind in ``KINDS``."""
    shape = Shape(blend=0.04)
    ranges = {name: row[KINDS.index(kind)] for name, row in _RANGES.items()}
    names = ("length", "radius", "span", "chord", "sweep", "taper")
    length, radius, span, chord, sweep, taper = (draw(*ranges[name]) for name in names)
    axis = radius + draw(0.13, 0.24)
    height, x = draw(*ranges["wing_height"]), draw(*ranges["wing_forward"]) * length
    z = axis + radius * height
    plane = _Plane(length, radius, span, chord, sweep, taper, axis, x, z)
    _add_fuselage(shape, kind, plane, draw)
    dihedral = draw(*ranges["dihedral"])
    _add_wing(shape, (x - sweep * span * 0.25, z), (chord, span, 0.028), sweep, taper, dihedral)
    if kind == "biplane":  # another pair of wings, and struts between
        above = z + draw(0.3, 0.44)
        _add_wing(shape, (x + 0.04, above), (chord, span * draw(0.85, 1.05), 0.028), sweep, taper)
        shape.capsule(
            (x, span * 0.7, z), (x + 0.04, span * 0.7, above), 0.02, mirrored=True, blend=0.01
        )
        shape.capsule((x, 0.1, axis), (x + 0.04, 0.12, above), 0.02, mirrored=True, blend=0.01)
    beside = _add_tail(shape, kind, plane, draw)
    _add_drive(shape, kind, plane, beside, draw)
    if kind == "jet fighter" and draw.chance(0.5):
        y = span * 0.55
        shape.capsule(
            (-0.1, y, z - 0.07), (0.3, y, z - 0.07), 0.035, mirrored=True, blend=0.02
        )  # missiles
    y, leg = 0.17 if kind == "biplane" else 0.12, axis - radius * 0.6  # the gear
    shape.capsule((x - 0.08, y, leg), (x - 0.06, y * 1.3, 0.06), 0.025, mirrored=True, blend=0.02)
    shape.cylinder((x - 0.06, y * 1.4, 0.06), 0.06, 0.03, mirrored=True, blend=0.01)
    shape.capsule(
        (length * 0.6, 0, axis - radius * 0.5), (length * 0.62, 0, 0.05), 0.025, 0.05, blend=0.02
    )
    return shape


def _add_fuselage(shape: Shape, kind: str, plane: _Plane, draw: ToyRandom) -> None:
    length, radius, axis, nose = plane.length, plane.radius, plane.axis, _NOSES[KINDS.index(kind)]
    shape.capsule((-length * 0.3, 0, axis), (length * 0.8, 0, axis), radius * 1.05, radius * nose)
    tail = -length * 0.25 if kind == "twin boom" else -length
    shape.capsule(
        (-length * 0.25, 0, axis), (tail, 0, axis + radius * draw(0.2, 0.6)), radius, radius * 0.35
    )
    if kind in ("jet fighter", "delta airliner"):  # a pointed nose
        shape.capsule(
            (length * 0.7, 0, axis), (length * 1.15, 0, axis - draw(0, 0.05)), radius * 0.75, 0.03
        )
    if kind in ("jet fighter", "high wing", "biplane", "twin boom"):
        canopy = (length * draw(0.1, 0.45), 0, axis + radius * 0.85)
        shape.ellipsoid(
            canopy, (draw(0.15, 0.25), radius * 0.65, radius * draw(0.6, 0.95)), blend=0.02
        )


def _add_wing(
    shape: Shape,
    root: tuple[float, float],
    half: tuple[float, float, float],
    sweep: Number,
    taper: Number,
    dihedral: float = 0.0,
) -> None:
    """Add wings at x and z of ``root``; ``half`` is half the chord, the span of one wing, and half the thickness."""
    (x, z), (chord, span, thickness) = root, half
    shape.box(
        (x, span / 2, z + dihedral * span / 2), (chord, span / 2, thickness),
        edge=0.018, mirrored=True, blend=0.03, turned=(0, 0, dihedral * _DEGREES) if dihedral else None,
        front=(0, sweep), back=(0, -taper),
    )  # fmt: skip


def _add_tail(shape: Shape, kind: str, plane: _Plane, draw: ToyRandom) -> float:
    """Add one or two fins, a tailplane, and booms for a twin boom; return the distance of the fin from y = 0."""
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
        span, chord = plane.span * draw(0.32, 0.44), plane.chord * draw(0.5, 0.75)
        _add_wing(
            shape, (x, z), (chord, span, 0.022), min(plane.sweep, 0.6) * 0.7, plane.taper * 0.5
        )
    return y


def _add_drive(shape: Shape, kind: str, plane: _Plane, beside: float, draw: ToyRandom) -> None:
    """Add one or two engines under each wing, or propellers at a random angle, at the nose or the booms."""
    delta, two = kind == "delta airliner", kind == "twin boom"
    if kind in ("airliner", "T-tail cargo", "delta airliner"):
        for share in ((0.2,) if delta else (0.36,)) if draw.chance(0.5) else (0.3, 0.58):
            x = (
                plane.wing_x
                - plane.sweep * plane.span * (share - 0.1)
                + draw(-0.02, 0.06)
                - (0.2 if delta else 0)
            )
            y, z = plane.span * share, plane.wing_z - 0.08
            shape.capsule(
                (x + 0.1, y, z), (x + 0.32, y, z), draw(0.045, 0.075), mirrored=True, blend=0.02
            )
    elif kind != "jet fighter":
        x, z = (
            (plane.wing_x + 0.36, plane.wing_z)
            if two
            else (plane.length * 0.8 + plane.radius, plane.axis)
        )
        y = beside if two else 0.0
        shape.ellipsoid((x, y, z), (0.09, 0.05, 0.05), mirrored=True)
        blades = (0.018, draw(0.18, 0.28), 0.035)
        shape.box(
            (x + 0.02, y, z),
            blades,
            edge=0.015,
            mirrored=two,
            turned=(0, 0, draw(-60, 60)),
            blend=0.01,
        )
