"""Transforms: random numbers equal SplitMix64 in Python integers, shifts equal loops, affine equals scipy."""

from itertools import product

import numpy as np
import pytest
import torch
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
    expected = len(values) / cells
    return float(((values.bincount(minlength=cells) - expected) ** 2 / expected).sum())


def test_random_bits_are_the_published_splitmix64():
    assert tuple(splitmix(1234567, stream) for stream in range(5)) == PUBLISHED
    assert [transforms.random_bits(torch.tensor([1234567]), n).item() for n in range(5)] == [
        w >> 1 for w in PUBLISHED
    ]


@pytest.mark.parametrize("stream", [0, 1, 2, 1000, 2**32])
@pytest.mark.parametrize("key", [0, 1, -1, 59_999, 2**63 - 1, -(2**63), 0x1234_5678_9ABC_DEF0])
def test_random_numbers_equal_big_integers(key, stream):
    keys = torch.tensor([[key], [key]])
    assert transforms.random_bits(keys, stream).tolist() == [[draw(key, stream)]] * 2
    upper_24_of_63_bits = draw(key, stream) >> 39
    for low, high in [(0.0, 1.0), (-63.0, 63.0), (2.0, 2.0)]:
        expected = low + (high - low) * upper_24_of_63_bits / 2**24
        assert transforms.random_uniform(keys[0], stream, low, high).item() == pytest.approx(
            expected, 1e-6, 1e-5
        )


def test_sample_key_equals_big_integers_in_any_order():
    order = [59_999, 0, 1, 7]
    for seed, epoch in product((0, 1, 2**31), (0, 1, 500)):
        expected = [draw(draw(seed, 0) ^ index, epoch + 1) for index in order]
        assert transforms.sample_key(seed, epoch, torch.tensor(order)).tolist() == expected


def test_no_two_samples_share_a_key():
    keys = torch.cat(
        [transforms.sample_key(*each, torch.arange(1000)) for each in product(range(5), range(10))]
    )
    assert len(keys.unique()) == len(keys)


def test_element_keys_are_different_and_do_not_depend_on_the_batch():
    keys = transforms.element_keys(torch.tensor([3, 4, 5]), (2, 30, 40))
    assert keys.shape == (3, 2, 30, 40)
    assert len(keys.unique()) == keys.numel()
    assert torch.equal(transforms.element_keys(torch.tensor([4]), (2, 30, 40))[0], keys[1])
    assert torch.equal(transforms.element_keys(torch.tensor([4]), (30, 40))[0], keys[1, 0])
    uniform = transforms.random_uniform(keys, 0, 0.0, 1.0)
    assert chi_square((10 * uniform.flatten()).long(), 10) < 27.9  # 9 degrees of freedom: 1 in 1000


def test_random_integers_cover_exactly_their_range():
    for low, high in [(-2, 2), (0, 1), (3, 3), (-1, 8)]:
        values = transforms.random_integers(torch.arange(2000), 0, low, high)
        assert values.unique().tolist() == list(range(low, high + 1))


@pytest.mark.parametrize("draws", [[(0, 0), (0, 1)], [(0, 0), (1, 0)]], ids=["streams", "epochs"])
def test_draws_of_one_sample_are_uniform_and_independent(draws):
    index = torch.arange(50_000)
    first, second = (
        transforms.random_integers(transforms.sample_key(0, epoch, index), stream, -2, 2) + 2
        for epoch, stream in draws
    )
    assert (
        chi_square(5 * first + second, 25) < 60.8
    )  # 24 degrees of freedom: exceeded once in 20,000


def shift_slowly(images: np.ndarray, down: list[int], right: list[int]) -> np.ndarray:
    moved = np.zeros_like(images)
    batch, channels, height, width = images.shape
    for b, c, h, w in np.ndindex(batch, channels, height, width):
        to_h, to_w = h + down[b], w + right[b]
        if 0 <= to_h < height and 0 <= to_w < width:
            moved[b, c, to_h, to_w] = images[b, c, h, w]
    return moved


@pytest.mark.parametrize("largest", [2, 3, 5])
def test_shift_moves_each_image_by_its_own_offset(largest):
    images = torch.arange(1.0, 25 * 2 * 5 * 7 + 1).reshape(25, 2, 5, 7)
    down, right = torch.cartesian_prod(torch.arange(-2, 3), torch.arange(-2, 3)).unbind(1)
    moved = transforms.shift(images, down, right, largest)
    np.testing.assert_array_equal(
        moved.numpy(), shift_slowly(images.numpy(), down.tolist(), right.tolist())
    )


def test_crop_takes_each_image_from_its_own_corner():
    images = torch.arange(25 * 2 * 7 * 8, dtype=torch.float32).reshape(25, 2, 7, 8)
    top, left = torch.cartesian_prod(torch.arange(5), torch.arange(5)).unbind(1)
    cropped = transforms.crop(images, top, left, 3)
    expected = [
        image[:, t : t + 3, c : c + 3]
        for image, t, c in zip(images, top.tolist(), left.tolist(), strict=True)
    ]
    assert cropped.equal(torch.stack(expected))


def test_thirteen_corners_are_the_centre_and_two_diagonals():
    for size, places in [
        (24, [(12, 11), (13, 11), (13, 10)]),
        (31, [(9, 8), (9, 7), (10, 7)]),
        (47, [(1, 0), (1, 0), (1, 0)]),
    ]:
        centre, *diagonals = transforms.thirteen_corners(48, size)
        assert centre == transforms.centre_corner(48, size)
        assert diagonals == [
            (top, left) for far, near in places for top in (far, near) for left in (far, near)
        ]


def test_to_unit_interval_fills_the_interval_evenly():
    pixels = transforms.to_unit_interval(torch.arange(256, dtype=torch.uint8))
    torch.testing.assert_close(pixels, torch.linspace(0, 1, 256))


def test_standardise_limits_the_deviation_from_below():
    images = torch.full((2, 2, 32, 32), 7.0)
    images[1, 0, 0, 0] = (
        7.5  # deviation 0.5 * sqrt(2047) / 2048 = 0.011, below 1 / sqrt(2048) = 0.022
    )
    standard = transforms.standardise(images)
    assert standard[0].equal(torch.zeros(2, 32, 32))
    torch.testing.assert_close(standard[1, 0, 0, 0], torch.tensor(0.5 * 2047 / 2048 * 2048**0.5))


@pytest.mark.parametrize(
    ("around", "rows"), [("border", [[1, 1, 1], [4, 4, 4]]), ("zeros", [[0, 0, 1], [0, 0, 4]])]
)
def test_affine_pads_with_zeros_or_the_border(around, rows):
    image, still, size = torch.arange(1.0, 7).view(1, 1, 2, 3), torch.zeros(1), torch.ones(1)
    moved = transforms.affine(
        image,
        rotation=still,
        shear=still,
        scale_x=size,
        scale_y=size,
        right=still + 2,
        down=still,
        around=around,
    )
    torch.testing.assert_close(moved[0, 0], torch.tensor(rows).float())


@pytest.mark.parametrize(
    ("rotation", "shear"), [(0.0, 0.0), (0.3, 0.2), (-0.2, 0.1), (1.6, 0.0), (3.0, -0.5)]
)
@pytest.mark.parametrize(("scale_x", "scale_y"), [(0.8, 1.2), (1.2, 0.8), (1.0, 1.0)])
@pytest.mark.parametrize(("right", "down"), [(0.0, 0.0), (3.0, -5.0)])
def test_affine_equals_that_of_scipy(rotation, shear, scale_x, scale_y, right, down):
    image = np.pad(
        np.random.default_rng(0).random((20, 24)), 10
    )  # black at the edge, which the two treat apart
    expected = affine_by_scipy(image, rotation, shear, scale_x, scale_y, right, down)
    drawn = {
        "rotation": rotation,
        "shear": shear,
        "scale_x": scale_x,
        "scale_y": scale_y,
        "right": right,
        "down": down,
    }
    tensors = {name: torch.tensor([value]) for name, value in drawn.items()}
    moved = transforms.affine(torch.from_numpy(image).float()[None, None], **tensors)
    np.testing.assert_allclose(moved[0, 0].numpy(), expected, atol=2e-4)


def test_transform_each_seeds_the_pipeline_with_the_key_of_the_image():
    whole = v2.ToDtype(torch.float32, scale=True)
    pipeline = v2.Compose([v2.RandomCrop(8), v2.RandomHorizontalFlip(), whole, v2.GaussianNoise()])
    images = torch.randint(0, 256, (3, 3, 10, 10), generator=torch.Generator().manual_seed(0)).to(
        torch.uint8
    )
    key = torch.tensor([7, 2**62 + 5, 0])
    before = torch.get_rng_state()
    results = transforms.transform_each(pipeline, images, key)
    assert torch.get_rng_state().equal(before)
    with torch.random.fork_rng([]):
        for image, seed, result in zip(images, key.tolist(), results, strict=True):
            torch.default_generator.manual_seed(seed)
            assert pipeline(image).equal(result)
