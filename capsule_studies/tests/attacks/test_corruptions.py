"""Corruptions compared with Pillow, scipy and moments computed by hand; see also test_every_attack."""

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
NOT_ONE_AFTER_THE_OTHER = ("pixelate", "fog", "spatter")
"""Kinds of MNIST-C whose change does not grow with each severity; of elastic, 1 and 2 move whole images."""


@pytest.fixture(scope="module")
def images() -> Tensor:
    """Smooth white strokes on black."""
    noise = np.random.default_rng(0).normal(size=(8, 1, 28, 28))
    smooth = scipy.ndimage.gaussian_filter(noise, (0, 0, 2, 2))
    deviations = smooth.std((1, 2, 3), keepdims=True)
    strokes = torch.from_numpy(smooth / deviations)
    return (1.5 * strokes.float()).clamp(0, 1)


def corrupted(kind: str, images: Tensor, severity: float = 3) -> Tensor:
    keys = KEYS[: len(images)]
    return corruption(None, images, float(severity), keys, kind=kind)


def constant(kind: str, severity: int) -> Any:
    return KINDS[kind].constants[severity - 1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_higher_severity_changes_more(kind: str, images: Tensor) -> None:
    changes = []
    for severity in (1, 2, 3, 4, 5):
        change = corrupted(kind, images, severity) - images
        changes.append(change.abs().mean().item())
    assert changes[0] > 0.001
    assert len(set(changes)) == 5
    if kind == "elastic":
        assert changes[2] < changes[3] < changes[4]
    elif kind in NOT_ONE_AFTER_THE_OTHER:
        assert changes[4] > changes[0]
    else:
        assert changes == sorted(changes)


@pytest.mark.parametrize("kind", KINDS)
def test_images_have_any_channels_and_size(kind: str) -> None:
    for channels, height, width in itertools.product([2, 3], [20, 9], [32, 9]):
        generator = torch.Generator().manual_seed(0)
        images = torch.rand(2, channels, height, width, generator=generator)
        found = corrupted(kind, images, 5)
        assert found.shape == images.shape
        assert found.dtype == images.dtype
        assert not torch.allclose(found, images, atol=0.01)


@pytest.fixture(scope="module")
def grey() -> Tensor:
    """Grey images with enough pixels to measure moments of noise."""
    return torch.full((8, 1, 100, 100), 0.5)


def share(which: Tensor) -> float:
    return which.double().mean().item()


def test_gaussian_noise_has_its_deviation(grey: Tensor) -> None:
    added = corrupted("gaussian_noise", grey, 2) - grey
    # 0.12, so that less than 1 in 10,000 is clipped
    assert added.mean().item() == pytest.approx(0, abs=0.002)
    assert added.std().item() == pytest.approx(0.12, rel=0.02)
    assert share(added.abs() < 0.12) == pytest.approx(0.6827, abs=0.01)
    assert share(added.abs() < 0.24) == pytest.approx(0.9545, abs=0.01)


def test_gaussian_noise_is_another_in_each_channel_and_pixel() -> None:
    pair = torch.full((1, 2, 40, 40), 0.5)
    noisy = corrupted("gaussian_noise", pair, 1)
    left, right = noisy[0].flatten(1)
    pixels = torch.stack([left, right, left.roll(1), left.roll(40)])
    correlations = torch.corrcoef(pixels).triu(1)
    assert correlations.abs().max() < 0.1


def test_shot_noise_is_a_count_of_photons(grey: Tensor) -> None:
    counts = corrupted("shot_noise", grey, 1) * constant("shot_noise", 1)
    torch.testing.assert_close(counts, counts.round(), rtol=0, atol=1e-4)
    assert counts.mean().item() == pytest.approx(30, rel=0.01)
    # of a Poisson distribution, as large as the mean
    assert counts.var().item() == pytest.approx(30, rel=0.03)
    black = corrupted("shot_noise", torch.zeros_like(grey), 5)
    assert (black == 0).all()


def test_impulse_noise_is_black_and_white_in_equal_shares(grey: Tensor) -> None:
    noisy = corrupted("impulse_noise", grey, 5)
    black = share(noisy == 0)
    white = share(noisy == 1)
    unchanged = share(noisy == 0.5)
    assert black == pytest.approx(0.27 / 2, abs=0.01)
    assert white == pytest.approx(0.27 / 2, abs=0.01)
    assert black + white + unchanged == pytest.approx(1)


def test_gaussian_blur_is_that_of_scipy(images: Tensor) -> None:
    picture = images[0, 0].double().numpy()
    expected = scipy.ndimage.gaussian_filter(picture, 3.0, mode="nearest")
    found = corrupted("gaussian_blur", images)
    np.testing.assert_allclose(found[0, 0].numpy(), expected, atol=1e-6)


def test_motion_blur_is_a_half_gaussian_along_a_line() -> None:
    """A point is spread by half a Gaussian, in one direction within 45 degrees of horizontal."""
    point = torch.zeros(8, 1, 81, 81)
    point[..., 40, 40] = 1.0
    blurred = corrupted("motion_blur", point, 1)[:, 0]
    radius, deviation = constant("motion_blur", 1)
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * deviation**2))
    mean = np.average(steps, weights=weights)
    offsets = torch.arange(81.0) - 40
    right = blurred.sum(1) @ offsets
    down = blurred.sum(2) @ offsets
    torch.testing.assert_close(blurred.sum((1, 2)), torch.ones(8), rtol=0, atol=1e-4)
    distances = torch.hypot(right, down)
    np.testing.assert_allclose(distances.numpy(), mean, rtol=0, atol=1e-3)
    angles = torch.atan2(down, right)
    largest = angles.abs().max()
    assert largest <= math.pi / 4 + 1e-4
    assert angles.max() - angles.min() > 0.3


def test_pixelate_is_that_of_pillow(images: Tensor) -> None:
    picture = Image.fromarray(images[0, 0].numpy())
    for severity in (1, 2, 3, 4, 5):
        size = int(28 * constant("pixelate", severity))
        small = picture.resize((size, size), Image.Resampling.BOX)
        expected = small.resize((28, 28), Image.Resampling.BOX)
        found = corrupted("pixelate", images, severity)[0, 0]
        np.testing.assert_allclose(found, np.asarray(expected), atol=1e-6)


def test_jpeg_is_whole_grey_levels_and_nearly_the_image(images: Tensor) -> None:
    compressed = corrupted("jpeg", images, 1)
    levels = 255 * compressed
    torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-4)
    change = (compressed - images).abs().mean()
    assert 0.001 < change < 0.05


def test_jpeg_of_two_channels_is_of_two_images(images: Tensor) -> None:
    first, second = images[:2], images[2:4]
    pair = torch.cat([first, second], 1)
    compressed = corrupted("jpeg", pair, 1)
    torch.testing.assert_close(compressed[:, :1], corrupted("jpeg", first, 1))
    torch.testing.assert_close(compressed[:, 1:], corrupted("jpeg", second, 1))


@pytest.mark.parametrize(
    ("kind", "severity", "shape", "before", "after"),
    [
        ("brightness", 3, (1, 1, 1, 3), [0.0, 0.25, 0.9], [0.3, 0.55, 1.0]),
        # the value rises, hue and saturation stay
        ("brightness", 2, (1, 3, 1, 1), [0.4, 0.2, 0.0], [0.6, 0.3, 0.0]),
        ("contrast", 3, (1, 1, 2, 2), [0.0, 1.0, 0.5, 0.5], [0.4, 0.6, 0.5, 0.5]),
        # each channel about its mean
        ("contrast", 1, (1, 2, 1, 2), [0.0, 1.0, 0.4, 0.6], [0.3, 0.7, 0.46, 0.54]),
    ],
)
def test_grey_levels_by_hand(
    kind: str, severity: int, shape: Any, before: list[float], after: list[float]
) -> None:
    image = torch.tensor(before).view(shape)
    expected = torch.tensor(after).view(shape)
    torch.testing.assert_close(corrupted(kind, image, severity), expected)


def test_stripe_is_7_of_28_pixels_on_both_sides(images: Tensor) -> None:
    expected = images.clone()
    expected[..., :7] = 1 - images[..., :7]
    expected[..., 21:] = 1 - images[..., 21:]
    torch.testing.assert_close(corrupted("stripe", images, 5), expected)
    narrow = corrupted("stripe", images, 1)
    assert torch.equal(narrow[..., 1:27], images[..., 1:27])


def test_fog_keeps_the_brightest_pixel(images: Tensor) -> None:
    foggy = corrupted("fog", images, 5)
    brightest = images.amax((1, 2, 3))
    assert (foggy.amax((1, 2, 3)) <= brightest + 1e-6).all()
    black = torch.zeros(8, 1, 28, 28)
    assert torch.equal(corrupted("fog", black, 5), black)


def test_clouds_of_fog_are_smooth() -> None:
    """They are measured on black, beside a white edge, because fog is as bright as the brightest pixel."""
    amount, _ = constant("fog", 5)
    with_white_edge = torch.zeros(8, 1, 28, 28)
    with_white_edge[..., 27] = 1
    foggy = corrupted("fog", with_white_edge, 5)
    clouds = foggy[..., :27] * (1 + amount) / amount
    assert clouds.min() >= 0
    assert clouds.max() <= 1
    assert clouds.std((1, 2, 3)).min() > 0.005
    steps = clouds.diff(dim=3).abs()
    assert steps.mean() / clouds.std() < 0.3


def test_plasma_fits_together_at_its_edges_and_is_rougher_with_less_decay() -> None:
    smooth, rough = _plasma(KEYS, 64, 2.0), _plasma(KEYS, 64, 1.2)
    for axis in (1, 2):
        step = mean_step(smooth, axis)
        assert step < 0.05
        assert step < mean_step(rough, axis) / 2


def mean_step(heights: Tensor, axis: int) -> Tensor:
    """Return the mean difference of neighbours, across the edges as well."""
    steps = heights - heights.roll(1, axis)
    return steps.abs().mean()


def test_spatter_is_grey_mud_on_black_and_on_white() -> None:
    black = corrupted("spatter", torch.zeros(8, 1, 60, 60), 2)
    white = corrupted("spatter", torch.ones(8, 1, 60, 60), 2)
    mud = 63 / 255
    assert 0.03 < share(black > 0) < 0.4
    assert black.max().item() <= mud + 1e-6
    assert black[black > 0].min() >= 0.8 * mud - 1e-6  # thinner mud counts for nothing
    torch.testing.assert_close(white, 1 - black / mud + black, rtol=0, atol=1e-5)


def test_spatter_is_brown_mud_in_colour() -> None:
    muddy = corrupted("spatter", torch.zeros(8, 3, 60, 60), 2)
    brown = 255 * muddy.amax((0, 2, 3))
    assert brown.tolist() == pytest.approx([63, 42, 20], abs=0.003)


def test_elastic_moves_pixels_by_as_much_as_it_should() -> None:
    """The grey levels of a ramp give the former position of a pixel; shifts to the right and down are independent."""
    line = torch.arange(28.0) / 28
    ramp = line.expand(8, 2, 28, 28).clone()
    ramp[:, 1] = ramp[:, 0].mT

    def moved(severity: int) -> Tensor:
        """Return by how many pixels the image moved, away from the edges."""
        change = corrupted("elastic", ramp, severity) - ramp
        return 28 * change[:, :, 8:20, 8:20]

    strong = moved(5)
    assert 0.5 < strong.std() < 3.4  # 0.12 * 28 is the largest
    assert strong.mean((2, 3)).abs().max() < 1.5
    right_and_down = strong.transpose(0, 1).flatten(1)
    correlation = torch.corrcoef(right_and_down)[0, 1]
    assert correlation.abs() < 0.3
    weak = moved(3)
    assert weak.std() < 0.6 * strong.std()
