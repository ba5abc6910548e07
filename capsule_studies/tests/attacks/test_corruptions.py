"""Corruptions against Pillow, scipy and moments worked out by hand; what holds for all is in test_every_attack."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import torch
from PIL import Image
from torch import Tensor

from capsule_studies.attacks.corruptions import KINDS, _plasma, corruption

KEYS = torch.arange(300, 308)
NOT_ONE_AFTER_THE_OTHER = (
    "pixelate",
    "fog",
    "spatter",
)  # of MNIST-C; of elastic, 1 and 2 move whole images


@pytest.fixture(scope="module")
def images() -> Tensor:
    """Smooth white strokes on black."""
    noise = np.random.default_rng(0).normal(size=(8, 1, 28, 28))
    smooth = scipy.ndimage.gaussian_filter(noise, (0, 0, 2, 2))
    strokes = torch.from_numpy(smooth / smooth.std((1, 2, 3), keepdims=True)).float()
    return (1.5 * strokes).clamp(0, 1)


def corrupted(kind: str, images: Tensor, severity: float = 3) -> Tensor:
    return corruption(None, images, float(severity), KEYS[: len(images)], kind=kind)


def constant(kind: str, severity: int) -> Any:
    return KINDS[kind][1][severity - 1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_higher_severity_changes_more_and_images_have_any_channels_and_size(
    kind: str, images: Tensor
) -> None:
    change = [
        (corrupted(kind, images, severity) - images).abs().mean().item()
        for severity in (1, 2, 3, 4, 5)
    ]
    assert change[0] > 0.001
    assert len(set(change)) == 5
    if kind == "elastic":
        assert change[2] < change[3] < change[4]
    elif kind in NOT_ONE_AFTER_THE_OTHER:
        assert change[4] > change[0]
    else:
        assert change == sorted(change)
    for shape in itertools.product([2], [2, 3], [20, 9], [32, 9]):
        of_shape = torch.rand(shape, generator=torch.Generator().manual_seed(0))
        found = corrupted(kind, of_shape, 5)
        assert (found.shape, found.dtype) == (of_shape.shape, of_shape.dtype)
        assert not torch.allclose(found, of_shape, atol=0.01)


@pytest.fixture(scope="module")
def grey() -> Tensor:
    """Plain grey, a share of whose pixels is enough to see moments."""
    return torch.full((8, 1, 100, 100), 0.5)


def test_gaussian_noise_has_its_deviation_and_is_another_in_each_channel_and_pixel(
    grey: Tensor,
) -> None:
    added = (
        corrupted("gaussian_noise", grey, 2) - grey
    )  # 0.12, so that less than 1 in 10,000 is clipped
    assert added.mean().item() == pytest.approx(0, abs=0.002)
    assert added.std().item() == pytest.approx(0.12, rel=0.02)
    assert (added.abs() < 0.12).float().mean().item() == pytest.approx(0.6827, abs=0.01)
    assert (added.abs() < 0.24).float().mean().item() == pytest.approx(0.9545, abs=0.01)
    left, right = (
        corrupted("gaussian_noise", torch.full((1, 2, 40, 40), 0.5), 1)[0] - 0.5
    ).flatten(1)
    assert (
        torch.corrcoef(torch.stack([left, right, left.roll(1), left.roll(40)])).triu(1).abs().max()
        < 0.1
    )


def test_shot_noise_is_a_count_of_photons(grey: Tensor) -> None:
    counts = corrupted("shot_noise", grey, 1) * constant("shot_noise", 1)
    torch.testing.assert_close(counts, counts.round(), rtol=0, atol=1e-4)
    assert counts.mean().item() == pytest.approx(30, rel=0.01)
    assert counts.var().item() == pytest.approx(
        30, rel=0.03
    )  # of a Poisson distribution, as large as the mean
    assert (corrupted("shot_noise", torch.zeros_like(grey), 5) == 0).all()


def test_impulse_noise_is_black_and_white_in_equal_shares(grey: Tensor) -> None:
    noisy = corrupted("impulse_noise", grey, 5)
    shares = [(noisy == value).float().mean().item() for value in (0, 1, 0.5)]
    assert shares == pytest.approx([0.27 / 2, 0.27 / 2, 0.73], abs=0.01)
    assert sum(shares) == pytest.approx(1)


def test_gaussian_blur_is_that_of_scipy(images: Tensor) -> None:
    expected = scipy.ndimage.gaussian_filter(images[0, 0].double().numpy(), 3.0, mode="nearest")
    np.testing.assert_allclose(
        corrupted("gaussian_blur", images)[0, 0].numpy(), expected, atol=1e-6
    )


def test_motion_blur_is_a_half_gaussian_along_a_line() -> None:
    """Of a point: its distances from where it was are those of half a Gaussian, in one direction within 45 degrees."""
    point = torch.zeros(8, 1, 81, 81)
    point[..., 40, 40] = 1.0
    blurred = corrupted("motion_blur", point, 1)[:, 0]
    radius, deviation = constant("motion_blur", 1)
    weights = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * deviation**2))
    mean = float((weights * np.arange(2 * radius + 1)).sum() / weights.sum())
    offsets = torch.arange(81.0) - 40
    right, down = (blurred.sum(1) * offsets).sum(1), (blurred.sum(2) * offsets).sum(1)
    torch.testing.assert_close(blurred.sum((1, 2)), torch.ones(8), rtol=0, atol=1e-4)
    torch.testing.assert_close(
        (right**2 + down**2).sqrt(), torch.full((8,), mean), rtol=0, atol=1e-3
    )
    angles = torch.atan2(down, right)
    assert (angles.abs() <= math.pi / 4 + 1e-4).all()
    assert angles.max() - angles.min() > 0.3


def test_pixelate_is_that_of_pillow(images: Tensor) -> None:
    picture = Image.fromarray(images[0, 0].numpy())
    for severity in (1, 2, 3, 4, 5):
        size = int(28 * constant("pixelate", severity))
        expected = picture.resize((size, size), Image.Resampling.BOX).resize(
            (28, 28), Image.Resampling.BOX
        )
        found = corrupted("pixelate", images, severity)[0, 0].numpy()
        np.testing.assert_allclose(found, np.asarray(expected), atol=1e-6)


def test_jpeg_is_whole_grey_levels_and_nearly_the_image(images: Tensor) -> None:
    levels = 255 * corrupted("jpeg", images, 1)
    torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-4)
    assert 0.001 < (levels / 255 - images).abs().mean() < 0.05
    pair = torch.cat([images[:2], images[2:4]], 1)  # two channels, of which each is an image
    torch.testing.assert_close(corrupted("jpeg", pair, 1)[:, :1], corrupted("jpeg", images[:2], 1))
    torch.testing.assert_close(corrupted("jpeg", pair, 1)[:, 1:], corrupted("jpeg", images[2:4], 1))


@pytest.mark.parametrize(
    ("kind", "severity", "shape", "before", "after"),
    [
        ("brightness", 3, (1, 1, 1, 3), [0.0, 0.25, 0.9], [0.3, 0.55, 1.0]),
        (
            "brightness",
            2,
            (1, 3, 1, 1),
            [0.4, 0.2, 0.0],
            [0.6, 0.3, 0.0],
        ),  # the value rises, hue and saturation stay
        ("contrast", 3, (1, 1, 2, 2), [0.0, 1.0, 0.5, 0.5], [0.4, 0.6, 0.5, 0.5]),
        (
            "contrast",
            1,
            (1, 2, 1, 2),
            [0.0, 1.0, 0.4, 0.6],
            [0.3, 0.7, 0.46, 0.54],
        ),  # each channel about its mean
    ],
)
def test_grey_levels_by_hand(
    kind: str, severity: int, shape: Any, before: list[float], after: list[float]
) -> None:
    found = corrupted(kind, torch.tensor(before).view(shape), severity)
    torch.testing.assert_close(found, torch.tensor(after).view(shape))


def test_stripe_is_7_of_28_pixels_on_both_sides(images: Tensor) -> None:
    striped = corrupted("stripe", images, 5)
    torch.testing.assert_close(striped[..., :7], 1 - images[..., :7])
    torch.testing.assert_close(striped[..., 21:], 1 - images[..., 21:])
    assert torch.equal(striped[..., 7:21], images[..., 7:21])
    assert torch.equal(corrupted("stripe", images, 1)[..., 1:27], images[..., 1:27])


def test_fog_keeps_the_brightest_pixel_and_is_smooth(images: Tensor) -> None:
    amount, _ = constant("fog", 5)
    foggy = corrupted("fog", images, 5)
    brightest = images.amax((1, 2, 3))
    assert (foggy.amax((1, 2, 3)) <= brightest + 1e-6).all()
    black = corrupted("fog", torch.cat([torch.zeros(8, 1, 28, 27), torch.ones(8, 1, 28, 1)], 3), 5)[
        ..., :27
    ]
    clouds = black * (1 + amount) / amount
    assert ((clouds >= 0) & (clouds <= 1)).all()
    assert clouds.std((1, 2, 3)).min() > 0.005
    assert (clouds.diff(dim=3).abs().mean() / clouds.std()) < 0.3
    assert (corrupted("fog", torch.zeros(8, 1, 28, 28), 5) == 0).all()


def test_plasma_fits_together_at_its_edges_and_is_rougher_with_less_decay() -> None:
    smooth, rough = (_plasma(KEYS, 64, decay) for decay in (2.0, 1.2))
    for axis in (1, 2):  # across the edges as well, which fit together
        step, rougher = (
            (heights - heights.roll(1, axis)).abs().mean() for heights in (smooth, rough)
        )
        assert step < 0.05
        assert step < rougher / 2


def test_spatter_is_grey_mud_on_black_and_on_white() -> None:
    black, white = (
        corrupted("spatter", torch.full((8, 1, 60, 60), value), 2) for value in (0.0, 1.0)
    )
    mud = 63 / 255
    share = (black > 0).float().mean().item()
    assert 0.03 < share < 0.4
    assert black.max().item() <= mud + 1e-6
    assert (black[black > 0] >= 0.8 * mud - 1e-6).all()  # thinner mud counts for nothing
    torch.testing.assert_close(white, 1 - black / mud + black, rtol=0, atol=1e-5)
    brown = corrupted("spatter", torch.zeros(8, 3, 60, 60), 2).amax((0, 2, 3))
    torch.testing.assert_close(brown, torch.tensor([63.0, 42.0, 20.0]) / 255, rtol=0, atol=1e-5)


def test_elastic_moves_pixels_by_as_much_as_it_should() -> None:
    """Of a ramp, grey levels say where a pixel was: right and down independently, and not all moved alike."""
    ramp = (torch.arange(28.0) / 28).expand(8, 2, 28, 28).clone()
    ramp[:, 1] = ramp[:, 0].mT
    found = corrupted("elastic", ramp, 5)[:, :, 8:20, 8:20]
    moved = 28 * (found - ramp[:, :, 8:20, 8:20])
    assert 0.5 < moved.std() < 3.4  # pixels; 0.12 * 28 is the largest
    assert moved.mean((2, 3)).abs().max() < 1.5
    assert (torch.corrcoef(moved.transpose(0, 1).flatten(1))[0, 1]).abs() < 0.3
    mild = corrupted("elastic", ramp, 3)[:, :, 8:20, 8:20]
    assert (28 * (mild - ramp[:, :, 8:20, 8:20])).std() < 0.6 * moved.std()
