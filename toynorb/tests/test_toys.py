"""Toys of toynorb: distance functions, and 50 toys that stand on the table inside the image."""

import functools
import hashlib
import math
from itertools import product

import numpy as np
import pytest

import toynorb
from toynorb import airplanes, animals, cars, humans, trucks
from toynorb.camera import view
from toynorb.rendering import pixels, shade
from toynorb.shapes import Shape
from toynorb.toys import make_toy, on_the_table

toy_of = functools.cache(make_toy)


def distance(shape: Shape, x: float, y: float, z: float) -> float:
    point = np.array([[x], [y], [z]], np.float32)
    (found,) = shape.distance(*point)
    assert found.dtype == np.float32
    return float(found)


def one(primitive: str, *measures, **how) -> Shape:
    shape = Shape(blend=0)
    getattr(shape, primitive)(*measures, **how)
    return shape


ball = functools.partial(one, "ellipsoid", (0, 0.5, 1), (0.25, 0.25, 0.25))
rod = functools.partial(one, "capsule", (0, 0, 1), (1, 0, 1), 0.1, 0.3)
tin = functools.partial(one, "cylinder", (0, 0, 1), 0.2, 0.5, edge=0.01)
block = functools.partial(one, "box", (0, 0, 1), (0.5, 0.3, 0.2), edge=0.01)

DISTANCES = [
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
]
LEANING = [  # a face that leans; a point that is nearer to it, and one that is farther
    ({"front": (1, 0)}, (0.8, 0, 0.9), (0.8, 0, 1.1)),
    ({"front": (0, 1)}, (0.8, -0.2, 1), (0.8, 0.2, 1)),
    ({"back": (1, 0)}, (-0.8, 0, 0.9), (-0.8, 0, 1.1)),
    ({"back": (0, 1)}, (-0.8, -0.2, 1), (-0.8, 0.2, 1)),
    ({"side": 1}, (0, 0.8, 0.9), (0, 0.8, 1.1)),
    ({"side": 1}, (0, -0.8, 0.9), (0, -0.8, 1.1)),
]


def test_distances_are_those_of_the_shapes():
    for shape, point, expected in DISTANCES:
        assert distance(shape, *point) == pytest.approx(expected, abs=0.006), point  # rounded edges
    for lean, nearer, farther in LEANING:
        shape = block(**lean)
        assert distance(shape, *nearer) < distance(shape, *farther) - 0.1, lean


def test_union_of_parts_is_smooth():
    for blend, expected in ((0, 0.1), (0.2, 0.05)):
        shape = Shape(blend=blend)
        for x in (-0.2, 0.2):
            shape.ellipsoid((x, 0, 1), (0.1, 0.1, 0.1))
        assert distance(shape, 0, 0, 1) == pytest.approx(expected)


def kinds_of(category: int, instances: tuple[int, ...]) -> set[str]:
    return {toynorb.kind_of(category, instance) for instance in instances}


def test_splits_together_have_all_instances_and_kinds():
    instances = [*toynorb.TRAIN_INSTANCES, *toynorb.TEST_INSTANCES]
    assert sorted(instances) == list(range(toynorb.INSTANCES))
    assert toynorb.CATEGORIES == ("animal", "human", "airplane", "truck", "car")
    for category, module in enumerate((animals, humans, airplanes, trucks, cars)):
        train = kinds_of(category, toynorb.TRAIN_INSTANCES)
        test = kinds_of(category, toynorb.TEST_INSTANCES)
        assert len(train) == 5
        assert len(test - train) == 2
        assert train | test == {*module.KINDS}
        assert len(module.KINDS) == 7


def test_toys_have_the_recorded_hash():
    """All parts of all toys in order; ``test_pixels_have_the_recorded_hashes`` covers the images."""
    digest = hashlib.sha256()
    for category, instance in product(range(5), range(10)):
        parts, box = toy_of(category, instance).parts_and_box
        digest.update(parts.tobytes())
        digest.update(box.tobytes())
    assert digest.hexdigest()[:16] == "25856fd1308ba3ea"


@pytest.mark.parametrize("category", range(5))
def test_toy_stands_on_the_table_inside_the_scanned_box(category):
    """From all sides, and never on the two outermost rows and columns of 48."""
    grid = np.arange(-1.6, 1.6, 0.04).astype(np.float32)
    x, y = np.meshgrid(grid, grid)
    table = np.zeros_like(x)
    for instance in range(10):
        toy = toy_of(category, instance)
        low_x, low_y, low_z = toy.low
        high_x, high_y, high_z = toy.high
        assert -1.6 < low_x < high_x < 1.6
        assert -1.6 < low_y < high_y < 1.6
        assert low_z == 0
        assert 0.3 < high_z < 2.3
        assert 0.5 < toy.extent < 1.6
        assert abs(toy.heading) <= 12
        assert -0.15 < toy.shape.distance(x, y, table).min() < 0.03  # some trunks rest on it
        for elevation, azimuth in ((30, 0), (30, 100), (70, 60)):
            seen = shade(toy, view(toy, elevation, azimuth, -1), *pixels(48), [0])
            is_toy = seen.toy.reshape(48, 48)
            assert 0.02 < is_toy.mean() < 0.5
            assert not is_toy[[0, 1, -2, -1]].any()
            assert not is_toy[:, [0, 1, -2, -1]].any()


def test_box_contains_the_whole_toy():
    toy = on_the_table(one("box", (0.2, 0, 0.4), (0.8, 0.3, 0.4), edge=0.001), 5.0)
    assert toy.low == pytest.approx((-0.6, -0.3, 0), abs=0.1)
    assert toy.high == pytest.approx((1, 0.3, 0.8), abs=0.1)
    assert toy.centre == pytest.approx((0.2, 0, 0.4), abs=0.05)
    above = math.radians(70)
    corner = math.hypot(0.8, 0.3) * math.sin(above) + 0.4 * math.cos(above)
    assert toy.extent == pytest.approx(corner, abs=0.05)
