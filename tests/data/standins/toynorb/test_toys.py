"""Toys of toynorb: distances that are distances, and 50 toys that stand on the table, whole in the image."""

from __future__ import annotations

import functools
import math
from itertools import product

import numpy as np
import pytest

from capsule_lab.data.standins.toynorb import airplanes, animals, cars, humans, toys, trucks
from capsule_lab.data.standins.toynorb.camera import view
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
from tests.helpers.toynorb_images import pixels

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


DISTANCES = [
    (ball(), (0, 0.5, 1.5), 0.25), (ball(), (0, -0.5, 1), 0.75), (ball(mirrored=True), (0, -0.5, 1.5), 0.25),
    (rod(), (0, 0, 1.5), 0.4), (rod(), (0.5, 0, 1.5), 0.3), (rod(), (2, 0, 1), 0.7),
    (tin("x"), (0.8, 0, 1), 0.3), (tin("x"), (0, 0.4, 1), 0.2), (tin("y"), (0, 0.8, 1), 0.3),
    (tin("z"), (0, 0, 1.8), 0.3), (tin("z"), (0.4, 0, 1), 0.2),
    (tin("x", turned=(90, 0, 0)), (0, 0.8, 1), 0.3), (tin("x", turned=(0, 90, 0)), (0, 0, 0.2), 0.3),
    (tin("y", turned=(0, 0, 90)), (0, 0, 1.8), 0.3),
    (block(), (0.8, 0, 1), 0.3), (block(), (0, -0.8, 1), 0.5), (block(), (0, 0, 1.8), 0.6),
    (block(), (0.5 + 0.3, 0.3 + 0.4, 1), 0.5), (block(), (0, 0, 1), -0.2),
]  # fmt: skip
LEANING = [  # a face that leans; a point that is nearer to it, and one that is farther
    ({"front": (1, 0)}, (0.8, 0, 0.9), (0.8, 0, 1.1)),
    ({"front": (0, 1)}, (0.8, -0.2, 1), (0.8, 0.2, 1)),
    ({"back": (1, 0)}, (-0.8, 0, 0.9), (-0.8, 0, 1.1)),
    ({"back": (0, 1)}, (-0.8, -0.2, 1), (-0.8, 0.2, 1)),
    ({"side": 1}, (0, 0.8, 0.9), (0, 0.8, 1.1)),
    ({"side": 1}, (0, -0.8, 0.9), (0, -0.8, 1.1)),
]


def test_distance_to_a_primitive():
    for shape, point, expected in DISTANCES:
        assert distance(shape, *point) == pytest.approx(expected, abs=0.006), point  # rounded edges


def test_faces_lean():
    for lean, nearer, farther in LEANING:
        assert distance(block(**lean), *nearer) < distance(block(**lean), *farther) - 0.1, lean
        assert distance(block(), *nearer) == pytest.approx(distance(block(), *farther))


def test_distances_are_found_in_any_shape_and_number():
    points = np.random.default_rng(0).uniform(-1, 1, (3, 3, 1000)).astype(np.float32)
    together = tin("x", turned=(10, 20, 30)).distance(*points)
    assert (together.shape, together.dtype) == ((3, 1000), np.float32)
    alone = [distance(tin("x", turned=(10, 20, 30)), *points[:, row, column]) for row, column in ((0, 0), (2, 999))]
    assert alone == [together[0, 0], together[2, 999]]


def test_parts_melt_into_each_other():
    for blend, expected in ((0, 0.1), (0.2, 0.05)):
        shape = Shape(blend=blend)
        for x in (-0.2, 0.2):
            shape.ellipsoid((x, 0, 1), (0.1, 0.1, 0.1))
        assert distance(shape, 0, 0, 1) == pytest.approx(expected)


def test_numbers_are_the_same_everywhere():
    for degrees in (-350, -90, 0, 30, 45.5, 180):
        exact, found = (math.cos(math.radians(degrees)), math.sin(math.radians(degrees))), cosine_and_sine(degrees)
        assert found == pytest.approx(exact, abs=5.1e-7)
        assert found == tuple(round(value, 6) for value in found)
    draw = ToyRandom(3, 7, 11)
    assert [draw(1, 2), draw(-5, 5), draw.chance(0.5), draw.chance(1), draw.chance(0)] == [
        1.172818397085914, -1.7348803881298123, True, True, False,
    ]  # fmt: skip
    for other in ((3, 7, 12), (3, 8, 11), (4, 7, 11)):
        assert ToyRandom(3, 7, 11)(0, 1) != ToyRandom(*other)(0, 1)


def test_instances_and_kinds_are_those_of_both_splits():
    assert sorted(TRAIN_INSTANCES + TEST_INSTANCES) == list(range(INSTANCES))
    assert CATEGORIES == ("animal", "human", "airplane", "truck", "car")
    for category, module in enumerate((animals, humans, airplanes, trucks, cars)):
        train, test = ({kind_of(category, i) for i in which} for which in (TRAIN_INSTANCES, TEST_INSTANCES))
        assert (len(train), len(test - train), len(train | test)) == (5, 2, 7) == (5, 2, len(module.KINDS))


@pytest.mark.parametrize("category", range(5))
def test_toys_stand_on_the_table_within_what_is_scanned_and_seen(category):
    """From all sides, with room to spare: not on the two outermost rows and columns of 48."""
    grid = np.arange(-1.6, 1.6, 0.04).astype(np.float32)
    x, y = np.meshgrid(grid, grid)
    for instance in range(INSTANCES):
        toy = toy_of(category, instance)
        assert max(*(abs(edge) for edge in toy.low[:2]), *toy.high[:2]) < 1.6
        assert 0.3 < toy.high[2] < 2.3
        assert toy.low[2] == 0
        assert 0.5 < toy.extent < 1.6
        assert abs(toy.heading) <= 12
        assert -0.15 < toy.shape.distance(x, y, np.zeros_like(x)).min() < 0.03  # some trunks rest on it
        for elevation, azimuth in ((30, 0), (30, 100), (70, 60)):
            seen = shade(toy, view(toy, elevation, azimuth, -1), *pixels(48), [0])
            assert [part.dtype for part in (seen.radiance, seen.depth, seen.normal)] == [np.float32] * 3
            image = seen.toy.reshape(48, 48)
            assert 0.02 < image.mean() < 0.5
            assert not image[[0, 1, -2, -1]].any()
            assert not image[:, [0, 1, -2, -1]].any()


def test_other_seeds_make_other_toys_that_fit():
    for (category, instance), seed in product([(0, 3), (1, 2), (2, 1), (3, 3), (4, 5)], (1, 2)):
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
