"""Four-legged animals: two ellipsoids for a body, legs in mid-step, and a head that tells them apart."""

from __future__ import annotations

from typing import NamedTuple

from capsule_lab.data.standins.toynorb.rng import Range, ToyRandom
from capsule_lab.data.standins.toynorb.shapes import Number, Shape


class _Kind(NamedTuple):
    """What an animal of one kind measures; pairs are the least and the most.

    ``height`` is in half body widths, ``stance`` is where the feet stand in half body widths, ``horned`` is the
    share that has horns; all else is in the toy's units. Lengths, widths and heights of bodies are halved.
    """

    length: Range
    leg: Range
    width: Range
    height: Range
    leg_radius: Number
    stance: Number
    neck_forward: Range
    neck_up: Range
    head: Number
    snout: Range
    snout_drop: Range
    horned: Number
    tail: Range
    tail_rise: Range


# ours: by eye, so that outlines distinguish the kinds; a name stands for all animals so built (a horse for cows,
# a dog for cats, a giraffe for camels, a pig for rhinos, a crocodile for dachshunds, a sheep for lions)
_KINDS = {
    "horse": _Kind(
        length=(0.5, 0.64), leg=(0.46, 0.7), width=(0.15, 0.22), height=(1.05, 1.3), leg_radius=0.05, stance=0.65,
        neck_forward=(0.26, 0.42), neck_up=(0.28, 0.5), head=0.11, snout=(0.14, 0.24), snout_drop=(0.02, 0.16),
        horned=0.5, tail=(0.1, 0.25), tail_rise=(-0.35, 0.1),
    ),
    "elephant": _Kind(
        length=(0.52, 0.66), leg=(0.36, 0.52), width=(0.26, 0.38), height=(0.95, 1.15), leg_radius=0.11, stance=0.65,
        neck_forward=(0.08, 0.16), neck_up=(0.02, 0.18), head=0.22, snout=(0.05, 0.12), snout_drop=(0, 0.05),
        horned=0, tail=(0.06, 0.12), tail_rise=(-0.35, -0.2),
    ),
    "dog": _Kind(
        length=(0.4, 0.54), leg=(0.26, 0.44), width=(0.11, 0.18), height=(1, 1.25), leg_radius=0.045, stance=0.65,
        neck_forward=(0.14, 0.28), neck_up=(0.1, 0.3), head=0.12, snout=(0.08, 0.2), snout_drop=(-0.02, 0.05),
        horned=0, tail=(0.15, 0.32), tail_rise=(-0.15, 0.4),
    ),
    "giraffe": _Kind(
        length=(0.38, 0.52), leg=(0.66, 0.9), width=(0.15, 0.21), height=(1.1, 1.4), leg_radius=0.045, stance=0.65,
        neck_forward=(0.22, 0.48), neck_up=(0.5, 0.85), head=0.1, snout=(0.12, 0.22), snout_drop=(0.02, 0.1),
        horned=0.5, tail=(0.05, 0.14), tail_rise=(-0.3, -0.1),
    ),
    "pig": _Kind(
        length=(0.4, 0.56), leg=(0.18, 0.32), width=(0.2, 0.32), height=(0.9, 1.15), leg_radius=0.065, stance=0.65,
        neck_forward=(0.12, 0.2), neck_up=(0, 0.1), head=0.16, snout=(0.1, 0.2), snout_drop=(0, 0.06),
        horned=0.3, tail=(0.03, 0.1), tail_rise=(-0.1, 0.12),
    ),
    "crocodile": _Kind(
        length=(0.62, 0.8), leg=(0.15, 0.24), width=(0.15, 0.22), height=(0.6, 0.9), leg_radius=0.05, stance=1.2,
        neck_forward=(0.2, 0.3), neck_up=(-0.02, 0.06), head=0.1, snout=(0.22, 0.42), snout_drop=(-0.03, 0),
        horned=0, tail=(0.4, 0.7), tail_rise=(-0.12, 0.02),
    ),
    "sheep": _Kind(
        length=(0.36, 0.46), leg=(0.24, 0.36), width=(0.22, 0.3), height=(0.95, 1.1), leg_radius=0.045, stance=0.65,
        neck_forward=(0.1, 0.2), neck_up=(0.08, 0.2), head=0.14, snout=(0.06, 0.14), snout_drop=(0.03, 0.09),
        horned=0.3, tail=(0.05, 0.2), tail_rise=(-0.2, 0.05),
    ),
}  # fmt: skip

KINDS = tuple(_KINDS)
"""Names of the kinds."""


class _Body(NamedTuple):
    """Half the length, width and height of the body, the height of its centre, and how thick the legs are."""

    length: float
    width: float
    height: float
    middle: float
    leg_radius: float


class _Head(NamedTuple):
    """Where the head is, and its radius; how long the snout is and how far it hangs."""

    x: float
    z: float
    radius: float
    snout: float
    drop: float


# ours, all literals below: where parts join, as shares of body and head, and how thick they are; by eye


def animal(kind: str, draw: ToyRandom) -> Shape:
    """One animal of a kind in ``KINDS``."""
    shape = Shape(blend=0.07)  # flesh: joints are round
    body = _add_body(shape, kind, draw)
    _add_legs(shape, kind, body, draw)
    x, z, radius = _add_neck_and_head(shape, kind, body, draw)
    head = _Head(x, z, radius, draw(*_KINDS[kind].snout), draw(*_KINDS[kind].snout_drop))
    ears = draw(0.7, 1.6)
    _add_snout(shape, head, draw)
    if kind == "elephant":
        _add_trunk_ears_and_tusks(shape, head, ears, draw)
    elif kind != "crocodile":
        _add_ears_and_horns(shape, kind, head, ears, draw)
    _add_ornaments(shape, kind, body, head, draw)
    _add_tail(shape, kind, body, draw)
    return shape


def _add_body(shape: Shape, kind: str, draw: ToyRandom) -> _Body:
    """A trunk, and heavier shoulders."""
    measures = _KINDS[kind]
    length, leg = draw(*measures.length), draw(*measures.leg)
    width = draw(*measures.width)
    height = width * draw(*measures.height)
    body = _Body(length, width, height, leg + height * 0.75, measures.leg_radius * draw(0.85, 1.3))
    shape.ellipsoid((0, 0, body.middle), (length, width, height))
    shape.ellipsoid(
        (length * 0.5, 0, body.middle + draw(-0.02, 0.05)),
        (length * 0.45, width * draw(0.85, 1.08), height * draw(0.95, 1.15)),
    )
    return body


def _add_legs(shape: Shape, kind: str, body: _Body, draw: ToyRandom) -> None:
    """Four legs; of each pair one is ahead by as much as the other is behind."""
    length, width, height, middle, radius = body
    stance = _KINDS[kind].stance
    for end in (1, -1):
        stride = draw(-0.15, 0.15) * (0.4 if kind == "crocodile" else 1)
        for side, ahead in ((1, stride), (-1, -stride)):
            hip = (end * length * 0.66, side * width * 0.6, middle - height * 0.2)
            foot = (end * length * 0.72 + ahead, side * width * (stance + 0.08), 0.045)
            shape.capsule(hip, foot, radius * 1.35, radius * 0.85)


def _add_neck_and_head(shape: Shape, kind: str, body: _Body, draw: ToyRandom) -> tuple[float, float, float]:
    """A neck, lowered in some that graze; returns x, z and radius of the head."""
    measures = _KINDS[kind]
    grazes = kind in ("horse", "pig", "sheep") and draw.chance(0.35)
    forward, up = draw(*measures.neck_forward), draw(*measures.neck_up) * (-0.6 if grazes else 1)
    x, z, radius = body.length * 0.82 + forward, body.middle + up, measures.head * draw(0.85, 1.2)
    shoulder = (body.length * 0.68, 0, body.middle + body.height * 0.2)
    shape.capsule(shoulder, (x, 0, z), body.height * draw(0.55, 0.8), radius * 0.85)
    shape.ellipsoid((x + radius * 0.3, 0, z), (radius * 1.25, radius * 0.85, radius))
    return x, z, radius


def _add_snout(shape: Shape, head: _Head, draw: ToyRandom) -> None:
    x, z, radius = head.x + head.radius * 0.6, head.z, head.radius
    end = (x + head.snout, 0, z - radius * 0.45 - head.drop)
    shape.capsule((x, 0, z - radius * 0.2), end, radius * 0.62, radius * draw(0.35, 0.5))


def _add_trunk_ears_and_tusks(shape: Shape, head: _Head, ears: float, draw: ToyRandom) -> None:
    x, z, radius = head.x, head.z, head.radius
    low = z - draw(0.3, 0.5)
    bend = (x + radius * 1.5, 0, low)
    shape.capsule((x + radius, 0, z - 0.08), bend, 0.085, 0.055)
    shape.capsule(bend, (x + radius * 2 + draw(0, 0.15), 0, low + draw(-0.1, 0.2)), 0.055, 0.04)
    shape.ellipsoid(
        (x - 0.06, radius * 0.9, z + 0.02),
        (0.04 + 0.05 * ears, 0.15 * ears, 0.18 * ears),
        mirrored=True, turned=(35, 0, 0), blend=0.03,
    )  # fmt: skip
    root, tip = (x + radius * 0.9, radius * 0.5, z - 0.12), (x + radius * 1.8, radius * 0.55, z - 0.2)
    shape.capsule(root, tip, 0.035, 0.015, mirrored=True, blend=0.02)


def _add_ears_and_horns(shape: Shape, kind: str, head: _Head, ears: float, draw: ToyRandom) -> None:
    x, z, radius = head.x, head.z, head.radius
    root = (x, radius * 0.55, z + radius * 0.6)
    tip = (x - 0.03, radius * (0.6 + 0.5 * ears), z + radius * (0.7 + 0.55 * ears))
    shape.capsule(root, tip, 0.04, draw(0.015, 0.045), mirrored=True, blend=0.02)
    if draw.chance(_KINDS[kind].horned):
        root = (x + 0.03, radius * 0.4, z + radius * 0.8)
        tip = (x - draw(-0.05, 0.15), radius * draw(0.8, 2.4), z + radius * draw(1.4, 2.6))
        shape.capsule(root, tip, 0.03, 0.015, mirrored=True, blend=0.02)


def _add_ornaments(shape: Shape, kind: str, body: _Body, head: _Head, draw: ToyRandom) -> None:
    """A rhino's horn, a mane, a hump or saddle: each in some only."""
    x, z, radius = head.x, head.z, head.radius
    if kind == "pig" and draw.chance(0.5):
        root = (x + radius + head.snout * 0.5, 0, z - head.drop)
        tip = (x + radius + head.snout * 0.7, 0, z + radius * draw(0.8, 1.3))
        shape.capsule(root, tip, 0.04, 0.012, blend=0.02)
    if kind in ("horse", "sheep") and draw.chance(0.7):
        thick, end = (0.05, 0.04) if kind == "horse" else (radius * draw(0.7, 1.1), radius)
        withers = (body.length * 0.55, 0, body.middle + body.height)
        shape.capsule(withers, (x - 0.06, 0, z + radius * 0.9), thick, end)
    if kind in ("giraffe", "elephant") and draw.chance(0.4):
        shape.ellipsoid((-0.05, 0, body.middle + body.height), (0.18, 0.12, draw(0.1, 0.2)))


def _add_tail(shape: Shape, kind: str, body: _Body, draw: ToyRandom) -> None:
    length, rise = draw(*_KINDS[kind].tail), draw(*_KINDS[kind].tail_rise)
    z = body.middle + body.height * 0.25
    tip = (-body.length * 0.95 - length, 0, max(z + rise, 0.04))
    thick = body.height * 0.5 if kind == "crocodile" else 0.045
    shape.capsule((-body.length * 0.9, 0, z), tip, thick, draw(0.015, 0.05))
