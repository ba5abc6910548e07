"""Four-legged animals: two ellipsoids for a body, legs in mid-step, and a distinctive head."""

from __future__ import annotations

from collections import namedtuple

from toynorb.shapes import Number, Shape, ToyRandom

KINDS = ("horse", "elephant", "dog", "giraffe", "pig", "crocodile", "sheep")
"""Names of the kinds."""

# ours, both: by eye, so that outlines distinguish the kinds; a name includes animals of similar build: a horse cows,
# a dog cats, a giraffe camels, a pig rhinos, a crocodile dachshunds, a sheep lions. Lengths, widths and heights of
# bodies are halved; height is in half body widths, everything else in the toy's units
_RANGES = {  # least and most
    "length": (
        (0.5, 0.64),
        (0.52, 0.66),
        (0.4, 0.54),
        (0.38, 0.52),
        (0.4, 0.56),
        (0.62, 0.8),
        (0.36, 0.46),
    ),
    "leg": (
        (0.46, 0.7),
        (0.36, 0.52),
        (0.26, 0.44),
        (0.66, 0.9),
        (0.18, 0.32),
        (0.15, 0.24),
        (0.24, 0.36),
    ),
    "width": (
        (0.15, 0.22),
        (0.26, 0.38),
        (0.11, 0.18),
        (0.15, 0.21),
        (0.2, 0.32),
        (0.15, 0.22),
        (0.22, 0.3),
    ),
    "height": (
        (1.05, 1.3),
        (0.95, 1.15),
        (1, 1.25),
        (1.1, 1.4),
        (0.9, 1.15),
        (0.6, 0.9),
        (0.95, 1.1),
    ),
    "neck_forward": (
        (0.26, 0.42),
        (0.08, 0.16),
        (0.14, 0.28),
        (0.22, 0.48),
        (0.12, 0.2),
        (0.2, 0.3),
        (0.1, 0.2),
    ),
    "neck_up": (
        (0.28, 0.5),
        (0.02, 0.18),
        (0.1, 0.3),
        (0.5, 0.85),
        (0, 0.1),
        (-0.02, 0.06),
        (0.08, 0.2),
    ),
    "snout": (
        (0.14, 0.24),
        (0.05, 0.12),
        (0.08, 0.2),
        (0.12, 0.22),
        (0.1, 0.2),
        (0.22, 0.42),
        (0.06, 0.14),
    ),
    "snout_drop": (
        (0.02, 0.16),
        (0, 0.05),
        (-0.02, 0.05),
        (0.02, 0.1),
        (0, 0.06),
        (-0.03, 0),
        (0.03, 0.09),
    ),
    "tail": (
        (0.1, 0.25),
        (0.06, 0.12),
        (0.15, 0.32),
        (0.05, 0.14),
        (0.03, 0.1),
        (0.4, 0.7),
        (0.05, 0.2),
    ),
    "tail_rise": (
        (-0.35, 0.1),
        (-0.35, -0.2),
        (-0.15, 0.4),
        (-0.3, -0.1),
        (-0.1, 0.12),
        (-0.12, 0.02),
        (-0.2, 0.05),
    ),
}
_SIZES = {
    "leg_radius": (0.05, 0.11, 0.045, 0.045, 0.065, 0.05, 0.045),
    "stance": (
        0.65,
        0.65,
        0.65,
        0.65,
        0.65,
        1.2,
        0.65,
    ),  # position of the feet, in half body widths
    "head": (0.11, 0.22, 0.12, 0.1, 0.16, 0.1, 0.14),
    "horned": (0.5, 0, 0, 0.5, 0.3, 0, 0.3),  # probability of horns
}

_Body = namedtuple("_Body", "length width height middle")
"""Half the length, width and height of the body, and the height of its centre."""
_Head = namedtuple("_Head", "x z radius snout drop")
"""Position and radius of the head; length of the snout and how far it hangs."""

# ours, all literals below: where parts join, as shares of body and head, and how thick they are; by eye


def animal(kind: str, draw: ToyRandom) -> Shape:
    """Build an animal of a kind in ``KINDS``."""
    shape = Shape(blend=0.07)  # flesh: joints are round
    ranges = {name: row[KINDS.index(kind)] for name, row in _RANGES.items()}
    sizes = {name: row[KINDS.index(kind)] for name, row in _SIZES.items()}
    length, leg, width = (draw(*ranges[name]) for name in ("length", "leg", "width"))
    height = width * draw(*ranges["height"])
    middle, thick = leg + height * 0.75, sizes["leg_radius"] * draw(0.85, 1.3)
    body = _Body(length, width, height, middle)
    shape.ellipsoid((0, 0, middle), (length, width, height))
    shoulders = (length * 0.5, 0, middle + draw(-0.02, 0.05))
    shape.ellipsoid(shoulders, (length * 0.45, width * draw(0.85, 1.08), height * draw(0.95, 1.15)))
    for end in (1, -1):  # the legs of a pair are shifted by opposite amounts
        stride = draw(-0.15, 0.15) * (0.4 if kind == "crocodile" else 1)
        for side, ahead in ((1, stride), (-1, -stride)):
            hip = (end * length * 0.66, side * width * 0.6, middle - height * 0.2)
            foot = (end * length * 0.72 + ahead, side * width * (sizes["stance"] + 0.08), 0.045)
            shape.capsule(hip, foot, thick * 1.35, thick * 0.85)
    grazes = kind in ("horse", "pig", "sheep") and draw.chance(0.35)
    forward, up = draw(*ranges["neck_forward"]), draw(*ranges["neck_up"]) * (-0.6 if grazes else 1)
    x, z, radius = length * 0.82 + forward, middle + up, sizes["head"] * draw(0.85, 1.2)
    neck = (length * 0.68, 0, middle + height * 0.2)
    shape.capsule(neck, (x, 0, z), height * draw(0.55, 0.8), radius * 0.85)
    shape.ellipsoid((x + radius * 0.3, 0, z), (radius * 1.25, radius * 0.85, radius))
    head = _Head(x, z, radius, draw(*ranges["snout"]), draw(*ranges["snout_drop"]))
    ears, mouth = draw(0.7, 1.6), x + radius * 0.6
    tip = (mouth + head.snout, 0, z - radius * 0.45 - head.drop)
    shape.capsule((mouth, 0, z - radius * 0.2), tip, radius * 0.62, radius * draw(0.35, 0.5))
    if kind == "elephant":
        _add_trunk_ears_and_tusks(shape, head, ears, draw)
    elif kind != "crocodile":
        _add_ears_and_horns(shape, head, ears, sizes["horned"], draw)
    _add_ornaments(shape, kind, body, head, draw)
    tail, rise, root = draw(*ranges["tail"]), draw(*ranges["tail_rise"]), middle + height * 0.25
    tip = (-length * 0.95 - tail, 0, max(root + rise, 0.04))
    thick = height * 0.5 if kind == "crocodile" else 0.045
    shape.capsule((-length * 0.9, 0, root), tip, thick, draw(0.015, 0.05))
    return shape


def _add_trunk_ears_and_tusks(shape: Shape, head: _Head, ears: float, draw: ToyRandom) -> None:
    x, z, radius = head.x, head.z, head.radius
    low = z - draw(0.3, 0.5)
    bend = (x + radius * 1.5, 0, low)
    shape.capsule((x + radius, 0, z - 0.08), bend, 0.085, 0.055)
    shape.capsule(bend, (x + radius * 2 + draw(0, 0.15), 0, low + draw(-0.1, 0.2)), 0.055, 0.04)
    ear = (0.04 + 0.05 * ears, 0.15 * ears, 0.18 * ears)
    shape.ellipsoid(
        (x - 0.06, radius * 0.9, z + 0.02), ear, mirrored=True, turned=(35, 0, 0), blend=0.03
    )
    root, tip = (
        (x + radius * 0.9, radius * 0.5, z - 0.12),
        (x + radius * 1.8, radius * 0.55, z - 0.2),
    )
    shape.capsule(root, tip, 0.035, 0.015, mirrored=True, blend=0.02)


def _add_ears_and_horns(
    shape: Shape, head: _Head, ears: float, horned: Number, draw: ToyRandom
) -> None:
    x, z, radius = head.x, head.z, head.radius
    root = (x, radius * 0.55, z + radius * 0.6)
    tip = (x - 0.03, radius * (0.6 + 0.5 * ears), z + radius * (0.7 + 0.55 * ears))
    shape.capsule(root, tip, 0.04, draw(0.015, 0.045), mirrored=True, blend=0.02)
    if draw.chance(horned):
        root = (x + 0.03, radius * 0.4, z + radius * 0.8)
        tip = (x - draw(-0.05, 0.15), radius * draw(0.8, 2.4), z + radius * draw(1.4, 2.6))
        shape.capsule(root, tip, 0.03, 0.015, mirrored=True, blend=0.02)


def _add_ornaments(shape: Shape, kind: str, body: _Body, head: _Head, draw: ToyRandom) -> None:
    """Add a rhino's horn, a mane, a hump or a saddle to some animals."""
    x, z, radius, back = head.x, head.z, head.radius, body.middle + body.height
    if kind == "pig" and draw.chance(0.5):
        root = (x + radius + head.snout * 0.5, 0, z - head.drop)
        tip = (x + radius + head.snout * 0.7, 0, z + radius * draw(0.8, 1.3))
        shape.capsule(root, tip, 0.04, 0.012, blend=0.02)
    if kind in ("horse", "sheep") and draw.chance(0.7):
        thick, end = (0.05, 0.04) if kind == "horse" else (radius * draw(0.7, 1.1), radius)
        shape.capsule((body.length * 0.55, 0, back), (x - 0.06, 0, z + radius * 0.9), thick, end)
    if kind in ("giraffe", "elephant") and draw.chance(0.4):
        shape.ellipsoid((-0.05, 0, back), (0.18, 0.12, draw(0.1, 0.2)))
