"""Toys of toynorb: distances that are distances, and 50 toys that stand on the table, whole in the image."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from capsule_lab.data.standins.toynorb import airplanes, animals, cars, humans, toys, trucks
from capsule_lab.data.standins.toynorb.camera import rays, view
from capsule_lab.data.standins.toynorb.light import shade
from capsule_lab.data.standins.toynorb.rng import ToyRandom
from capsule_lab.data.standins.toynorb.shapes import Shape, cosine_and_sine
from capsule_lab.data.standins.toynorb.toys import (
    CATEGORIES,
    INSTANCES,
    TEST_INSTANCES,
    TRAIN_INSTANCES,
    kind_of,
    make_toy,
)

TOYS = [
    pytest.param(category, instance, id=f"{name}-{instance}")
    for category, name in enumerate(CATEGORIES)
    for instance in range(INSTANCES)
]
toy_of = functools.cache(make_toy)


def distance(shape: Shape, x: float, y: float, z: float) -> float:
    (found,) = shape.distance(*(np.array([value], np.float32) for value in (x, y, z)))
    assert found.dtype == np.float32
    return float(found)


def ball(**how) -> Shape:
    shape = Shape(blend=0)
    shape.ellipsoid((0, 0.5, 1), (0.25, 0.25, 0.25), **how)
    return shape


def rod(**how) -> Shape:
    shape = Shape(blend=0)
    shape.capsule((0, 0, 1), (1, 0, 1), 0.1, 0.3, **how)
    return shape


def tin(axis: str, **how) -> Shape:
    shape = Shape(blend=0)
    shape.cylinder((0, 0, 1), 0.2, 0.5, axis, edge=0.01, **how)
    return shape


def block(**how) -> Shape:
    shape = Shape(blend=0)
    shape.box((0, 0, 1), (0.5, 0.3, 0.2), edge=0.01, **how)
    return shape


@pytest.mark.parametrize(
    ("shape", "point", "expected"),
    [
        (ball(), (0, 0.5, 1.5), 0.25),
        (ball(), (0, -0.5, 1), 0.75),
        (ball(mirrored=True), (0, -0.5, 1.5), 0.25),
        (rod(), (0, 0, 1.5), 0.4),
        (rod(), (0.5, 0, 1.5), 0.3),
        (rod(), (2, 0, 1), 0.7),
        (tin("x"), (0.8, 0, 1), 0.3),
        (tin("x"), (0, 0.4, 1), 0.2),
        (tin("y"), (0, 0.8, 1), 0.3),
        (tin("z"), (0, 0, 1.8), 0.3),
        (tin("z"), (0.4, 0, 1), 0.2),
        (tin("x", turned=(90, 0, 0)), (0, 0.8, 1), 0.3),
        (tin("x", turned=(0, 90, 0)), (0, 0, 0.2), 0.3),
        (tin("y", turned=(0, 0, 90)), (0, 0, 1.8), 0.3),
        (block(), (0.8, 0, 1), 0.3),
        (block(), (0, -0.8, 1), 0.5),
        (block(), (0, 0, 1.8), 0.6),
        (block(), (0.5 + 0.3, 0.3 + 0.4, 1), 0.5),
        (block(), (0, 0, 1), -0.2),
    ],
)  # fmt: skip
def test_distance_to_a_primitive(shape, point, expected):
    assert distance(shape, *point) == pytest.approx(expected, abs=0.006)  # rounded edges


@pytest.mark.parametrize(
    ("lean", "nearer", "farther"),
    [
        ({"front": (1, 0)}, (0.8, 0, 0.9), (0.8, 0, 1.1)),
        ({"front": (0, 1)}, (0.8, -0.2, 1), (0.8, 0.2, 1)),
        ({"back": (1, 0)}, (-0.8, 0, 0.9), (-0.8, 0, 1.1)),
        ({"back": (0, 1)}, (-0.8, -0.2, 1), (-0.8, 0.2, 1)),
        ({"side": 1}, (0, 0.8, 0.9), (0, 0.8, 1.1)),
        ({"side": 1}, (0, -0.8, 0.9), (0, -0.8, 1.1)),
    ],
    ids=str,
)
def test_faces_lean(lean, nearer, farther):
    assert distance(block(**lean), *nearer) < distance(block(**lean), *farther) - 0.1
    assert distance(block(), *nearer) == pytest.approx(distance(block(), *farther))


@pytest.mark.parametrize(("blend", "expected"), [(0, 0.1), (0.2, 0.05)])
def test_parts_melt_into_each_other(blend, expected):
    shape = Shape(blend=blend)
    for x in (-0.2, 0.2):
        shape.ellipsoid((x, 0, 1), (0.1, 0.1, 0.1))
    assert distance(shape, 0, 0, 1) == pytest.approx(expected)


@pytest.mark.parametrize("degrees", [-350, -90, 0, 30, 45.5, 180])
def test_cosine_and_sine(degrees):
    exact = (math.cos(math.radians(degrees)), math.sin(math.radians(degrees)))
    found = cosine_and_sine(degrees)
    assert found == pytest.approx(exact, abs=5.1e-7)
    assert found == tuple(round(value, 6) for value in found)


def test_numbers_are_the_same_everywhere():
    draw = ToyRandom(3, 7, 11)
    assert [draw(1, 2), draw(-5, 5), draw.chance(0.5), draw.chance(1), draw.chance(0)] == [
        1.172818397085914, -1.7348803881298123, True, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize("other", [(3, 7, 12), (3, 8, 11), (4, 7, 11)])
def test_every_toy_has_numbers_of_its_own(other):
    assert ToyRandom(3, 7, 11)(0, 1) != ToyRandom(*other)(0, 1)


def test_instances_are_smallnorbs():
    assert sorted(TRAIN_INSTANCES + TEST_INSTANCES) == list(range(INSTANCES))
    assert CATEGORIES == ("animal", "human", "airplane", "truck", "car")


@pytest.mark.parametrize("category", range(5))
def test_test_toys_are_of_kinds_seen_and_unseen(category):
    train, test = ({kind_of(category, i) for i in which} for which in (TRAIN_INSTANCES, TEST_INSTANCES))
    assert (len(train), len(test - train), len(train | test)) == (5, 2, 7)
    assert len(train | test) == len((animals, humans, airplanes, trucks, cars)[category].KINDS)


@pytest.mark.parametrize(("category", "instance"), TOYS)
def test_toy_is_within_what_is_scanned(category, instance):
    toy = toy_of(category, instance)
    assert max(*(abs(edge) for edge in toy.low[:2]), *toy.high[:2]) < 1.6
    assert 0.3 < toy.high[2] < 2.3
    assert toy.low[2] == 0
    assert 0.5 < toy.extent < 1.6
    assert abs(toy.heading) <= 12


@pytest.mark.parametrize(("category", "instance"), TOYS)
def test_toy_stands_on_the_table(category, instance):
    toy = toy_of(category, instance)
    grid = np.arange(-1.6, 1.6, 0.04).astype(np.float32)
    x, y = np.meshgrid(grid, grid)
    assert -0.15 < toy.shape.distance(x, y, np.zeros_like(x)).min() < 0.03  # some trunks rest on it


@pytest.mark.parametrize(("category", "instance"), TOYS)
def test_toy_is_completely_in_the_image(category, instance):
    """From all sides, with room to spare: not on the two outermost rows and columns of 48."""
    toy, size = toy_of(category, instance), 48
    views = [view(toy, elevation, azimuth, -1) for elevation, azimuth in ((30, 0), (30, 100), (70, 60))]
    middles = ((np.arange(size) + 0.5) * 2 / size - 1).astype(np.float32)
    upwards, across = (np.tile(grid.ravel(), 3) for grid in np.meshgrid(-middles, middles, indexing="ij"))
    seen = shade(toy, rays(views, np.repeat(np.arange(3), size * size), across, upwards), [0])
    assert [part.dtype for part in (seen.radiance, seen.depth, seen.normal)] == [np.float32] * 3
    images = seen.toy.reshape(3, size, size)
    assert np.all((images.mean(axis=(1, 2)) > 0.02) & (images.mean(axis=(1, 2)) < 0.5))
    assert not np.any(images[:, [0, 1, -2, -1]])
    assert not np.any(images[:, :, [0, 1, -2, -1]])


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("category", "instance"), [(0, 3), (1, 2), (2, 1), (3, 3), (4, 5)])
def test_other_seeds_make_other_toys_that_fit(category, instance, seed):
    toy = make_toy(category, instance, seed)
    assert toy.extent != toy_of(category, instance).extent
    assert max(*(abs(edge) for edge in toy.low[:2]), *toy.high[:2]) < 1.6
    assert toy.high[2] < 2.3


def test_what_the_box_holds_is_the_toy():
    shape = Shape(blend=0)
    shape.box((0.2, 0, 0.4), (0.8, 0.3, 0.4), edge=0.001)
    toy = toys.on_the_table(shape, 5.0)
    assert toy.low == pytest.approx((-0.6, -0.3, 0), abs=0.1)
    assert toy.high == pytest.approx((1, 0.3, 0.8), abs=0.1)
    assert toy.centre == pytest.approx((0.2, 0, 0.4), abs=0.05)
    corner = math.hypot(0.8, 0.3) * math.sin(math.radians(70)) + 0.4 * math.cos(math.radians(70))  # from high above
    assert toy.extent == pytest.approx(corner, abs=0.05)
    assert toy.heading == 5
