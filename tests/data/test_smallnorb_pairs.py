"""Pairs of neighbouring views of a toy, and the rotation of the camera between them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from capsule_lab.data import SmallNORBPairsDataModule
from capsule_lab.data.loader import Images
from capsule_lab.data.smallnorb_pairs import ViewPairs, camera_rotation, neighbouring_views
from toynorb.camera import view
from toynorb.toys import make_toy

CAR = 4


def toys(elevations: int = 9) -> Images:
    """Images of 2x1x1 pixels with smallNORB's factors, shuffled."""
    levels = torch.arange(2), torch.arange(elevations), 2 * torch.arange(18), torch.arange(2)
    factors = torch.cartesian_prod(*levels)
    factors = factors[torch.randperm(len(factors), generator=torch.Generator().manual_seed(0))]
    return Images(
        torch.zeros(len(factors), 2, 1, 1, dtype=torch.uint8),
        torch.full((len(factors),), CAR),
        factors,
    )


def angles(*degrees: int) -> list[Tensor]:
    return [torch.tensor([angle]) for angle in degrees]


GOLDEN = [  # computed once by an independent program, from the camera's azimuth and elevation in degrees
    [0.93969262, 0.17101007, -0.29619813],
    [-0.19617469, 0.97889925, -0.05719915],
    [0.28016650, 0.11185620, 0.95341225],
]


def test_rotation_equals_golden_values() -> None:
    rotation = camera_rotation(*angles(0, 30, 20, 35))[0]
    torch.testing.assert_close(rotation, torch.tensor(GOLDEN), atol=1e-7, rtol=0)
    elevation_alone = torch.tensor(
        [[1, 0, 0], [0, 0.9961947, -0.08715574], [0, 0.08715574, 0.9961947]]
    )
    torch.testing.assert_close(
        camera_rotation(*angles(70, 30, 70, 35))[0], elevation_alone, atol=1e-7, rtol=0
    )


def test_rotations_compose_from_the_left() -> None:
    first, second = (
        camera_rotation(*angles(0, 30, 20, 35))[0],
        camera_rotation(*angles(20, 35, 60, 40))[0],
    )
    both = camera_rotation(*angles(0, 30, 60, 40))[0]
    torch.testing.assert_close(second @ first, both, atol=1e-6, rtol=0)
    assert not torch.allclose(first @ second, both, atol=1e-3)
    torch.testing.assert_close(
        camera_rotation(*angles(140, 30, 160, 35))[0], first, atol=1e-6, rtol=0
    )


@pytest.mark.parametrize(("azimuth", "elevation"), [(0, 30), (20, 35), (140, 70)])
def test_rotation_is_that_of_the_rendering_camera(azimuth: int, elevation: int) -> None:
    def frame(elevation: int, azimuth: int) -> np.ndarray:
        seen = view(make_toy(CAR, 0), elevation, azimuth, 0)
        rows = np.array([seen.right, seen.up, [-value for value in seen.forward]])
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    rotation = camera_rotation(*angles(0, 30, azimuth, elevation))[0].double().numpy()
    np.testing.assert_allclose(rotation, frame(elevation, azimuth) @ frame(30, 0).T, atol=1e-5)


def test_neighbouring_views_equal_those_of_a_loop() -> None:
    """Azimuths are cyclic and elevations are not."""
    images = toys(elevations=3)
    neighbours, counts = neighbouring_views(images)
    assert {*counts.tolist()} == {6, 9}
    rows = images.factors.tolist()
    for number, (instance, elevation, azimuth, lighting) in enumerate(rows[:40]):
        expected = {
            other
            for other, (i, e, a, light) in enumerate(rows)
            if (i, light) == (instance, lighting)
            and abs(e - elevation) <= 1
            and (a - azimuth) % 36 in (0, 2, 34)
        }
        assert {*neighbours[number, : counts[number]].tolist()} == expected
        assert (neighbours[number, counts[number] :] == -1).all()


def test_pair_has_one_toy_and_lighting_and_the_rotation_between_its_views() -> None:
    images = toys()
    numbers = torch.arange(len(images.labels))
    pixels = torch.stack([numbers // 256, numbers % 256], 1).to(torch.uint8).view(-1, 2, 1, 1)
    pairs = ViewPairs(images._replace(images=pixels), 0, size=len(numbers), fixed=True)
    batch = pairs[numbers, 0]
    partner = 256 * batch.images[:, 2, 0, 0].long() + batch.images[:, 3, 0, 0].long()
    assert (batch.images[:, :2] == pixels).all()
    first, second = images.factors, images.factors[partner]
    assert first[:, [0, 3]].equal(second[:, [0, 3]])
    expected = camera_rotation(
        10 * first[:, 2], 30 + 5 * first[:, 1], 10 * second[:, 2], 30 + 5 * second[:, 1]
    )
    torch.testing.assert_close(batch.change, expected)
    steps = torch.stack([(second[:, 2] - first[:, 2]) % 36, second[:, 1] - first[:, 1]], 1)
    assert len(torch.unique(steps, dim=0)) == 9
    for fixed, same in [(True, True), (False, False)]:
        pairs = ViewPairs(images, 0, size=100, fixed=fixed)
        one, other = (pairs[numbers[:100], epoch].change for epoch in (0, 1))
        assert one.equal(other) is same


def test_pairs_are_whole_images_of_cars(toynorb: Path) -> None:
    module = SmallNORBPairsDataModule(directory=str(toynorb), source="standin", eval_images=7)
    module.setup("fit")
    module.setup("test")
    assert module.spec.image_shape == (2, 48, 48)
    assert module.spec.change == (3, 3)
    for name in ("train", "val", "test"):
        assert {*module.sets[name].labels.tolist()} == {CAR}
        batch = module.transform_batch(module.dataset(name)[torch.arange(3), 0], name)
        assert batch.targets.shape == batch.images.shape == (3, 2, 48, 48)
        torch.testing.assert_close(batch.images.mean((1, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
        stored = module.dataset(name)[torch.arange(3), 0]
        torch.testing.assert_close(module.unpaired_batch(stored, name).images, batch.images)
    assert len(module.dataset("test")) == 7
    assert "pairs of views of car" in module.provenance["name"]
