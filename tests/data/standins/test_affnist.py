"""Synthetic affNIST: versions of digits, their factors and their places."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.ndimage
import torch

from capsule_lab.data.standins import affnist
from capsule_lab.data.standins.affnist import FACTORS, RANGES, SyntheticAffNIST, place, transformed
from capsule_lab.data.standins.digits import standin_digits
from capsule_lab.data.transforms import affine, sample_key


def versions(count: int = 1000, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The first versions of the stand-in digits, and their factors."""
    batch = SyntheticAffNIST(standin_digits(train=False), seed)[(torch.arange(count), 0)]
    return batch.images, batch.factors


def test_versions_have_affnists_form():
    images, factors = versions()
    assert images.shape == (1000, 1, 40, 40)
    assert images.dtype == torch.uint8
    assert factors.shape == (1000, len(FACTORS))
    assert (images.amax((1, 2, 3)) > 128).all()


def test_factors_fill_their_ranges_evenly():
    for name in RANGES:
        low, high = RANGES[name]
        values = (versions(4000)[1][:, FACTORS.index(name)] - low) / (high - low)
        assert values.min() >= 0
        assert values.max() <= 1
        counts = torch.histc(values, 10, 0, 1)
        assert ((counts - 400) ** 2 / 400).sum() < 30  # 9 degrees of freedom: exceeded once in 2000 draws


def test_ranges_are_those_documented():
    assert RANGES == {"rotation": (-20, 20), "shear": (-0.2, 0.2), "scale_x": (0.8, 1.2), "scale_y": (0.8, 1.2)}


def test_factors_are_independent():
    correlations = torch.corrcoef(versions(4000)[1][:, :4].T) - torch.eye(4)
    assert correlations.abs().max() < 0.06  # 4 standard deviations


def test_factors_make_the_image():
    """What scipy makes of the digit with the factors given is the image."""
    for index in range(0, 60, 7):
        images, factors = versions(60)
        rotation, shear, scale_x, scale_y, right, down = factors[index].tolist()
        rotation = math.radians(rotation)
        digit = np.pad(standin_digits(train=False).images[index, 0].numpy().astype(float), 6)
        cos, sin = math.cos(rotation), math.sin(rotation)
        forward = np.array([[cos, -sin], [sin, cos]]) @ np.array([[1, shear], [0, 1]]) @ np.diag([scale_x, scale_y])
        flip = np.array([[0, -1], [1, 0]])
        backward = flip @ np.linalg.inv(forward) @ flip.T
        middle = np.array([19.5, 19.5])
        offset = middle - backward @ (middle + np.array([down, right]))
        expected = scipy.ndimage.affine_transform(digit, backward, offset, order=1)
        np.testing.assert_allclose(images[index, 0].numpy(), expected, atol=0.6)


def test_nothing_of_a_digit_is_lost():
    images, factors = versions()
    digits = standin_digits(train=False).images[torch.arange(1000) % 359].float().sum((1, 2, 3))
    area = factors[:, 2] * factors[:, 3]
    assert (images.float().sum((1, 2, 3)) / (digits * area) - 1).abs().max() < 0.05


def test_places_are_uniform_over_all_that_lose_nothing():
    """A spot of 3x5 pixels can be put in 38x36 places."""
    for axis in [0, 1]:
        count, spot = 20000, (3, 5)
        image = torch.zeros(54, 54, dtype=torch.uint8)
        image[20:23, 30:35] = 1
        key = sample_key(0, 0, torch.arange(count))
        placed, *moved = place(image.expand(count, 1, 54, 54), key)
        assert (placed.sum((1, 2, 3)) == 15).all()
        first = placed[:, 0].amax(2 - axis).int().argmax(1)
        assert first.equal(moved[axis] + (20, 30)[axis] - 7)
        choices = 40 - spot[axis] + 1
        counts = torch.bincount(first, minlength=choices)
        assert len(counts) == choices
        expected = count / choices
        assert ((counts - expected) ** 2 / expected).sum() < 75  # 37 degrees of freedom: exceeded once in 4000 draws


def test_rows_and_columns_are_drawn_independently():
    """A square spot has as many choices down as across, so that one draw for both would give the same."""
    image = torch.zeros(54, 54, dtype=torch.uint8)
    image[20:24, 20:24] = 1
    _, down, right = place(image.expand(4000, 1, 54, 54), sample_key(0, 0, torch.arange(4000)))
    assert torch.corrcoef(torch.stack([down, right]).float())[0, 1].abs() < 0.06  # 4 standard deviations


def test_what_fills_the_canvas_is_put_in_the_middle():
    for side in [40, 41, 46]:
        image = torch.zeros(3, 1, 54, 54, dtype=torch.uint8)
        begin = (54 - side) // 2
        image[:, :, begin : begin + side, begin : begin + side] = 9
        placed, down, right = place(image, sample_key(0, 0, torch.arange(3)))
        assert (placed == 9).all()
        assert down.equal(right)
        assert down.abs().max() <= 1


def test_black_image_stays_black():
    placed, _, _ = place(torch.zeros(50, 1, 54, 54, dtype=torch.uint8), sample_key(0, 0, torch.arange(50)))
    assert placed.shape == (50, 1, 40, 40)
    assert not placed.any()


def test_frame_fits_the_canvas_at_every_corner_of_the_ranges():
    corners = torch.cartesian_prod(*[torch.tensor(between) for between in RANGES.values()])
    canvas = torch.nn.functional.pad(torch.ones(len(corners), 1, 28, 28), (13,) * 4)
    rotation, shear, scale_x, scale_y = corners.T
    still = torch.zeros(len(corners))
    drawn = {"rotation": rotation * math.pi / 180, "shear": shear, "scale_x": scale_x, "scale_y": scale_y}
    wide = affine(canvas, **drawn, right=still, down=still)
    edge = torch.ones(54, 54, dtype=torch.bool)
    edge[1:-1, 1:-1] = False
    assert not wide[:, 0, edge].any()
    assert affnist._CANVAS == 54


def test_versions_do_not_depend_on_the_batch():
    for size in [1, 3, 64]:
        dataset = SyntheticAffNIST(standin_digits(train=False), 0)
        whole, index = dataset[(torch.arange(96), 0)], torch.arange(96)
        parts = [dataset[(part, 0)] for part in index.split(size)]
        assert torch.cat([part.images for part in parts]).equal(whole.images)
        assert torch.cat([part.factors for part in parts]).equal(whole.factors)


def test_versions_are_a_function_of_seed_and_index():
    for change, same in [({}, True), ({"seed": 1}, False), ({"epoch": 5}, True), ({"shift": 359}, False)]:

        def made(*, seed: int = 0, epoch: int = 0, shift: int = 0) -> torch.Tensor:
            return SyntheticAffNIST(standin_digits(train=False), seed)[(torch.arange(20) + shift, epoch)].images

        assert made().equal(made(**change)) is same


def test_every_digit_is_used_equally_often():
    data = standin_digits(train=False)
    dataset = SyntheticAffNIST(data, 0, versions=3)
    batch = dataset[(torch.arange(len(dataset)), 0)]
    assert len(dataset) == 3 * 359
    assert batch.labels.equal(data.labels.repeat(3))


def test_size():
    for size, length in [(None, 11488), (100, 100), (20000, 11488)]:
        assert len(SyntheticAffNIST(standin_digits(train=False), 0, size=size)) == length


def test_stored_versions_are_those_of_the_batches():
    for size in [1, 500, 501, 718]:
        dataset = SyntheticAffNIST(standin_digits(train=False), 0, versions=2, size=size)
        batch, stored = dataset[(torch.arange(size), 0)], dataset.stored()
        assert stored.images.equal(batch.images)
        assert stored.labels.equal(batch.labels)
        assert stored.factors.equal(batch.factors)


def test_too_few_versions():
    with pytest.raises(ValueError, match=r"^the number of versions is 0; expected 1 or more of each image$"):
        SyntheticAffNIST(standin_digits(train=False), 0, versions=0)


def test_the_key_alone_decides_how_a_digit_is_transformed():
    digit = standin_digits(train=False).images[:1]
    one, _ = transformed(digit, torch.tensor([7]))
    several, _ = transformed(digit.expand(3, -1, -1, -1), torch.tensor([1, 7, 7]))
    assert several[1].equal(one[0])
    assert several[2].equal(one[0])
    assert not several[0].equal(one[0])
