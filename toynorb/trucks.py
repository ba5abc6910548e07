"""Trucks: a chassis, a cab with or without a bonnet, and one of seven loads."""

from __future__ import annotations

from typing import NamedTuple

from toynorb.shapes import Range, Shape, ToyRandom, add_wheels

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


class _Bed(NamedTuple):
    """Where the load is: behind the cab, on the chassis.

    Attributes:
        rear, front: x of its ends.
        middle, half: x of its middle, and half its length.
        width: half its width.
        height: of the chassis above the table.
    """

    rear: float
    front: float
    middle: float
    half: float
    width: float
    height: float


# ours, all literals below: sizes of parts and where they join, in the toy's units; by eye


def truck(kind: str, draw: ToyRandom) -> Shape:
    """Build a truck of a kind in ``KINDS``; lengths, widths and heights of its parts are halved."""
    shape = Shape(blend=0.015)  # sheet metal: joints are sharp
    is_pickup = kind == "pickup"
    length = draw(*_LENGTHS[kind])
    width = draw(0.25, 0.33)
    if is_pickup:
        width *= 1.1
    radius = draw(0.11, 0.16) * (1.2 if kind == "dumper" else 1)
    chassis = radius * draw(1, 1.25)
    has_bonnet = is_pickup or draw.chance(0.45)
    cab_length = draw(0.15, 0.25)
    cab_height = draw(0.24, 0.29) if is_pickup else draw(0.22, 0.36)
    bonnet = 0.0
    if has_bonnet:
        bonnet = draw(0.22, 0.3) if is_pickup else draw(0.14, 0.2)
    cab = length - cab_length - bonnet
    shape.box((0, 0, chassis + 0.03), (length * 0.97, width * 0.62, 0.045))
    shape.box(
        (cab, 0, chassis + cab_height),
        (cab_length, width * 0.95, cab_height),
        edge=0.045,
        front=(draw(0.1, 0.5) if has_bonnet else draw(0, 0.25), 0),
        back=(draw(0, 0.3) if is_pickup else 0, 0),
        side=draw(0, 0.15),
    )
    if not is_pickup:
        windscreen = (cab + cab_length * 0.8, 0, chassis + cab_height * 1.35)
        shape.box(windscreen, (cab_length * 0.35, width * 0.82, cab_height * 0.32), blend=0)
    if has_bonnet:
        centre = (length - bonnet, 0, chassis + draw(0.14, 0.19))
        shape.box(centre, (bonnet + 0.03, width * draw(0.75, 0.95), draw(0.12, 0.16)), edge=0.05)
    bumper = (length - 0.01, 0, chassis + 0.03)
    shape.box(bumper, (0.04, width * 0.95, 0.055))
    front = cab - cab_length - 0.03
    bed = _Bed(-length, front, (front - length) / 2, (front + length) / 2, width, chassis)
    _add_load(shape, kind, bed, draw)
    rear_axles = [-length + radius * 1.5, -length + radius * 3.7]
    if is_pickup or (kind in ("box", "flatbed") and draw.chance(0.5)):
        rear_axles = [-length * 0.6]
    if kind == "semi-trailer":
        exhaust = (cab - cab_length * 0.8, width * 0.9, chassis + 0.5)
        shape.cylinder(exhaust, 0.035, draw(0.26, 0.42), "z", edge=0.01, mirrored=True)
        rear_axles.append(front - 0.02)  # under the cab
    front_axle = length - (bonnet or cab_length)
    add_wheels(shape, [front_axle, *rear_axles], width * 0.9, radius, 0.075)
    return shape


def _add_load(shape: Shape, kind: str, bed: _Bed, draw: ToyRandom) -> None:
    if kind == "box":
        _add_box(shape, bed, draw)
    elif kind == "dumper":
        _add_dumper(shape, bed, draw)
    elif kind == "tanker":
        _add_tank(shape, bed, draw)
    elif kind == "semi-trailer":
        _add_trailer(shape, bed, draw)
    elif kind == "flatbed":
        _add_flatbed(shape, bed, draw)
    elif kind == "pickup":
        _add_open_box(shape, bed, draw)
    else:
        _add_mixer(shape, bed, draw)


def _add_box(shape: Shape, bed: _Bed, draw: ToyRandom) -> None:
    height = draw(0.28, 0.46)
    half = (bed.half, bed.width * draw(0.98, 1.1), height)
    shape.box((bed.middle, 0, bed.height + 0.07 + height), half, edge=draw(0.02, 0.06))


def _add_dumper(shape: Shape, bed: _Bed, draw: ToyRandom) -> None:
    """Add a body that widens upwards, sometimes half tipped, a roof over the cab, and a heap."""
    shape.box(
        (bed.middle, 0, bed.height + 0.3),
        (bed.half, bed.width * 1.08, draw(0.16, 0.25)),
        front=(-draw(0, 0.3), 0),
        back=(-draw(0.1, 0.6), 0),
        side=-draw(0, 0.25),
        turned=(0, draw(0, 24), 0),
    )
    roof = (bed.front + 0.02, 0, bed.height + draw(0.5, 0.62))
    shape.box(roof, (0.1, bed.width, 0.03), edge=0.01)
    heap = (bed.half * 0.8, bed.width * 0.8, draw(0.04, 0.2))
    shape.ellipsoid((bed.middle, 0, bed.height + 0.46), heap)


def _add_tank(shape: Shape, bed: _Bed, draw: ToyRandom) -> None:
    """Add a horizontal tank and its dome."""
    tank = (bed.middle, 0, bed.height + 0.1 + bed.width)
    shape.cylinder(tank, bed.width * draw(0.85, 1.12), bed.half, "x", edge=0.09)
    dome = (bed.middle + draw(-0.2, 0.2), 0, bed.height + 0.12 + 2 * bed.width)
    shape.cylinder(dome, 0.1, 0.06, "z")


def _add_trailer(shape: Shape, bed: _Bed, draw: ToyRandom) -> None:
    height = draw(0.26, 0.4)
    centre = (bed.middle - 0.06, 0, bed.height + 0.08 + height)
    shape.box(centre, (bed.half - 0.06, bed.width * 1.05, height))


def _add_flatbed(shape: Shape, bed: _Bed, draw: ToyRandom) -> None:
    """Add a platform with a fire engine's body and ladder, or with stakes and cargo."""
    middle, half, width = bed.middle, bed.half, bed.width
    shape.box((middle, 0, bed.height + 0.12), (half, width * 1.05, 0.045), edge=0.015)
    if draw.chance(0.5):
        shape.box((middle, 0, bed.height + 0.28), (half, width, 0.17))
        ladder = (middle + 0.1, 0, bed.height + 0.6)
        length = draw(0.5, 0.75)
        shape.box(ladder, (length, 0.085, 0.03), edge=0.015, turned=(0, draw(-4, 16), 0))
        shape.cylinder((middle - 0.25, 0, bed.height + 0.5), 0.12, 0.1, "z")
    else:
        shape.box((bed.front - 0.02, 0, bed.height + 0.3), (0.03, width, 0.2), edge=0.01)
        cargo = (middle - half * draw(0, 0.4), 0, bed.height + 0.3)
        shape.box(cargo, (half * draw(0.3, 0.5), width * 0.75, draw(0.13, 0.2)))
        stakes = (middle, width, bed.height + 0.22)
        shape.box(stakes, (half, 0.02, 0.06), edge=0.01, mirrored=True)


def _add_open_box(shape: Shape, bed: _Bed, draw: ToyRandom) -> None:
    """Add two sides, a tailgate, a floor, and in some a load."""
    middle, half, width = bed.middle, bed.half, bed.width
    side = (middle, width * 0.93, bed.height + 0.16)
    shape.box(side, (half, 0.03, 0.13), mirrored=True)
    shape.box((bed.rear + 0.03, 0, bed.height + 0.16), (0.03, width * 0.9, 0.13))
    shape.box((middle, 0, bed.height + 0.07), (half, width * 0.9, 0.03), edge=0.01)
    if draw.chance(0.5):
        shape.box((middle, 0, bed.height + 0.24), (half * 0.6, width * 0.6, 0.14), edge=0.03)


def _add_mixer(shape: Shape, bed: _Bed, draw: ToyRandom) -> None:
    """Add a tilted drum, its funnel and its pump."""
    drum = (bed.middle + 0.04, 0, bed.height + 0.48)
    radii = (bed.half * 1.05, bed.width * 1.05, draw(0.28, 0.36))
    shape.ellipsoid(drum, radii, turned=(0, draw(8, 20), 0))
    shape.cylinder((bed.rear + 0.1, 0, bed.height + 0.62), 0.12, 0.1, "z")
    shape.box((bed.front - 0.1, 0, bed.height + 0.2), (0.1, bed.width * 0.7, 0.2))
