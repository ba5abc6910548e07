"""Pairs of views of one image: shifts without wrap-around, and affine matrices that compose."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from capsule_lab.data import MNISTPairsDataModule
from capsule_lab.data.transforms import affine_matrix, sample_key

IMAGES = torch.arange(200)
KEY = sample_key(0, 0, IMAGES)


def standin(**options: Any) -> MNISTPairsDataModule:
    return MNISTPairsDataModule(source="standin", **options)


def moved(image: Tensor, right: int, down: int) -> Tensor:
    """A shift, pixel by pixel; pixels from outside are 0."""
    height, width = image.shape[1:]
    shifted = torch.zeros_like(image)
    for row, column in product(range(height), range(width)):
        to_row = row + down
        to_column = column + right
        if 0 <= to_row < height and 0 <= to_column < width:
            shifted[:, to_row, to_column] = image[:, row, column]
    return shifted


@pytest.mark.parametrize("which", ["both", "target"])
@pytest.mark.parametrize("largest", [0, 1, 2, 5])
def test_second_image_is_the_first_shifted_by_the_change(which: Any, largest: int) -> None:
    """In all pixels that both images have. No pixel wraps around, as with ``roll``."""
    images = torch.rand(40, 2, 16, 16)
    module = standin(shift=largest, moved=which)
    pair = module.pair(images, KEY[:40])
    farthest = largest if which == "target" else 2 * largest
    margin = 0 if which == "target" else farthest
    inside = slice(margin, 16 - margin)
    for first, second, change in zip(*pair, strict=True):
        right, down = map(int, change)
        expected = moved(first, right, down)[:, inside, inside]
        found = second[:, inside, inside]
        assert found.equal(expected)
    assert pair.change.abs().max() <= farthest
    first_stays = which == "target" or largest == 0
    assert pair.first.equal(images) is first_stays


def test_shifts_cover_their_range_and_axes_are_independent() -> None:
    images = torch.rand(5000, 1, 8, 8)
    key = sample_key(1, 0, torch.arange(5000))
    change = standin().pair(images, key).change
    values = change.unique()
    assert values.tolist() == [-4, -3, -2, -1, 0, 1, 2, 3, 4]
    correlations = torch.corrcoef(change.T)
    assert correlations[0, 1].abs() < 0.05


def blob(x: float, y: float, size: int = 28) -> Tensor:
    """A Gaussian spot at a place in pixels from the centre, x to the right and y down."""
    middle = (size - 1) / 2
    places = torch.arange(size) - middle
    across = (places - x) ** 2
    down = (places - y) ** 2
    squared = across + down[:, None]
    spot = torch.exp(-squared / 4)
    return spot.view(1, 1, size, size)


def centres(images: Tensor) -> Tensor:
    """The centre of brightness of each image, in units of half the image from its centre."""
    places = (torch.arange(28) - 13.5) / 14
    brightness = images.sum((1, 2, 3))
    columns = images.sum((1, 2))
    rows = images.sum((1, 3))
    x = columns @ places / brightness
    y = rows @ places / brightness
    return torch.stack([x, y], 1)


def test_matrix_maps_places_of_the_first_image_to_the_second() -> None:
    """The matrix is the second transform times the inverse of the first, and not the reverse."""
    module = standin(change="affine", shift=3, rotation=40.0)
    images = blob(4.0, -3.0).expand(50, -1, -1, -1)
    first, second, change = module.pair(images, KEY[:50])
    places = centres(first)
    expected = centres(second)
    mapped = mapped_by(change, places)
    assert_close(mapped, expected, atol=0.15 / 14, rtol=0)
    inverse = torch.linalg.inv(change)
    differences = mapped_by(inverse, places) - expected
    distances = differences.norm(dim=1)
    assert distances.mean() > 2 / 14


def mapped_by(matrices: Tensor, places: Tensor) -> Tensor:
    """Each place times its matrix, in homogeneous coordinates."""
    ones = torch.ones(len(places), 1)
    homogeneous = torch.cat([places, ones], 1)
    mapped = matrices @ homogeneous.unsqueeze(2)
    return mapped[:, :2, 0]


def test_matrix_of_a_quarter_turn_is_counter_clockwise() -> None:
    """It maps a point on the right to the top, where y is negative."""
    one = torch.ones(1)
    zero = torch.zeros(1)
    quarter = torch.full((1,), torch.pi / 2)
    (matrix,) = affine_matrix(rotation=quarter, shear=zero, scale_x=one, scale_y=one)
    right = torch.tensor([1.0, 0.0])
    top = torch.tensor([0.0, -1.0])
    assert_close(matrix @ right, top)


def test_moved_target_keeps_the_first_image() -> None:
    images = torch.rand(5, 1, 28, 28)
    module = standin(change="affine", moved="target")
    first, second, change = module.pair(images, KEY[:5])
    assert first.equal(images)
    assert not second.equal(images)
    assert change[:, 2].tolist() == [[0, 0, 1]] * 5


def test_affine_change_of_zero_range_is_the_identity() -> None:
    module = standin(change="affine", shift=0, rotation=0.0, scale=1.0, shear=0.0)
    images = torch.rand(3, 1, 28, 28)
    first, second, change = module.pair(images, KEY[:3])
    assert_close(first, images)
    assert_close(second, images)
    identity = torch.eye(3).expand(3, 3, 3)
    assert_close(change, identity)


@pytest.mark.parametrize(("change", "shape"), [("shift", (2,)), ("affine", (3, 3))])
def test_batch_has_targets_a_change_and_labels(change: str, shape: tuple[int, ...]) -> None:
    module = standin(change=change)
    module.setup("fit")
    training = module.dataset("train")
    stored = training[torch.arange(6), 0]
    batch = module.transform_batch(stored, "train")
    assert batch.images.shape == (6, 1, 28, 28)
    assert batch.targets.shape == (6, 1, 28, 28)
    assert batch.change.shape == (6, *shape)
    assert module.spec.change == shape
    labels = module.sets["train"].labels
    assert batch.labels.equal(labels[:6])
    assert batch.images.min() >= 0
    assert batch.targets.max() <= 1
    assert "pairs of" in module.provenance["name"]


def test_unpaired_images_are_those_of_the_set() -> None:
    module = standin()
    module.setup("fit")
    validation = module.dataset("val")
    stored = validation[torch.arange(4), 0]
    unpaired = module.unpaired_batch(stored, "val")
    pixels = stored.images.float()
    assert_close(unpaired.images, pixels / 255)
