"""People: two legs, a trunk, a head, two arms in one of four poses, clothes and equipment."""

from __future__ import annotations

from typing import NamedTuple

from toynorb.shapes import Shape, ToyRandom, Vector

KINDS = ("standing", "soldier", "arms raised", "skirt", "caped", "kneeling", "robed")
"""Names of the kinds."""


class _Build(NamedTuple):
    """Heights of hip, shoulder and head above the table; a factor for widths; x of the trunk; radius of the head."""

    hip: float
    shoulder: float
    head: float
    width: float
    lean: float
    radius: float


# ours, all literals below: where parts join and how thick they are, in the toy's units; by eye


def human(kind: str, draw: ToyRandom) -> Shape:
    """Build a person of a kind in ``KINDS``."""
    shape = Shape(blend=0.06)  # clothes: joints are round
    build = _add_legs_and_trunk(shape, kind, draw)
    for side in (1, -1):
        _add_arm(shape, kind, side, build, draw)
    if kind in ("soldier", "kneeling"):
        _add_equipment(shape, build, draw)
    if kind in ("skirt", "robed"):
        _add_skirt_and_hair(shape, kind, build, draw)
    if kind == "caped":
        _add_cape(shape, build, draw)
    if kind in ("standing", "arms raised", "robed") and draw.chance(0.6):
        _add_hat(shape, build, draw)
    if kind == "caped" or draw.chance(0.35):
        base_radius = draw(0.28, 0.42)
        shape.cylinder((0.02, 0, 0.025), base_radius, 0.03, "z", blend=0.01)
    return shape


def _add_legs_and_trunk(shape: Shape, kind: str, draw: ToyRandom) -> _Build:
    """Add legs with feet, shifted by opposite amounts, or with one leg kneeling; then trunk and head."""
    height = draw(1.3, 1.65)
    width = draw(0.82, 1.25)
    hip = height * draw(0.44, 0.52)
    shoulder = height * draw(0.76, 0.82)
    if kind == "kneeling":
        shoulder = 0.36 + (shoulder - hip)
        hip = 0.36
    apart = draw(0.05, 0.13) * (0.7 if kind == "soldier" else 1)
    step = draw(0.14, 0.3) if kind == "soldier" else draw(-0.08, 0.08)
    for side in (1, -1):
        if kind != "kneeling":
            knee: Vector = (side * step * 0.6 + 0.03, side * apart * 1.1, hip * 0.5)
            foot: Vector = (side * step - 0.02, side * apart * 1.3, 0.06)
        elif side > 0:
            knee = (0.34, apart * 1.5, hip + 0.02)
            foot = (0.32, apart * 1.5, 0.06)
        else:
            knee = (0.06, -apart * 1.5, 0.07)
            foot = (-0.3, -apart * 1.5, 0.07)
        heel = (foot[0], foot[1], 0.045)
        toes = (foot[0] + 0.14, foot[1] * 1.15, 0.04)
        shape.capsule((0, side * apart, hip), knee, 0.095 * width, 0.075 * width)
        shape.capsule(knee, foot, 0.07 * width, 0.05 * width)
        shape.capsule(heel, toes, 0.05, 0.042)
    lean = draw(-0.05, 0.08)
    radius = draw(0.1, 0.14)
    head = shoulder + 0.1 + radius
    shape.ellipsoid((lean * 0.3, 0, hip + 0.05), (0.12 * width, 0.16 * width, 0.12))
    trunk = (0.1 * width, 0.17 * width, (shoulder - hip) / 2)
    shape.box((lean, 0, (hip + shoulder) / 2 + 0.03), trunk, edge=0.08, side=draw(-0.2, 0))
    shape.capsule((lean, 0, shoulder), (lean + 0.02, 0, shoulder + 0.12), 0.06)
    shape.ellipsoid((lean + 0.03, 0, head), (radius, radius * 0.88, radius * 1.15), blend=0.03)
    return _Build(hip, shoulder, head, width, lean, radius)


def _add_arm(shape: Shape, kind: str, side: int, build: _Build, draw: ToyRandom) -> None:
    """Add an upper arm, forearm and fist, on the left for ``side`` 1; a robed person's left fist holds a staff."""
    width, shoulder = build.width, build.shoulder
    y = side * 0.2 * width
    if kind == "arms raised" or (kind == "robed" and side > 0):
        elbow: Vector = (draw(0, 0.12), y + side * draw(0.12, 0.25), shoulder + draw(-0.1, 0.12))
        wrist: Vector = (draw(0, 0.2), y + side * draw(0.15, 0.42), shoulder + draw(0.05, 0.42))
    elif kind in ("soldier", "kneeling"):  # at a rifle
        elbow = (0.1, side * 0.28 * width, shoulder - 0.26)
        wrist = (0.3, side * 0.1, shoulder - draw(0.05, 0.25))
    elif kind == "skirt" or (kind == "caped" and side > 0):  # on the hip
        elbow = (-0.06, y + side * draw(0.12, 0.22), shoulder - 0.26)
        wrist = (0.06, y, build.hip + 0.12)
    else:
        elbow = (draw(-0.12, 0.08), y + side * draw(0.03, 0.14), shoulder - 0.3)
        wrist = (draw(-0.08, 0.32), y + side * draw(0.02, 0.18), shoulder - draw(0.36, 0.58))
    shape.capsule((build.lean, y, shoulder - 0.04), elbow, 0.068 * width, 0.055 * width)
    shape.capsule(elbow, wrist, 0.055 * width, 0.045 * width)
    shape.ellipsoid(wrist, (0.055, 0.055, 0.055))
    if kind == "robed" and side > 0:
        top = (wrist[0], wrist[1], build.head + draw(0.1, 0.35))
        shape.capsule((wrist[0], wrist[1], 0.02), top, 0.028, blend=0.02)


def _add_equipment(shape: Shape, build: _Build, draw: ToyRandom) -> None:
    """Add a rifle, a helmet and a pack."""
    lean, radius = build.lean, build.radius
    shape.cylinder(
        (0.28, draw(-0.1, 0.1), build.shoulder - 0.18),
        0.03,
        draw(0.3, 0.45),
        "y",
        edge=0.01,
        blend=0.01,
        turned=(draw(20, 80), 0, draw(-40, 10)),
    )
    helmet = (radius * 1.3, radius * 1.25, radius * 0.95)
    shape.ellipsoid((lean + 0.02, 0, build.head + 0.05), helmet, blend=0.01)
    pack = (lean - 0.17, 0, build.shoulder - 0.16)
    shape.box(pack, (0.07, 0.13, draw(0.1, 0.18)), edge=0.03)


def _add_skirt_and_hair(shape: Shape, kind: str, build: _Build, draw: ToyRandom) -> None:
    """Add a skirt to the knees, or a robe to the ground; and long hair."""
    radius = build.radius
    half, below = (build.hip * 0.33, 0.05) if kind == "skirt" else (build.hip * 0.5, 0.08)
    shape.box(
        (0, 0, build.hip - half + below),
        (draw(0.17, 0.26), draw(0.18, 0.27), half),
        edge=0.06,
        blend=0.1,
        front=(draw(0.05, 0.3), 0),
        back=(draw(0.05, 0.3), 0),
        side=draw(0.05, 0.3),
    )
    hair = (build.lean - 0.05, 0, build.head - 0.02)
    shape.ellipsoid(hair, (radius * 1.1, radius * 1.15, radius * 1.3), blend=0.02)


def _add_cape(shape: Shape, build: _Build, draw: ToyRandom) -> None:
    centre = (build.lean - 0.17 - draw(0, 0.05), 0, (build.shoulder + 0.25) / 2)
    half = (0.035, 0.26 * build.width, (build.shoulder - 0.25) / 2)
    shape.box(centre, half, side=0.12, turned=(0, draw(4, 16), 0))


def _add_hat(shape: Shape, build: _Build, draw: ToyRandom) -> None:
    """Add the brim and the crown of a hat."""
    x, head, radius = build.lean + 0.02, build.head, build.radius
    brim = (x, 0, head + radius * 0.65)
    shape.cylinder(brim, radius * draw(1.2, 2), 0.025, "z", blend=0.02)
    crown = (x, 0, head + radius)
    shape.cylinder(crown, radius * 0.85, draw(0.06, 0.18), "z", edge=0.03, blend=0.02)
