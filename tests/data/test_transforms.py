"""Transforms: random numbers equal SplitMix64 in Python integers, shifts equal loops, affine equals scipy."""

from itertools import product

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch.testing import assert_close
from torchvision.transforms import v2

from capsule_lab.data import transforms
from tests.helpers.affine import affine_by_scipy

WORD = 2**64
PUBLISHED = (  # first outputs of SplitMix64 seeded with 1234567, from the generator's reference code
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
)


def splitmix(state: int, output: int) -> int:
    """Output number ``output`` of SplitMix64 seeded with ``state``."""
    z = (state + (output + 1) * 0x9E3779B97F4A7C15) % WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


def draw(key: int, stream: int) -> int:
    return splitmix(key % WORD, stream) >> 1


def chi_square(values: torch.Tensor, cells: int) -> float:
    """The deviation of whole numbers below ``cells`` from a uniform distribution."""
    counts = values.bincount(minlength=cells)
    expected = len(values) / cells
    deviation = (counts - expected) ** 2 / expected
    return float(deviation.sum())


@pytest.mark.parametrize(("stream", "published"), [*enumerate(PUBLISHED)])
def test_random_bits_are_the_published_splitmix64(stream, published):
    seed = 1234567
    assert splitmix(seed, stream) == published
    bits = transforms.random_bits(torch.tensor([seed]), stream)
    assert bits.item() == published >> 1


@pytest.mark.parametrize("stream", [0, 1, 2, 1000, 2**32])
@pytest.mark.parametrize("key", [0, 1, -1, 59_999, 2**63 - 1, -(2**63), 0x1234_5678_9ABC_DEF0])
def test_random_numbers_equal_big_integers(key, stream):
    keys = torch.tensor([[key], [key]])
    bits = draw(key, stream)
    assert transforms.random_bits(keys, stream).tolist() == [[bits], [bits]]
    upper_24_of_63_bits = bits >> 39
    for low, high in [(0.0, 1.0), (-63.0, 63.0), (2.0, 2.0)]:
        expected = low + (high - low) * upper_24_of_63_bits / 2**24
        drawn = transforms.random_uniform(keys[0], stream, low, high)
        assert drawn.item() == pytest.approx(expected, rel=1e-6, abs=1e-5)


@pytest.mark.parametrize("seed", [0, 1, 2**31])
@pytest.mark.parametrize("epoch", [0, 1, 500])
def test_sample_key_equals_big_integers_in_any_order(seed, epoch):
    order = [59_999, 0, 1, 7]
    run = draw(seed, 0)
    expected = [draw(run ^ index, epoch + 1) for index in order]
    found = transforms.sample_key(seed, epoch, torch.tensor(order))
    assert found.tolist() == expected


def test_no_two_samples_share_a_key():
    index = torch.arange(1000)
    keys = []
    for seed, epoch in product(range(5), range(10)):
        keys.append(transforms.sample_key(seed, epoch, index))
    different = torch.cat(keys).unique()
    assert len(different) == 50_000


def test_element_keys_are_different_and_do_not_depend_on_the_batch():
    batch = torch.tensor([3, 4, 5])
    keys = transforms.element_keys(batch, (2, 30, 40))
    assert keys.shape == (3, 2, 30, 40)
    assert len(keys.unique()) == keys.numel()
    (alone,) = transforms.element_keys(batch[1:2], (2, 30, 40))
    assert alone.equal(keys[1])
    (smaller,) = transforms.element_keys(batch[1:2], (30, 40))
    assert smaller.equal(keys[1, 0])
    uniform = transforms.random_uniform(keys, 0, 0.0, 10.0)
    digits = uniform.flatten().long()
    assert chi_square(digits, 10) < 27.9  # 9 degrees of freedom: 1 in 1000


@pytest.mark.parametrize(("low", "high"), [(-2, 2), (0, 1), (3, 3), (-1, 8)])
def test_random_integers_cover_exactly_their_range(low, high):
    keys = torch.arange(2000)
    values = transforms.random_integers(keys, 0, low, high).unique()
    assert values.tolist() == list(range(low, high + 1))


@pytest.mark.parametrize(("epoch", "stream"), [(0, 1), (1, 0)], ids=["streams", "epochs"])
def test_draws_of_one_sample_are_uniform_and_independent(epoch, stream):
    index = torch.arange(50_000)
    key = transforms.sample_key(0, 0, index)
    other_key = transforms.sample_key(0, epoch, index)
    first = transforms.random_integers(key, 0, 0, 4)
    second = transforms.random_integers(other_key, stream, 0, 4)
    pairs = 5 * first + second
    assert chi_square(pairs, 25) < 60.8  # 24 degrees of freedom: exceeded once in 20,000


def shift_slowly(images: np.ndarray, down: list[int], right: list[int]) -> np.ndarray:
    moved = np.zeros_like(images)
    batch, channels, height, width = images.shape
    for b, c, h, w in np.ndindex(batch, channels, height, width):
        to_h = h + down[b]
        to_w = w + right[b]
        if 0 <= to_h < height and 0 <= to_w < width:
            moved[b, c, to_h, to_w] = images[b, c, h, w]
    return moved


@pytest.mark.parametrize("largest", [2, 3, 5, (2, 4)])
def test_shift_moves_each_image_by_its_own_offset(largest):
    images = torch.arange(1.0, 25 * 2 * 5 * 7 + 1).reshape(25, 2, 5, 7)
    offsets = torch.arange(-2, 3)
    down, right = torch.cartesian_prod(offsets, offsets).T
    moved = transforms.shift(images, down, right, largest)
    expected = shift_slowly(images.numpy(), down.tolist(), right.tolist())
    assert_array_equal(moved, expected)


@pytest.mark.parametrize(
    ("largest", "down", "right"),
    [
        (2, 2, 2),
        ((1, 4), 1, 4),
        ((0, 3), 0, 3),
    ],
)
def test_a_random_shift_has_a_draw_and_a_limit_for_each_direction(largest, down, right):
    values = torch.arange(1.0, 25 * 2 * 5 * 7 + 1)
    images = values.reshape(25, 2, 5, 7)
    key = transforms.sample_key(0, 0, torch.arange(25))
    moved = transforms.random_shift(images, key, largest, stream=3)
    downs = transforms.random_integers(key, 3, -down, down)
    rights = transforms.random_integers(key, 4, -right, right)
    expected = transforms.shift(images, downs, rights, max(down, right))
    assert moved.equal(expected)


def test_crop_takes_each_image_from_its_own_corner():
    images = torch.arange(25.0 * 2 * 7 * 8).reshape(25, 2, 7, 8)
    corners = torch.cartesian_prod(torch.arange(5), torch.arange(5))
    tops, lefts = corners.T
    cropped = transforms.crop(images, tops, lefts, 3)
    for number, (top, left) in enumerate(corners.tolist()):
        expected = images[number, :, top : top + 3, left : left + 3]
        assert cropped[number].equal(expected)


@pytest.mark.parametrize(
    ("size", "steps"),
    [
        (24, [(12, 11), (13, 11), (13, 10)]),
        (31, [(9, 8), (9, 7), (10, 7)]),
        (47, [(1, 0), (1, 0), (1, 0)]),
    ],
)
def test_thirteen_corners_are_the_centre_and_two_diagonals(size, steps):
    expected = [transforms.centre_corner(48, size)]
    for far, near in steps:
        expected += [(far, far), (far, near), (near, far), (near, near)]
    assert transforms.thirteen_corners(48, size) == expected


def test_to_unit_interval_fills_the_interval_evenly():
    pixels = torch.arange(256, dtype=torch.uint8)
    assert_close(transforms.to_unit_interval(pixels), torch.linspace(0, 1, 256))


def test_standardise_limits_the_deviation_from_below():
    pixels = 2 * 32 * 32
    images = torch.full((2, 2, 32, 32), 7.0)
    # deviation 0.5 * sqrt(2047) / 2048 = 0.011, below 1 / sqrt(2048) = 0.022
    images[1, 0, 0, 0] = 7.5
    even, uneven = transforms.standardise(images)
    assert even.equal(torch.zeros(2, 32, 32))
    above_mean = 0.5 * (pixels - 1) / pixels
    expected = torch.tensor(above_mean * pixels**0.5)
    assert_close(uneven[0, 0, 0], expected)


@pytest.mark.parametrize(
    ("around", "rows"),
    [
        ("border", [[1, 1, 1], [4, 4, 4]]),
        ("zeros", [[0, 0, 1], [0, 0, 4]]),
    ],
)
def test_affine_pads_with_zeros_or_the_border(around, rows):
    image = torch.arange(1.0, 7).view(1, 1, 2, 3)
    zero, one, two = torch.tensor([[0.0], [1.0], [2.0]])
    moved = transforms.affine(
        image,
        rotation=zero,
        shear=zero,
        scale_x=one,
        scale_y=one,
        right=two,
        down=zero,
        around=around,
    )
    expected = torch.tensor(rows).float()
    assert_close(moved[0, 0], expected)


@pytest.mark.parametrize(
    ("rotation", "shear"),
    [
        (0.0, 0.0),
        (0.3, 0.2),
        (-0.2, 0.1),
        (1.6, 0.0),
        (3.0, -0.5),
    ],
)
@pytest.mark.parametrize(("scale_x", "scale_y"), [(0.8, 1.2), (1.2, 0.8), (1.0, 1.0)])
@pytest.mark.parametrize(("right", "down"), [(0.0, 0.0), (3.0, -5.0)])
def test_affine_equals_that_of_scipy(rotation, shear, scale_x, scale_y, right, down):
    # black at the edge, which the two treat differently
    image = np.pad(np.random.default_rng(0).random((20, 24)), 10)
    expected = affine_by_scipy(image, rotation, shear, scale_x, scale_y, right, down)
    moved = transforms.affine(
        torch.from_numpy(image).float()[None, None],
        rotation=torch.tensor([rotation]),
        shear=torch.tensor([shear]),
        scale_x=torch.tensor([scale_x]),
        scale_y=torch.tensor([scale_y]),
        right=torch.tensor([right]),
        down=torch.tensor([down]),
    )
    assert_allclose(moved[0, 0], expected, atol=2e-4)


def test_transform_each_seeds_the_pipeline_with_the_key_of_the_image():
    pipeline = v2.Compose(
        [
            v2.RandomCrop(8),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.GaussianNoise(),
        ]
    )
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (3, 3, 10, 10), dtype=torch.uint8, generator=generator)
    key = torch.tensor([7, 2**62 + 5, 0])
    before = torch.get_rng_state()
    results = transforms.transform_each(pipeline, images, key)
    assert torch.get_rng_state().equal(before)
    with torch.random.fork_rng([]):
        for image, seed, result in zip(images, key.tolist(), results, strict=True):
            torch.default_generator.manual_seed(seed)
            assert pipeline(image).equal(result)
