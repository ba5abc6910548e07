"""Trucks: a chassis, a cab with or without a bonnet, and one of seven loads."""

from __future__ import annotations

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

# ours, all literals below: sizes of parts and where they join, in the toy's units; by eye


def truck(kind: str, draw: ToyRandom) -> Shape:
    """Build a truck of a kind in ``KINDS``; lengths, widths and heights of its parts are halved."""
    shape = Shape(blend=0.015)  # sheet metal: joints are sharp
    pickup = kind == "pickup"
    length, width = draw(*_LENGTHS[kind]), draw(0.25, 0.33)
    radius = draw(0.11, 0.16) * (1.2 if kind == "dumper" else 1)
    width *= 1.1 if pickup else 1
    chassis = radius * draw(1, 1.25)
    has_bonnet = pickup or draw.chance(0.45)
    cab_length = draw(0.15, 0.25)
    cab_height = draw(0.24, 0.29) if pickup else draw(0.22, 0.36)
    bonnet = 0.0 if not has_bonnet else draw(0.22, 0.3) if pickup else draw(0.14, 0.2)
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
    _add_load(shape, kind, length, width, chassis, front, draw)
    if kind == "semi-trailer":  # two exhausts behind the cab
        exhaust = (cab - cab_length * 0.8, width * 0.9, chassis + 0.5)
        shape.cylinder(exhaust, 0.035, draw(0.26, 0.42), "z", edge=0.01, mirrored=True)
    single = pickup or (kind in ("box", "flatbed") and draw.chance(0.5))
    rear = [-length * 0.6] if single else [-length + radius * 1.5, -length + radius * 3.7]
    under_the_cab = [front - 0.02] if kind == "semi-trailer" else []
    axles = [length - (bonnet or cab_length), *rear, *under_the_cab]
    add_wheels(shape, axles, width * 0.9, radius, 0.075)
    return shape


def _add_load(
    shape: Shape, kind: str, length: float, width: float, bed: float, front: float, draw: ToyRandom
) -> None:
    """Add the load behind the cab, from the end of the truck to ``front``, on the chassis at the height ``bed``."""
    middle, half = (front - length) / 2, (front + length) / 2
    if kind == "box":
        height = draw(0.28, 0.46)
        shape.box(
            (middle, 0, bed + 0.07 + height),
            (half, width * draw(0.98, 1.1), height),
            edge=draw(0.02, 0.06),
        )
    elif (
        kind == "dumper"
    ):  # a body that widens upwards, sometimes half tipped, a roof over the cab, and a heap
        shape.box(
            (middle, 0, bed + 0.3), (half, width * 1.08, draw(0.16, 0.25)),
            front=(-draw(0, 0.3), 0), back=(-draw(0.1, 0.6), 0), side=-draw(0, 0.25), turned=(0, draw(0, 24), 0),
        )  # fmt: skip
        shape.box((front + 0.02, 0, bed + draw(0.5, 0.62)), (0.1, width, 0.03), edge=0.01)
        shape.ellipsoid((middle, 0, bed + 0.46), (half * 0.8, width * 0.8, draw(0.04, 0.2)))
    elif kind == "tanker":  # a horizontal tank and its dome
        shape.cylinder(
            (middle, 0, bed + 0.1 + width), width * draw(0.85, 1.12), half, "x", edge=0.09
        )
        shape.cylinder((middle + draw(-0.2, 0.2), 0, bed + 0.12 + 2 * width), 0.1, 0.06, "z")
    elif kind == "semi-trailer":
        height = draw(0.26, 0.4)
        shape.box((middle - 0.06, 0, bed + 0.08 + height), (half - 0.06, width * 1.05, height))
    elif kind == "flatbed":
        shape.box((middle, 0, bed + 0.12), (half, width * 1.05, 0.045), edge=0.015)
        if draw.chance(0.5):  # a fire engine's body and ladder
            shape.box((middle, 0, bed + 0.28), (half, width, 0.17))
            ladder = (draw(0.5, 0.75), 0.085, 0.03)
            shape.box((middle + 0.1, 0, bed + 0.6), ladder, edge=0.015, turned=(0, draw(-4, 16), 0))
            shape.cylinder((middle - 0.25, 0, bed + 0.5), 0.12, 0.1, "z")
        else:  # stakes and cargo
            shape.box((front - 0.02, 0, bed + 0.3), (0.03, width, 0.2), edge=0.01)
            cargo = (middle - half * draw(0, 0.4), 0, bed + 0.3)
            shape.box(cargo, (half * draw(0.3, 0.5), width * 0.75, draw(0.13, 0.2)))
            shape.box((middle, width, bed + 0.22), (half, 0.02, 0.06), edge=0.01, mirrored=True)
    elif kind == "pickup":  # two sides, a tailgate, a floor, and a load in some
        shape.box((middle, width * 0.93, bed + 0.16), (half, 0.03, 0.13), mirrored=True)
        shape.box((-length + 0.03, 0, bed + 0.16), (0.03, width * 0.9, 0.13))
        shape.box((middle, 0, bed + 0.07), (half, width * 0.9, 0.03), edge=0.01)
        if draw.chance(0.5):
            shape.box((middle, 0, bed + 0.24), (half * 0.6, width * 0.6, 0.14), edge=0.03)
    else:  # a mixer's tilted drum, its funnel and its pump
        drum = (half * 1.05, width * 1.05, draw(0.28, 0.36))
        shape.ellipsoid((middle + 0.04, 0, bed + 0.48), drum, turned=(0, draw(8, 20), 0))
        shape.cylinder((-length + 0.1, 0, bed + 0.62), 0.12, 0.1, "z")
        shape.box((front - 0.1, 0, bed + 0.2), (0.1, width * 0.7, 0.2))
