"""Trucks: a chassis, a cab with or without a bonnet, and one of seven loads."""

from __future__ import annotations

from typing import NamedTuple

from capsule_lab.data.standins.toynorb.rng import Range, ToyRandom
from capsule_lab.data.standins.toynorb.shapes import Shape, add_wheels

# ours: half the length of each kind, least and most, in the toy's units
_LENGTHS: dict[str, Range] = {
    "box": (0.75, 0.95),
    "dumper": (0.7, 0.88),
    "tanker": (0.8, 1),
    "semi-trailer": (1, 1.2),
    "flatbed": (0.75, 1),
    "pickup": (0.75, 0.9),
    "cement mixer": (0.75, 0.9),
}

KINDS = tuple(_LENGTHS)
"""Names of the kinds."""


class _Truck(NamedTuple):
    """Half the length and width, the wheels' radius, the chassis' height; half the bonnet's and the cab's length.

    ``cab`` is the x of the cab's centre; the load begins at ``front`` and has its centre at ``middle``, from which
    it reaches ``half`` both ways. A truck without bonnet has ``bonnet`` 0.
    """

    length: float
    width: float
    radius: float
    chassis: float
    bonnet: float
    cab_length: float
    cab: float
    front: float
    middle: float
    half: float


# ours, all literals below: sizes of parts and where they join, in the toy's units; by eye


def truck(kind: str, draw: ToyRandom) -> Shape:
    """One truck of a kind in ``KINDS``."""
    shape = Shape(blend=0.015)  # sheet metal: joints are sharp
    measures = _add_chassis_and_cab(shape, kind, draw)
    {
        "box": _add_box,
        "dumper": _add_tipper,
        "tanker": _add_tank,
        "semi-trailer": _add_trailer,
        "flatbed": _add_flatbed,
        "pickup": _add_pickup_bed,
        "cement mixer": _add_mixer,
    }[kind](shape, measures, draw)
    length, radius = measures.length, measures.radius
    single = kind == "pickup" or (kind in ("box", "flatbed") and draw.chance(0.5))
    steering = length - (measures.bonnet or measures.cab_length)
    rear = [-length * 0.6] if single else [-length + radius * 1.5, -length + radius * 3.7]
    under_the_cab = [measures.front - 0.02] if kind == "semi-trailer" else []
    add_wheels(shape, [steering, *rear, *under_the_cab], measures.width * 0.9, radius, 0.075)
    return shape


def _add_chassis_and_cab(shape: Shape, kind: str, draw: ToyRandom) -> _Truck:
    pickup = kind == "pickup"
    length, width = draw(*_LENGTHS[kind]), draw(0.25, 0.33)
    radius = draw(0.11, 0.16) * (1.2 if kind == "dumper" else 1)
    width *= 1.1 if pickup else 1
    chassis = radius * draw(1, 1.25)
    has_bonnet = pickup or draw.chance(0.45)
    cab_length = draw(0.15, 0.25)
    cab_height = draw(0.24, 0.29) if pickup else draw(0.22, 0.36)
    bonnet = 0.0
    if has_bonnet:
        bonnet = draw(0.22, 0.3) if pickup else draw(0.14, 0.2)
    cab = length - cab_length - bonnet
    shape.box((0, 0, chassis + 0.03), (length * 0.97, width * 0.62, 0.045))
    shape.box(
        (cab, 0, chassis + cab_height), (cab_length, width * 0.95, cab_height), edge=0.045,
        front=(draw(0.1, 0.5) if has_bonnet else draw(0, 0.25), 0), back=(draw(0, 0.3) if pickup else 0, 0),
        side=draw(0, 0.15),
    )  # fmt: skip
    if not pickup:
        windscreen = (cab + cab_length * 0.8, 0, chassis + cab_height * 1.35)
        shape.box(windscreen, (cab_length * 0.35, width * 0.82, cab_height * 0.32), blend=0)
    if has_bonnet:
        centre = (length - bonnet, 0, chassis + draw(0.14, 0.19))
        shape.box(centre, (bonnet + 0.03, width * draw(0.75, 0.95), draw(0.12, 0.16)), edge=0.05)
    shape.box((length - 0.01, 0, chassis + 0.03), (0.04, width * 0.95, 0.055))  # bumper
    front = cab - cab_length - 0.03
    middle, half = (front - length) / 2, (front + length) / 2
    return _Truck(length, width, radius, chassis, bonnet, cab_length, cab, front, middle, half)


def _add_box(shape: Shape, truck: _Truck, draw: ToyRandom) -> None:
    height = draw(0.28, 0.46)
    centre = (truck.middle, 0, truck.chassis + 0.07 + height)
    shape.box(centre, (truck.half, truck.width * draw(0.98, 1.1), height), edge=draw(0.02, 0.06))


def _add_tipper(shape: Shape, truck: _Truck, draw: ToyRandom) -> None:
    """A body that widens upwards, perhaps half tipped, a roof over the cab, and a heap."""
    shape.box(
        (truck.middle, 0, truck.chassis + 0.3), (truck.half, truck.width * 1.08, draw(0.16, 0.25)),
        front=(-draw(0, 0.3), 0), back=(-draw(0.1, 0.6), 0), side=-draw(0, 0.25), turned=(0, draw(0, 24), 0),
    )  # fmt: skip
    shape.box((truck.front + 0.02, 0, truck.chassis + draw(0.5, 0.62)), (0.1, truck.width, 0.03), edge=0.01)
    heap = (truck.half * 0.8, truck.width * 0.8, draw(0.04, 0.2))
    shape.ellipsoid((truck.middle, 0, truck.chassis + 0.46), heap)


def _add_tank(shape: Shape, truck: _Truck, draw: ToyRandom) -> None:
    """A lying tank and its dome."""
    axis = (truck.middle, 0, truck.chassis + 0.1 + truck.width)
    shape.cylinder(axis, truck.width * draw(0.85, 1.12), truck.half, "x", edge=0.09)
    dome = (truck.middle + draw(-0.2, 0.2), 0, truck.chassis + 0.12 + 2 * truck.width)
    shape.cylinder(dome, 0.1, 0.06, "z")


def _add_trailer(shape: Shape, truck: _Truck, draw: ToyRandom) -> None:
    """A long box, and two exhausts behind the cab."""
    height = draw(0.26, 0.4)
    centre = (truck.middle - 0.06, 0, truck.chassis + 0.08 + height)
    shape.box(centre, (truck.half - 0.06, truck.width * 1.05, height))
    exhaust = (truck.cab - truck.cab_length * 0.8, truck.width * 0.9, truck.chassis + 0.5)
    shape.cylinder(exhaust, 0.035, draw(0.26, 0.42), "z", edge=0.01, mirrored=True)


def _add_flatbed(shape: Shape, truck: _Truck, draw: ToyRandom) -> None:
    """A low bed: with a fire engine's body and ladder on it, or with stakes and cargo."""
    middle, half, width, bed = truck.middle, truck.half, truck.width, truck.chassis
    shape.box((middle, 0, bed + 0.12), (half, width * 1.05, 0.045), edge=0.015)
    if draw.chance(0.5):
        shape.box((middle, 0, bed + 0.28), (half, width, 0.17))
        ladder = (draw(0.5, 0.75), 0.085, 0.03)
        shape.box((middle + 0.1, 0, bed + 0.6), ladder, edge=0.015, turned=(0, draw(-4, 16), 0))
        shape.cylinder((middle - 0.25, 0, bed + 0.5), 0.12, 0.1, "z")
    else:
        shape.box((truck.front - 0.02, 0, bed + 0.3), (0.03, width, 0.2), edge=0.01)
        cargo = (middle - half * draw(0, 0.4), 0, bed + 0.3)
        shape.box(cargo, (half * draw(0.3, 0.5), width * 0.75, draw(0.13, 0.2)))
        shape.box((middle, width, bed + 0.22), (half, 0.02, 0.06), edge=0.01, mirrored=True)


def _add_pickup_bed(shape: Shape, truck: _Truck, draw: ToyRandom) -> None:
    """Two sides, a tailgate, a floor, and a load in some."""
    middle, half, width, bed = truck.middle, truck.half, truck.width, truck.chassis
    shape.box((middle, width * 0.93, bed + 0.16), (half, 0.03, 0.13), mirrored=True)
    shape.box((-truck.length + 0.03, 0, bed + 0.16), (0.03, width * 0.9, 0.13))
    shape.box((middle, 0, bed + 0.07), (half, width * 0.9, 0.03), edge=0.01)
    if draw.chance(0.5):
        shape.box((middle, 0, bed + 0.24), (half * 0.6, width * 0.6, 0.14), edge=0.03)


def _add_mixer(shape: Shape, truck: _Truck, draw: ToyRandom) -> None:
    """A tilted drum, its funnel and its pump."""
    shape.ellipsoid(
        (truck.middle + 0.04, 0, truck.chassis + 0.48),
        (truck.half * 1.05, truck.width * 1.05, draw(0.28, 0.36)),
        turned=(0, draw(8, 20), 0),
    )
    shape.cylinder((-truck.length + 0.1, 0, truck.chassis + 0.62), 0.12, 0.1, "z")
    shape.box((truck.front - 0.1, 0, truck.chassis + 0.2), (0.1, truck.width * 0.7, 0.2))
