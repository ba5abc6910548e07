"""Cars: a body, a cabin with slanted windows, and the parts that make a sports car or a jeep."""

from __future__ import annotations

from typing import NamedTuple

from toynorb.shapes import Range, Shape, ToyRandom, add_wheels


class _BodyRanges(NamedTuple):
    """Half the length and half the height of a body: least and most."""

    length: Range
    height: Range


class _CabinRanges(NamedTuple):
    """Half the length and half the height of a cabin, and the slope of its rear window: least and most."""

    length: Range
    height: Range
    rear_slope: Range


# ours, both: in the toy's units, by eye, so that outlines distinguish the kinds; hatchbacks include estates, jeeps vans
_BODIES = {
    "saloon": _BodyRanges((0.8, 0.98), (0.12, 0.17)),
    "hatchback": _BodyRanges((0.68, 0.92), (0.14, 0.2)),
    "beetle": _BodyRanges((0.68, 0.82), (0.14, 0.18)),
    "sports car": _BodyRanges((0.8, 0.98), (0.095, 0.125)),
    "convertible": _BodyRanges((0.78, 0.95), (0.1, 0.14)),
    "racer": _BodyRanges((0.9, 1.05), (0.08, 0.11)),
    "jeep": _BodyRanges((0.65, 0.85), (0.17, 0.24)),
}
_CABINS = {
    "saloon": _CabinRanges((0.4, 0.52), (0.11, 0.16), (0.6, 1.3)),
    "hatchback": _CabinRanges((0.46, 0.6), (0.13, 0.19), (0.05, 0.5)),
    "sports car": _CabinRanges((0.32, 0.46), (0.08, 0.115), (0.9, 1.9)),
    "jeep": _CabinRanges((0.4, 0.56), (0.15, 0.2), (0, 0.12)),
}

KINDS = tuple(_BODIES)
"""Names of the kinds."""


class _Car(NamedTuple):
    """Half the length, width and height of the body, its lower and upper edges, and the radius of the wheels."""

    length: float
    width: float
    height: float
    low: float
    top: float
    radius: float


# ours, all literals below: sizes of parts and where they join, in the toy's units; by eye


def car(kind: str, draw: ToyRandom) -> Shape:
    """Build a car of a kind in ``KINDS``."""
    shape = Shape(blend=0.04)
    car = _measured(kind, draw)
    if kind == "beetle":
        _add_beetle(shape, car, draw)
    elif kind == "racer":
        _add_racer(shape, car, draw)
    else:
        shape.box(
            (0, 0, car.low + car.height),
            (car.length, car.width, car.height),
            edge=draw(0.03, 0.08),
            front=(draw(0, 0.5), 0),
            back=(draw(0, 0.35), 0),
            side=draw(0.02, 0.22),
        )
    if kind in _CABINS:
        _add_cabin(shape, kind, car, draw)
    if kind == "convertible":
        _add_open_cabin(shape, car, draw)
    if kind != "racer":
        _add_bumpers_and_lights(shape, car)
    axles = (car.length * draw(0.56, 0.66), -car.length * draw(0.56, 0.68))
    beside = car.width * draw(0.9, 1)
    add_wheels(shape, axles, beside, car.radius, 0.1 if kind == "racer" else 0.07)
    return shape


def _measured(kind: str, draw: ToyRandom) -> _Car:
    ranges = _BODIES[kind]
    length = draw(*ranges.length)
    width = draw(0.33, 0.43)
    radius = draw(0.14, 0.18) * (1.2 if kind in ("racer", "jeep") else 1)
    low = radius * draw(0.65, 0.9)
    height = draw(*ranges.height)
    return _Car(length, width, height, low, low + 2 * height, radius)


def _add_beetle(shape: Shape, car: _Car, draw: ToyRandom) -> None:
    """Add a rounded body and cabin, and four mudguards."""
    length, width, radius = car.length, car.width, car.radius
    body = (0, 0, car.low + car.height * 1.1)
    shape.ellipsoid(body, (length * 1.02, width * 0.95, car.height * 1.5))
    cabin = (-0.06, 0, car.top + 0.02)
    shape.ellipsoid(cabin, (length * draw(0.6, 0.72), width * 0.78, draw(0.26, 0.34)))
    front = (length * 0.6, width * 0.8, radius * 1.25)
    shape.ellipsoid(front, (radius * 1.7, 0.11, radius * 1.1), mirrored=True)
    rear = (-length * 0.6, width * 0.8, radius * 1.25)
    shape.ellipsoid(rear, (radius * 1.8, 0.11, radius * 1.15), mirrored=True)


def _add_racer(shape: Shape, car: _Car, draw: ToyRandom) -> None:
    """Add a narrow body with side pods, a driver's head behind a cowl, and front and rear wings."""
    length, width, height, low, top, _ = car
    shape.box(
        (0, 0, low + height),
        (length, width * 0.4, height),
        edge=0.06,
        front=(0.3, draw(0, 0.2)),
        back=(0.2, 0),
    )
    pods = (length * 0.36, width * draw(0.7, 0.95), height * 0.8)
    shape.box((-0.1, 0, low + height * 0.9), pods, edge=0.06)
    shape.ellipsoid((-0.15, 0, top), (0.42, 0.14, 0.15))
    shape.ellipsoid((-0.02, 0, top + 0.13), (0.085, 0.08, 0.1), blend=0.01)
    shape.box((length * 1.02, 0, low + 0.04), (0.09, width * 1.05, 0.025), edge=0.015)
    shape.box((-length * 0.95, 0, top + draw(0.12, 0.22)), (0.1, width * 0.85, 0.02), edge=0.01)
    shape.box((-length * 0.95, 0.1, top + 0.06), (0.06, 0.015, 0.11), edge=0.01, mirrored=True)


def _add_cabin(shape: Shape, kind: str, car: _Car, draw: ToyRandom) -> None:
    """Add a closed cabin with its accessories: roof rails, a spare wheel, a spoiler."""
    top, width = car.top, car.width
    is_jeep = kind == "jeep"
    is_at_the_rear = kind in ("hatchback", "jeep")
    ranges = _CABINS[kind]
    length = draw(*ranges.length)
    height = draw(*ranges.height)
    x = -car.length + length + draw(0.02, 0.1) if is_at_the_rear else draw(-0.2, -0.04)
    shape.box(
        (x, 0, top + height - 0.03),
        (length, width * draw(0.82, 0.92), height + 0.03),
        edge=draw(0.03, 0.06),
        front=(draw(0.1, 0.5) if is_jeep else draw(0.6, 1.5), 0),
        back=(draw(*ranges.rear_slope), 0),
        side=draw(0.1, 0.4) * (0.4 if is_jeep else 1),
    )
    if is_at_the_rear and draw.chance(0.5):
        rail = (x - 0.05, width * 0.6, top + 2 * height)
        shape.box(rail, (length * 0.6, 0.02, 0.02), edge=0.01, mirrored=True)
    if is_jeep:
        spare_wheel = (-car.length - 0.02, 0, top - 0.02)
        shape.cylinder(spare_wheel, car.radius * 0.9, 0.05, "x", blend=0.01)
    if kind == "sports car" and draw.chance(0.7):
        spoiler = (-car.length * 0.9, 0, top + draw(0.07, 0.13))
        shape.box(spoiler, (0.08, width * 0.9, 0.02), edge=0.01, turned=(0, -8, 0))
        stay = (-car.length * 0.9, width * 0.7, top + 0.03)
        shape.box(stay, (0.05, 0.015, 0.07), edge=0.01, mirrored=True)


def _add_open_cabin(shape: Shape, car: _Car, draw: ToyRandom) -> None:
    """Add a windscreen, two seats, and the folded roof."""
    top, width = car.top, car.width
    shape.box((0.16, 0, top + 0.08), (0.03, width * 0.8, 0.1), turned=(0, -28, 0))
    seat = (0.07, 0.1, draw(0.1, 0.15))
    shape.box((-0.2, 0.15, top + 0.05), seat, edge=0.05, mirrored=True, turned=(0, -10, 0))
    shape.box((-0.55, 0, top - 0.01), (0.2, width * 0.85, draw(0.04, 0.07)), edge=0.04)


def _add_bumpers_and_lights(shape: Shape, car: _Car) -> None:
    for x in (car.length - 0.01, -car.length + 0.01):
        shape.box((x, 0, car.low + 0.06), (0.035, car.width * 0.92, 0.045), blend=0.01)
    light = (car.length * 0.95, car.width * 0.62, car.low + car.height * 1.15)
    shape.ellipsoid(light, (0.05, 0.06, 0.05), mirrored=True, blend=0.01)
