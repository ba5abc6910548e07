"""Synthetic affNIST: transformed versions of digits, their factors and places."""

import math

import numpy as np
import torch

from capsule_lab.data.standins import affnist
from capsule_lab.data.standins.affnist import FACTORS, RANGES, SyntheticAffNIST, place
from capsule_lab.data.standins.digits import standin_digits
from capsule_lab.data.transforms import affine, sample_key
from capsule_lab.types import Batch
from tests.helpers.affine import affine_by_scipy


def versions(count: int, *, seed: int = 0, epoch: int = 0, shift: int = 0) -> Batch:
    """Versions of the stand-in digits."""
    return SyntheticAffNIST(standin_digits(train=False), seed)[(torch.arange(count) + shift, epoch)]


def test_factors_fill_their_documented_ranges_evenly_and_independently():
    batch = versions(4000)
    assert batch.images.shape == (4000, 1, 40, 40)
    assert batch.images.dtype == torch.uint8
    assert batch.factors.shape == (4000, len(FACTORS))
    assert RANGES == {
        "rotation": (-20, 20),
        "shear": (-0.2, 0.2),
        "scale_x": (0.8, 1.2),
        "scale_y": (0.8, 1.2),
    }
    for column, (name, (low, high)) in enumerate(RANGES.items()):
        assert FACTORS[column] == name
        values = (batch.factors[:, column] - low) / (high - low)
        assert 0 <= values.min() <= values.max() <= 1
        counts = torch.histc(values, 10, 0, 1)
        assert (
            (counts - 400) ** 2 / 400
        ).sum() < 30  # 9 degrees of freedom: exceeded once in 2000 draws
    correlations = torch.corrcoef(batch.factors[:, :4].T) - torch.eye(4)
    assert correlations.abs().max() < 0.06  # 4 standard deviations


def test_factors_describe_the_transform_of_the_image():
    """The image equals scipy's transform of the digit by the factors."""
    batch = versions(60)
    for index in range(0, 60, 7):
        rotation, *others = batch.factors[index].tolist()
        digit = np.pad(standin_digits(train=False).images[index, 0].numpy().astype(float), 6)
        expected = affine_by_scipy(digit, math.radians(rotation), *others)
        np.testing.assert_allclose(batch.images[index, 0].numpy(), expected, atol=0.6)


def test_whole_digit_is_inside_the_image():
    batch = versions(1000)
    digits = standin_digits(train=False).images[torch.arange(1000) % 359].float().sum((1, 2, 3))
    area = batch.factors[:, 2] * batch.factors[:, 3]
    assert (batch.images.float().sum((1, 2, 3)) / (digits * area) - 1).abs().max() < 0.05


def test_places_inside_the_image_are_uniform_and_independent():
    """A spot of 5x5 pixels can be put in 36x36 places."""
    count, choices = 20000, 36
    image = torch.zeros(54, 54, dtype=torch.uint8)
    image[20:25, 30:35] = 1
    placed, *moved = place(image.expand(count, 1, 54, 54), sample_key(0, 0, torch.arange(count)))
    assert (placed.sum((1, 2, 3)) == 25).all()
    for axis, corner in ((0, 20), (1, 30)):
        first = placed[:, 0].amax(2 - axis).int().argmax(1)
        assert first.equal(moved[axis] + corner - 7)
        counts = torch.bincount(first, minlength=choices)
        assert len(counts) == choices
        expected = count / choices
        assert (
            (counts - expected) ** 2 / expected
        ).sum() < 72  # 35 degrees of freedom: exceeded once in 4000 draws
    assert torch.corrcoef(torch.stack(moved).float())[0, 1].abs() < 0.03  # 4 standard deviations


def test_digit_as_large_as_the_canvas_is_centred():
    for side in [40, 41, 46]:
        image = torch.zeros(3, 1, 54, 54, dtype=torch.uint8)
        begin = (54 - side) // 2
        image[:, :, begin : begin + side, begin : begin + side] = 9
        placed, down, right = place(image, sample_key(0, 0, torch.arange(3)))
        assert (placed == 9).all()
        assert down.equal(right)
        assert down.abs().max() <= 1


def test_frame_fits_the_canvas_at_every_corner_of_the_ranges():
    corners = torch.cartesian_prod(*[torch.tensor(between) for between in RANGES.values()])
    drawn = dict(zip(RANGES, corners.T, strict=True))
    drawn["rotation"] = drawn["rotation"] * math.pi / 180
    margin, still = (affnist._CANVAS - 28) // 2, torch.zeros(len(corners))
    canvas = torch.nn.functional.pad(torch.ones(len(corners), 1, 28, 28), (margin,) * 4)
    wide = affine(canvas, **drawn, right=still, down=still)
    assert torch.nn.functional.pad(wide[:, :, 1:-1, 1:-1], (1,) * 4).equal(wide), (
        "nothing reaches the edge"
    )


def test_versions_depend_only_on_seed_and_index():
    whole = versions(96)
    for size in [1, 3, 64]:
        parts = [versions(len(part), shift=int(part[0])) for part in torch.arange(96).split(size)]
        assert torch.cat([part.images for part in parts]).equal(whole.images)
        assert torch.cat([part.factors for part in parts]).equal(whole.factors)
    for change, same in [({"seed": 1}, False), ({"epoch": 5}, True), ({"shift": 359}, False)]:
        assert versions(96, **change).images.equal(whole.images) is same


def test_every_digit_has_the_same_number_of_versions():
    data = standin_digits(train=False)
    for size, length in [(None, 718), (100, 100), (501, 501), (20000, 718)]:
        dataset = SyntheticAffNIST(data, 0, versions=2, size=size)
        assert len(dataset) == length
        batch, stored = dataset[(torch.arange(length), 0)], dataset.stored()
        assert stored.images.equal(batch.images)
        assert stored.labels.equal(batch.labels)
        assert stored.labels.equal(data.labels.repeat(2)[:length])
        assert stored.factors.equal(batch.factors)
