"""Pairs of neighbouring views of a toy, and the rotation of the camera between them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor
from torch.testing import assert_close

from capsule_lab.data import SmallNORBPairsDataModule
from capsule_lab.data.loader import Images
from capsule_lab.data.smallnorb_pairs import ViewPairs, camera_rotation, neighbouring_views
from toynorb.camera import view
from toynorb.toys import Toy, make_toy

CAR = 4


def toys(elevations: int = 9) -> Images:
    """Images of 2x1x1 pixels with smallNORB's factors, shuffled."""
    factors = torch.cartesian_prod(
        torch.arange(2), torch.arange(elevations), 2 * torch.arange(18), torch.arange(2)
    )
    number = len(factors)
    order = torch.randperm(number, generator=torch.Generator().manual_seed(0))
    pixels = torch.zeros(number, 2, 1, 1, dtype=torch.uint8)
    return Images(pixels, torch.full((number,), CAR), factors[order])


def rotation(*degrees: int) -> Tensor:
    """``camera_rotation`` for azimuth and elevation of two cameras."""
    angles = [torch.tensor([angle]) for angle in degrees]
    return camera_rotation(*angles)[0]


# both computed once by an independent program, from the camera's azimuth and elevation in degrees
BOTH_ANGLES = [
    [0.93969262, 0.17101007, -0.29619813],
    [-0.19617469, 0.97889925, -0.05719915],
    [0.28016650, 0.11185620, 0.95341225],
]
ELEVATION_ALONE = [
    [1.0, 0.0, 0.0],
    [0.0, 0.9961947, -0.08715574],
    [0.0, 0.08715574, 0.9961947],
]


@pytest.mark.parametrize(
    ("cameras", "golden"),
    [
        ((0, 30, 20, 35), BOTH_ANGLES),
        ((70, 30, 70, 35), ELEVATION_ALONE),
    ],
)
def test_rotation_equals_golden_values(cameras: tuple[int, ...], golden: list[list[float]]) -> None:
    expected = torch.tensor(golden)
    assert_close(rotation(*cameras), expected, atol=1e-7, rtol=0)


def test_rotations_compose_from_the_left() -> None:
    first = rotation(0, 30, 20, 35)
    second = rotation(20, 35, 60, 40)
    both = rotation(0, 30, 60, 40)
    assert_close(second @ first, both, atol=1e-6, rtol=0)
    assert not torch.allclose(first @ second, both, atol=1e-3)
    from_elsewhere = rotation(140, 30, 160, 35)
    assert_close(from_elsewhere, first, atol=1e-6, rtol=0)


@pytest.fixture(scope="module")
def car() -> Toy:
    return make_toy(CAR, 0)


def frame(toy: Toy, elevation: int, azimuth: int) -> np.ndarray:
    """The axes of the rendering camera: right, up, and towards the viewer."""
    seen = view(toy, elevation, azimuth, 0)
    backward = [-value for value in seen.forward]
    rows = np.array([seen.right, seen.up, backward])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize(("azimuth", "elevation"), [(0, 30), (20, 35), (140, 70)])
def test_rotation_is_that_of_the_rendering_camera(car: Toy, azimuth: int, elevation: int) -> None:
    expected = frame(car, elevation, azimuth) @ frame(car, 30, 0).T
    found = rotation(0, 30, azimuth, elevation)
    assert_allclose(found, expected, atol=1e-5)


def test_neighbouring_views_equal_those_of_a_loop() -> None:
    """Azimuths are cyclic and elevations are not."""
    images = toys(elevations=3)
    neighbours, counts = neighbouring_views(images)
    assert {*counts.tolist()} == {6, 9}
    rows = images.factors.tolist()
    for number, row in enumerate(rows[:40]):
        expected = {other for other, another in enumerate(rows) if are_neighbours(row, another)}
        count = counts[number]
        found = neighbours[number, :count]
        padding = neighbours[number, count:]
        assert {*found.tolist()} == expected
        assert (padding == -1).all()


def are_neighbours(one: list[int], other: list[int]) -> bool:
    instance, elevation, azimuth, lighting = one
    other_instance, other_elevation, other_azimuth, other_lighting = other
    if (instance, lighting) != (other_instance, other_lighting):
        return False
    turn = (other_azimuth - azimuth) % 36
    return abs(other_elevation - elevation) <= 1 and turn in (0, 2, 34)


def test_pair_has_one_toy_and_lighting_and_the_rotation_between_its_views() -> None:
    images = toys()
    numbers = torch.arange(len(images.labels))
    # two channels of 8 bits hold the number of an image
    channels = torch.stack([numbers // 256, numbers % 256], 1)
    pixels = channels.to(torch.uint8).view(-1, 2, 1, 1)
    numbered = images._replace(images=pixels)
    pairs = ViewPairs(numbered, 0, size=len(numbers), fixed=True)
    batch = pairs[numbers, 0]
    own = batch.images[:, :2]
    high, low = batch.images[:, 2:, 0, 0].long().T
    assert own.equal(pixels)
    partner = 256 * high + low
    instance, elevation, azimuth, lighting = images.factors.T
    other_instance, other_elevation, other_azimuth, other_lighting = images.factors[partner].T
    assert other_instance.equal(instance)
    assert other_lighting.equal(lighting)
    expected = camera_rotation(
        10 * azimuth,
        30 + 5 * elevation,
        10 * other_azimuth,
        30 + 5 * other_elevation,
    )
    assert_close(batch.change, expected)
    turn = (other_azimuth - azimuth) % 36
    rise = other_elevation - elevation
    steps = torch.stack([turn, rise], 1)
    assert len(steps.unique(dim=0)) == 9


@pytest.mark.parametrize("fixed", [True, False])
def test_only_pairs_that_are_fixed_are_the_same_in_every_epoch(fixed: bool) -> None:
    pairs = ViewPairs(toys(), 0, size=100, fixed=fixed)
    index = torch.arange(100)
    first_epoch = pairs[index, 0]
    second_epoch = pairs[index, 1]
    assert first_epoch.change.equal(second_epoch.change) is fixed


def test_pairs_are_whole_images_of_cars(toynorb: Path) -> None:
    module = SmallNORBPairsDataModule(directory=str(toynorb), source="standin", eval_images=7)
    module.setup("fit")
    module.setup("test")
    assert module.spec.image_shape == (2, 48, 48)
    assert module.spec.change == (3, 3)
    for name in ("train", "val", "test"):
        labels = module.sets[name].labels
        assert (labels == CAR).all()
        stored = module.dataset(name)[torch.arange(3), 0]
        batch = module.transform_batch(stored, name)
        assert batch.images.shape == (3, 2, 48, 48)
        assert batch.targets.shape == (3, 2, 48, 48)
        means = batch.images.mean((1, 2, 3))
        assert_close(means, torch.zeros(3), atol=1e-4, rtol=0)
        unpaired = module.unpaired_batch(stored, name)
        assert_close(unpaired.images, batch.images)
    assert len(module.dataset("test")) == 7
    assert "pairs of views of car" in module.provenance["name"]
