"""Four-legged animals: two ellipsoids for a body, legs in mid-step, and a distinctive head."""

from __future__ import annotations

from typing import NamedTuple

from toynorb.shapes import Number, Range, Shape, ToyRandom


class _Measures(NamedTuple):
    """Measures of the animals of one kind, in the toy's units unless stated otherwise; pairs are least and most.

    Attributes:
        length, width: of the body, halved.
        leg: from the table to the body.
        height: of the body, in half body widths.
        neck_forward, neck_up: from the body to the head.
        snout, snout_drop: length, and how far its end hangs.
        tail, tail_rise: length, and how far its end is above the root.
        leg_radius, head: radii.
        stance: position of the feet, in half body widths.
        horned: probability of horns.
    """

    length: Range
    leg: Range
    width: Range
    height: Range
    neck_forward: Range
    neck_up: Range
    snout: Range
    snout_drop: Range
    tail: Range
    tail_rise: Range
    leg_radius: Number
    stance: Number
    head: Number
    horned: Number


# ours: by eye, so that outlines distinguish the kinds; a name includes animals of similar build: a horse cows, a dog
# cats, a giraffe camels, a pig rhinos, a crocodile dachshunds, a sheep lions
_MEASURES = {
    "horse": _Measures(
        length=(0.5, 0.64),
        leg=(0.46, 0.7),
        width=(0.15, 0.22),
        height=(1.05, 1.3),
        neck_forward=(0.26, 0.42),
        neck_up=(0.28, 0.5),
        snout=(0.14, 0.24),
        snout_drop=(0.02, 0.16),
        tail=(0.1, 0.25),
        tail_rise=(-0.35, 0.1),
        leg_radius=0.05,
        stance=0.65,
        head=0.11,
        horned=0.5,
    ),
    "elephant": _Measures(
        length=(0.52, 0.66),
        leg=(0.36, 0.52),
        width=(0.26, 0.38),
        height=(0.95, 1.15),
        neck_forward=(0.08, 0.16),
        neck_up=(0.02, 0.18),
        snout=(0.05, 0.12),
        snout_drop=(0, 0.05),
        tail=(0.06, 0.12),
        tail_rise=(-0.35, -0.2),
        leg_radius=0.11,
        stance=0.65,
        head=0.22,
        horned=0,
    ),
    "dog": _Measures(
        length=(0.4, 0.54),
        leg=(0.26, 0.44),
        width=(0.11, 0.18),
        height=(1, 1.25),
        neck_forward=(0.14, 0.28),
        neck_up=(0.1, 0.3),
        snout=(0.08, 0.2),
        snout_drop=(-0.02, 0.05),
        tail=(0.15, 0.32),
        tail_rise=(-0.15, 0.4),
        leg_radius=0.045,
        stance=0.65,
        head=0.12,
        horned=0,
    ),
    "giraffe": _Measures(
        length=(0.38, 0.52),
        leg=(0.66, 0.9),
        width=(0.15, 0.21),
        height=(1.1, 1.4),
        neck_forward=(0.22, 0.48),
        neck_up=(0.5, 0.85),
        snout=(0.12, 0.22),
        snout_drop=(0.02, 0.1),
        tail=(0.05, 0.14),
        tail_rise=(-0.3, -0.1),
        leg_radius=0.045,
        stance=0.65,
        head=0.1,
        horned=0.5,
    ),
    "pig": _Measures(
        length=(0.4, 0.56),
        leg=(0.18, 0.32),
        width=(0.2, 0.32),
        height=(0.9, 1.15),
        neck_forward=(0.12, 0.2),
        neck_up=(0, 0.1),
        snout=(0.1, 0.2),
        snout_drop=(0, 0.06),
        tail=(0.03, 0.1),
        tail_rise=(-0.1, 0.12),
        leg_radius=0.065,
        stance=0.65,
        head=0.16,
        horned=0.3,
    ),
    "crocodile": _Measures(
        length=(0.62, 0.8),
        leg=(0.15, 0.24),
        width=(0.15, 0.22),
        height=(0.6, 0.9),
        neck_forward=(0.2, 0.3),
        neck_up=(-0.02, 0.06),
        snout=(0.22, 0.42),
        snout_drop=(-0.03, 0),
        tail=(0.4, 0.7),
        tail_rise=(-0.12, 0.02),
        leg_radius=0.05,
        stance=1.2,
        head=0.1,
        horned=0,
    ),
    "sheep": _Measures(
        length=(0.36, 0.46),
        leg=(0.24, 0.36),
        width=(0.22, 0.3),
        height=(0.95, 1.1),
        neck_forward=(0.1, 0.2),
        neck_up=(0.08, 0.2),
        snout=(0.06, 0.14),
        snout_drop=(0.03, 0.09),
        tail=(0.05, 0.2),
        tail_rise=(-0.2, 0.05),
        leg_radius=0.045,
        stance=0.65,
        head=0.14,
        horned=0.3,
    ),
}

KINDS = tuple(_MEASURES)
"""Names of the kinds."""


class _Body(NamedTuple):
    """Half the length, width and height of the body, and the height of its centre."""

    length: float
    width: float
    height: float
    middle: float


class _Head(NamedTuple):
    """Position and radius of the head, length and hang of the snout, and a factor for the ears."""

    x: float
    z: float
    radius: float
    snout: float
    drop: float
    ears: float


# ours, all literals below: where parts join, as shares of body and head, and how thick they are; by eye


def animal(kind: str, draw: ToyRandom) -> Shape:
    """Build an animal of a kind in ``KINDS``."""
    shape = Shape(blend=0.07)  # flesh: joints are round
    measures = _MEASURES[kind]
    body = _add_body_and_legs(shape, kind, measures, draw)
    head = _add_neck_and_head(shape, kind, measures, body, draw)
    if kind == "elephant":
        _add_trunk_ears_and_tusks(shape, head, draw)
    elif kind != "crocodile":
        _add_ears_and_horns(shape, head, measures.horned, draw)
    _add_ornaments(shape, kind, body, head, draw)
    _add_tail(shape, kind, measures, body, draw)
    return shape


def _add_body_and_legs(shape: Shape, kind: str, measures: _Measures, draw: ToyRandom) -> _Body:
    length = draw(*measures.length)
    leg = draw(*measures.leg)
    width = draw(*measures.width)
    height = width * draw(*measures.height)
    middle = leg + height * 0.75
    thick = measures.leg_radius * draw(0.85, 1.3)
    shape.ellipsoid((0, 0, middle), (length, width, height))
    shoulders = (length * 0.5, 0, middle + draw(-0.02, 0.05))
    shape.ellipsoid(shoulders, (length * 0.45, width * draw(0.85, 1.08), height * draw(0.95, 1.15)))
    for end in (1, -1):  # the legs of a pair are shifted by opposite amounts
        stride = draw(-0.15, 0.15) * (0.4 if kind == "crocodile" else 1)
        for side, ahead in ((1, stride), (-1, -stride)):
            hip = (end * length * 0.66, side * width * 0.6, middle - height * 0.2)
            foot = (end * length * 0.72 + ahead, side * width * (measures.stance + 0.08), 0.045)
            shape.capsule(hip, foot, thick * 1.35, thick * 0.85)
    return _Body(length, width, height, middle)


def _add_neck_and_head(
    shape: Shape, kind: str, measures: _Measures, body: _Body, draw: ToyRandom
) -> _Head:
    grazes = kind in ("horse", "pig", "sheep") and draw.chance(0.35)
    forward = draw(*measures.neck_forward)
    up = draw(*measures.neck_up) * (-0.6 if grazes else 1)
    x = body.length * 0.82 + forward
    z = body.middle + up
    radius = measures.head * draw(0.85, 1.2)
    neck = (body.length * 0.68, 0, body.middle + body.height * 0.2)
    shape.capsule(neck, (x, 0, z), body.height * draw(0.55, 0.8), radius * 0.85)
    shape.ellipsoid((x + radius * 0.3, 0, z), (radius * 1.25, radius * 0.85, radius))
    snout = draw(*measures.snout)
    drop = draw(*measures.snout_drop)
    ears = draw(0.7, 1.6)
    mouth = x + radius * 0.6
    tip = (mouth + snout, 0, z - radius * 0.45 - drop)
    shape.capsule((mouth, 0, z - radius * 0.2), tip, radius * 0.62, radius * draw(0.35, 0.5))
    return _Head(x, z, radius, snout, drop, ears)


def _add_trunk_ears_and_tusks(shape: Shape, head: _Head, draw: ToyRandom) -> None:
    x, z, radius, ears = head.x, head.z, head.radius, head.ears
    low = z - draw(0.3, 0.5)
    bend = (x + radius * 1.5, 0, low)
    end = (x + radius * 2 + draw(0, 0.15), 0, low + draw(-0.1, 0.2))
    shape.capsule((x + radius, 0, z - 0.08), bend, 0.085, 0.055)
    shape.capsule(bend, end, 0.055, 0.04)
    ear = (x - 0.06, radius * 0.9, z + 0.02)
    radii = (0.04 + 0.05 * ears, 0.15 * ears, 0.18 * ears)
    shape.ellipsoid(ear, radii, mirrored=True, turned=(35, 0, 0), blend=0.03)
    root = (x + radius * 0.9, radius * 0.5, z - 0.12)
    tip = (x + radius * 1.8, radius * 0.55, z - 0.2)
    shape.capsule(root, tip, 0.035, 0.015, mirrored=True, blend=0.02)


def _add_ears_and_horns(shape: Shape, head: _Head, horned: Number, draw: ToyRandom) -> None:
    x, z, radius, ears = head.x, head.z, head.radius, head.ears
    root = (x, radius * 0.55, z + radius * 0.6)
    tip = (x - 0.03, radius * (0.6 + 0.5 * ears), z + radius * (0.7 + 0.55 * ears))
    shape.capsule(root, tip, 0.04, draw(0.015, 0.045), mirrored=True, blend=0.02)
    if draw.chance(horned):
        root = (x + 0.03, radius * 0.4, z + radius * 0.8)
        tip = (x - draw(-0.05, 0.15), radius * draw(0.8, 2.4), z + radius * draw(1.4, 2.6))
        shape.capsule(root, tip, 0.03, 0.015, mirrored=True, blend=0.02)


def _add_ornaments(shape: Shape, kind: str, body: _Body, head: _Head, draw: ToyRandom) -> None:
    """Add a rhino's horn, a mane, a hump or a saddle to some animals."""
    x, z, radius = head.x, head.z, head.radius
    back = body.middle + body.height
    if kind == "pig" and draw.chance(0.5):
        root = (x + radius + head.snout * 0.5, 0, z - head.drop)
        tip = (x + radius + head.snout * 0.7, 0, z + radius * draw(0.8, 1.3))
        shape.capsule(root, tip, 0.04, 0.012, blend=0.02)
    if kind in ("horse", "sheep") and draw.chance(0.7):
        thick, end = (0.05, 0.04) if kind == "horse" else (radius * draw(0.7, 1.1), radius)
        shape.capsule((body.length * 0.55, 0, back), (x - 0.06, 0, z + radius * 0.9), thick, end)
    if kind in ("giraffe", "elephant") and draw.chance(0.4):
        shape.ellipsoid((-0.05, 0, back), (0.18, 0.12, draw(0.1, 0.2)))


def _add_tail(shape: Shape, kind: str, measures: _Measures, body: _Body, draw: ToyRandom) -> None:
    length = draw(*measures.tail)
    rise = draw(*measures.tail_rise)
    height = body.middle + body.height * 0.25
    root = (-body.length * 0.9, 0, height)
    tip = (-body.length * 0.95 - length, 0, max(height + rise, 0.04))
    thick = body.height * 0.5 if kind == "crocodile" else 0.045
    shape.capsule(root, tip, thick, draw(0.015, 0.05))
