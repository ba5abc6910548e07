"""Synthetic affNIST: transformed versions of digits, their factors and places."""

import math

import numpy as np
import pytest
import torch

from capsule_lab.data.loader import Images
from capsule_lab.data.standins import affnist
from capsule_lab.data.standins.affnist import FACTORS, RANGES, SyntheticAffNIST, place
from capsule_lab.data.standins.digits import standin_digits
from capsule_lab.data.transforms import affine, sample_key
from capsule_lab.types import Batch
from tests.helpers.affine import affine_by_scipy


def digits() -> Images:
    return standin_digits(train=False)  # cached


def versions(count: int, *, seed: int = 0, epoch: int = 0, first: int = 0) -> Batch:
    """Versions of the stand-in digits."""
    index = torch.arange(first, first + count)
    return SyntheticAffNIST(digits(), seed)[index, epoch]


def chi_square(counts: torch.Tensor) -> float:
    """The deviation of counts from a uniform distribution."""
    expected = counts.float().mean()
    return float(((counts - expected) ** 2 / expected).sum())


def test_factors_fill_their_documented_ranges_evenly_and_independently():
    batch = versions(4000)
    images = batch.images
    factors = batch.factors
    assert images.shape == (4000, 1, 40, 40)
    assert images.dtype == torch.uint8
    assert factors.shape == (4000, len(FACTORS))
    assert RANGES == {
        "rotation": (-20, 20),
        "shear": (-0.2, 0.2),
        "scale_x": (0.8, 1.2),
        "scale_y": (0.8, 1.2),
    }
    for column, (name, (low, high)) in enumerate(RANGES.items()):
        assert FACTORS[column] == name
        values = (factors[:, column] - low) / (high - low)
        assert values.min() >= 0
        assert values.max() <= 1
        tenths = torch.histc(values, 10, 0, 1)
        # 9 degrees of freedom: exceeded once in 2000 draws
        assert chi_square(tenths) < 30
    correlations = torch.corrcoef(factors[:, :4].T) - torch.eye(4)
    assert correlations.abs().max() < 0.06  # 4 standard deviations


def test_factors_describe_the_transform_of_the_image():
    """The image equals scipy's transform of the digit by the factors."""
    batch = versions(60)
    for index in range(0, 60, 7):
        rotation, *others = batch.factors[index].tolist()
        digit = digits().images[index, 0].double().numpy()
        on_canvas = np.pad(digit, 6)
        expected = affine_by_scipy(on_canvas, math.radians(rotation), *others)
        np.testing.assert_allclose(batch.images[index, 0], expected, atol=0.6)


def test_whole_digit_is_inside_the_image():
    batch = versions(1000)
    index = torch.arange(1000) % 359
    ink = digits().images[index].float().sum((1, 2, 3))
    _, _, scale_x, scale_y, _, _ = batch.factors.T
    expected = ink * scale_x * scale_y
    found = batch.images.float().sum((1, 2, 3))
    error = found / expected - 1
    assert error.abs().max() < 0.05


@pytest.mark.whole
def test_places_inside_the_image_are_uniform_and_independent():
    """A spot of 5x5 pixels can be put in 36x36 places."""
    count = 20000
    choices = 36
    image = torch.zeros(54, 54, dtype=torch.uint8)
    image[20:25, 30:35] = 1
    key = sample_key(0, 0, torch.arange(count))
    placed, down, right = place(image.expand(count, 1, 54, 54), key)
    pixels = placed.sum((1, 2, 3))
    assert (pixels == 25).all()
    row = placed[:, 0].amax(2).int().argmax(1)
    column = placed[:, 0].amax(1).int().argmax(1)
    assert row.equal(down + 20 - 7)
    assert column.equal(right + 30 - 7)
    for first in (row, column):
        counts = torch.bincount(first, minlength=choices)
        assert len(counts) == choices
        assert chi_square(counts) < 72  # 35 degrees of freedom: exceeded once in 4000 draws
    places = torch.stack([down, right]).float()
    correlation = torch.corrcoef(places)[0, 1]
    assert correlation.abs() < 0.03  # 4 standard deviations


@pytest.mark.parametrize("side", [40, 41, 46])
def test_digit_as_large_as_the_canvas_is_centred(side: int):
    image = torch.zeros(3, 1, 54, 54, dtype=torch.uint8)
    begin = (54 - side) // 2
    inside = slice(begin, begin + side)
    image[:, :, inside, inside] = 9
    placed, down, right = place(image, sample_key(0, 0, torch.arange(3)))
    assert (placed == 9).all()
    assert down.equal(right)
    assert down.abs().max() <= 1


def test_frame_fits_the_canvas_at_every_corner_of_the_ranges():
    ends = [torch.tensor(between) for between in RANGES.values()]
    rotation, shear, scale_x, scale_y = torch.cartesian_prod(*ends).T
    count = len(rotation)
    margin = (affnist._CANVAS - 28) // 2
    canvas = torch.nn.functional.pad(torch.ones(count, 1, 28, 28), (margin,) * 4)
    wide = affine(
        canvas,
        rotation=rotation.deg2rad(),
        shear=shear,
        scale_x=scale_x,
        scale_y=scale_y,
        right=torch.zeros(count),
        down=torch.zeros(count),
    )
    inside = torch.nn.functional.pad(wide[:, :, 1:-1, 1:-1], (1,) * 4)
    assert inside.equal(wide), "nothing reaches the edge"


@pytest.mark.parametrize("size", [1, 3, 64])
def test_versions_do_not_depend_on_their_batch(size: int):
    whole = versions(96)
    for index in torch.arange(96).split(size):
        part = versions(len(index), first=int(index[0]))
        assert part.images.equal(whole.images[index])
        assert part.factors.equal(whole.factors[index])


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"seed": 1}, False),
        ({"epoch": 5}, True),
        ({"first": 359}, False),
    ],
)
def test_versions_depend_only_on_seed_and_index(change: dict[str, int], same: bool):
    changed = versions(96, **change)
    assert changed.images.equal(versions(96).images) is same


@pytest.mark.parametrize(("size", "length"), [(None, 718), (100, 100), (501, 501), (20000, 718)])
def test_every_digit_has_the_same_number_of_versions(size: int | None, length: int):
    dataset = SyntheticAffNIST(digits(), 0, versions=2, size=size)
    assert len(dataset) == length
    batch = dataset[torch.arange(length), 0]
    stored = dataset.stored()
    assert stored.images.equal(batch.images)
    assert stored.labels.equal(batch.labels)
    assert stored.factors.equal(batch.factors)
    repeated = digits().labels.repeat(2)
    assert stored.labels.equal(repeated[:length])
