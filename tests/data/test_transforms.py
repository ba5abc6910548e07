"""Random draws against SplitMix64 in Python's big integers, shifts against a loop over pixels."""

from __future__ import annotations

import math

import numpy as np
import scipy.ndimage
import torch
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as torchvision_transforms

from capsule_lab.data.transforms import (
    affine,
    brightness,
    centre_corner,
    contrast,
    crop,
    crop_at,
    element_keys,
    mirror,
    random_bits,
    random_integers,
    random_uniform,
    sample_key,
    shift,
    standardise,
    thirteen_corners,
    to_unit_interval,
    transform_each,
)

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
    return splitmix(key, stream) >> 1


def chi_square(values: torch.Tensor, cells: int) -> float:
    expected = len(values) / cells
    return float(((values.bincount(minlength=cells) - expected) ** 2 / expected).sum())


def test_random_bits_are_the_published_splitmix64():
    for stream in range(5):
        assert splitmix(1234567, stream) == PUBLISHED[stream]
        assert random_bits(torch.tensor([1234567]), stream).item() == PUBLISHED[stream] >> 1


def test_random_bits_equal_big_integers():
    for stream in [0, 1, 2, 1000, 2**32]:
        for key in [0, 1, -1, 59_999, 2**63 - 1, -(2**63), 0x1234_5678_9ABC_DEF0]:
            assert random_bits(torch.tensor([key]), stream).item() == draw(key % WORD, stream)


def test_random_bits_keep_the_shape_and_are_not_negative():
    bits = random_bits(torch.arange(-6, 6).reshape(3, 4), 0)
    assert bits.shape == (3, 4)
    assert bits.dtype == torch.int64
    assert (bits >= 0).all()


def test_sample_key_equals_big_integers():
    for seed in [0, 1, 2**31]:
        for epoch in [0, 1, 500]:
            for index in [0, 1, 59_999]:
                assert sample_key(seed, epoch, torch.tensor([index])).item() == draw(draw(seed, 0) ^ index, epoch + 1)


def test_keys_do_not_depend_on_grouping():
    for group in [1, 7, 64, 100]:
        index = torch.arange(100)
        grouped = torch.cat([sample_key(3, 5, part) for part in index.split(group)])
        assert grouped.equal(sample_key(3, 5, index))


def test_keys_do_not_depend_on_order():
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    assert sample_key(3, 5, order).equal(sample_key(3, 5, torch.arange(100))[order])


def test_seed_and_epoch_each_change_every_key():
    for seed, epoch in [(4, 5), (3, 6), (5, 3)]:
        index = torch.arange(1000)
        assert not (sample_key(seed, epoch, index) == sample_key(3, 5, index)).any()


def test_no_two_samples_share_a_key():
    keys = torch.cat([sample_key(seed, epoch, torch.arange(1000)) for seed in range(5) for epoch in range(10)])
    assert len(keys.unique()) == len(keys)


def test_random_integers_reach_both_ends_and_no_further():
    for low, high in [(-2, 2), (0, 1), (3, 3), (-1, 8)]:
        values = random_integers(torch.arange(2000), 0, low, high)
        assert values.unique().tolist() == list(range(low, high + 1))


def test_moves_are_uniform():
    for stream in [0, 1]:
        for epoch in [0, 1, 7]:
            values = random_integers(sample_key(0, epoch, torch.arange(50_000)), stream, -2, 2)
            assert chi_square(values + 2, 5) < 23.5  # 4 degrees of freedom: exceeded once in 10,000


def test_streams_of_one_key_are_independent():
    key = sample_key(0, 0, torch.arange(50_000))
    down, right = (random_integers(key, stream, -2, 2) + 2 for stream in (0, 1))
    assert chi_square(5 * down + right, 25) < 60.8  # 24 degrees of freedom: exceeded once in 20,000


def test_epochs_of_one_sample_are_independent():
    first, second = (random_integers(sample_key(0, epoch, torch.arange(50_000)), 0, -2, 2) + 2 for epoch in (0, 1))
    assert chi_square(5 * first + second, 25) < 60.8  # 24 degrees of freedom: exceeded once in 20,000


def shift_slowly(images: np.ndarray, down: list[int], right: list[int]) -> np.ndarray:
    moved = np.zeros_like(images)
    batch, channels, height, width = images.shape
    for b, c, h, w in np.ndindex(batch, channels, height, width):
        to_h, to_w = h + down[b], w + right[b]
        if 0 <= to_h < height and 0 <= to_w < width:
            moved[b, c, to_h, to_w] = images[b, c, h, w]
    return moved


def test_shift_moves_by_whole_pixels_and_zeros_move_in():
    for down in range(-2, 3):
        for right in range(-2, 3):
            images = torch.arange(1.0, 2 * 2 * 5 * 7 + 1).reshape(2, 2, 5, 7)
            moved = shift(images, torch.tensor([down, down]), torch.tensor([right, right]), 2)
            np.testing.assert_array_equal(moved.numpy(), shift_slowly(images.numpy(), [down] * 2, [right] * 2))


def test_each_image_moves_by_its_own_offset():
    for largest in [2, 3, 5]:
        images = torch.arange(1.0, 25 * 4 * 4 + 1).reshape(25, 1, 4, 4)
        down, right = torch.cartesian_prod(torch.arange(-2, 3), torch.arange(-2, 3)).unbind(1)
        moved = shift(images, down, right, largest)
        np.testing.assert_array_equal(moved.numpy(), shift_slowly(images.numpy(), down.tolist(), right.tolist()))


def test_shift_of_one_pixel_goes_down_and_right():
    image = torch.zeros(1, 1, 5, 5)
    image[0, 0, 1, 1] = 1
    moved = shift(image, torch.tensor([2]), torch.tensor([1]), 2)
    assert moved.nonzero().tolist() == [[0, 0, 3, 2]]


def test_to_unit_interval():
    for stored, pixel in [(0, 0.0), (51, 0.2), (255, 1.0)]:
        pixels = to_unit_interval(torch.full((2, 1, 3, 3), stored, dtype=torch.uint8))
        assert pixels.dtype == torch.float32
        torch.testing.assert_close(pixels, torch.full((2, 1, 3, 3), pixel))


def test_to_unit_interval_fills_the_interval_evenly():
    pixels = to_unit_interval(torch.arange(256, dtype=torch.uint8))
    torch.testing.assert_close(pixels, torch.linspace(0, 1, 256))


def test_random_uniform_fills_its_range():
    for low, high in [(0.0, 1.0), (-63.0, 63.0), (0.2, 1.8), (2.0, 2.0)]:
        values = random_uniform(torch.arange(20_000), 0, low, high)
        assert values.dtype == torch.float32
        assert low <= values.min() <= low + 1e-3 * (high - low)
        assert high - 1e-3 * (high - low) <= values.max() <= high
        if low < high:
            cells = ((values.double() - low) / (high - low) * 20).long()
            assert chi_square(cells, 20) < 54  # 19 degrees of freedom: exceeded about twice in 100,000


def test_random_uniform_equals_big_integers():
    """The upper 24 of 63 bits."""
    for key in [0, 1, -1, 2**63 - 1, 0x1234_5678_9ABC_DEF0]:
        for stream in [0, 3]:
            assert (
                random_uniform(torch.tensor([key]), stream, 0.0, 1.0).item() == (draw(key % WORD, stream) >> 39) / 2**24
            )


def test_crop_takes_each_image_from_its_own_corner():
    images = torch.arange(25 * 2 * 7 * 8, dtype=torch.float32).reshape(25, 2, 7, 8)
    top, left = torch.cartesian_prod(torch.arange(5), torch.arange(5)).unbind(1)
    cropped = crop(images, top, left, 3)
    expected = [image[:, t : t + 3, c : c + 3] for image, t, c in zip(images, top.tolist(), left.tolist(), strict=True)]
    assert cropped.equal(torch.stack(expected))


def test_mirror_exchanges_left_and_right_where_asked():
    images = torch.arange(3 * 2 * 4 * 5).reshape(3, 2, 4, 5)
    mirrored = mirror(images, torch.tensor([True, False, True]))
    assert mirrored.equal(torch.stack([images[0].flip(2), images[1], images[2].flip(2)]))
    assert mirrored[0, 0, 0].tolist() == [4, 3, 2, 1, 0]


def test_crop_at_takes_all_images_from_one_corner():
    for corner in [(0, 0), (8, 8), (7, 9), (16, 16)]:
        images = torch.arange(3 * 2 * 48 * 48, dtype=torch.float32).reshape(3, 2, 48, 48)
        top, left = (torch.full((3,), place) for place in corner)
        assert crop_at(images, corner, 32).equal(crop(images, top, left, 32))


def test_crops_of_32_from_48_are_uniform_over_289_positions():
    for epoch in [0, 1]:
        key = sample_key(0, epoch, torch.arange(57_800))
        top, left = (random_integers(key, stream, 0, 16) for stream in (2, 3))
        assert chi_square(17 * top + left, 289) < 384  # 288 degrees of freedom: exceeded about once in 10,000


def test_centre():
    for image_size, size, corner in [(48, 32, 8), (48, 24, 12), (48, 31, 8), (48, 48, 0)]:
        assert centre_corner(image_size, size) == (corner, corner)


def test_thirteen_corners():
    for size, places in [
        (32, [(8, 7), (9, 7), (9, 6)]),
        (24, [(12, 11), (13, 11), (13, 10)]),
        (31, [(9, 8), (9, 7), (10, 7)]),
        (47, [(1, 0), (1, 0), (1, 0)]),
        (48, [(0, 0), (0, 0), (0, 0)]),
    ]:
        centre, *diagonals = thirteen_corners(48, size)
        assert centre == centre_corner(48, size)
        assert diagonals == [(top, left) for far, near in places for top in (far, near) for left in (far, near)]


def test_brightness_is_added_to_every_pixel():
    images = torch.rand(3, 2, 4, 4)
    brighter = brightness(images, torch.tensor([0.0, -5.0, 63.0]))
    assert brighter[0].equal(images[0])
    assert brighter[1].equal(images[1] - 5)
    assert brighter[2].equal(images[2] + 63)


def test_contrast_is_about_the_mean_of_each_channel():
    images = torch.rand(3, 2, 4, 4)
    stretched = contrast(images, torch.tensor([1.0, 0.0, 1.8]))
    mean = images.mean(dim=(2, 3), keepdim=True)
    torch.testing.assert_close(stretched[0], images[0])
    torch.testing.assert_close(stretched[1], mean[1].expand(2, 4, 4))
    torch.testing.assert_close(stretched[2], mean[2] + 1.8 * (images[2] - mean[2]))


def test_standardised_images_have_mean_0_and_deviation_1_over_all_channels():
    images = torch.rand(5, 2, 32, 32) * torch.tensor([10.0, 200.0])[:, None, None]
    deviation, mean = torch.std_mean(standardise(images), dim=(1, 2, 3), correction=0)
    torch.testing.assert_close(mean, torch.zeros(5), rtol=0, atol=1e-5)
    torch.testing.assert_close(deviation, torch.ones(5))


def test_deviation_counts_as_at_least_one_over_the_root_of_the_number_of_pixels():
    images = torch.full((2, 2, 32, 32), 7.0)
    images[1, 0, 0, 0] = 7.5  # deviation 0.5 * sqrt(2047) / 2048 = 0.011, below 1 / sqrt(2048) = 0.022
    standard = standardise(images)
    assert standard[0].equal(torch.zeros(2, 32, 32))
    torch.testing.assert_close(standard[1, 0, 0, 0], torch.tensor(0.5 * 2047 / 2048 * 2048**0.5))


# --- affine transforms


def test_each_element_has_a_key_of_its_own_whatever_the_batch():
    keys = element_keys(torch.tensor([3, 4, 5]), (2, 30, 40))
    assert keys.shape == (3, 2, 30, 40)
    assert len(keys.unique()) == keys.numel()
    assert torch.equal(element_keys(torch.tensor([4]), (2, 30, 40))[0], keys[1])
    assert torch.equal(element_keys(torch.tensor([4]), (30, 40))[0], keys[1, 0])
    uniform = random_uniform(keys, 0, 0.0, 1.0)
    assert chi_square((10 * uniform.flatten()).long(), 10) < 27.9  # 9 degrees of freedom: 1 in 1000


def test_affine_is_that_of_torchvision():
    """torchvision turns clockwise, in degrees, and shears by an angle."""
    for size in [(28, 28), (33, 20), (54, 54)]:
        for angle, shear, scale, right, down in [
            (0, 0, 1, 0, 0),
            (20, 0, 1, 0, 0),
            (-35, 0, 1, 0, 0),
            (0, 11.3, 1, 0, 0),
            (0, 0, 0.8, 0, 0),
            (0, 0, 1.2, 0, 0),
            (0, 0, 1, 3, -5),
            (10, -11.3, 0.9, 0, 0),
            (-20, 11.3, 1.2, 2, 1),
            (90, 0, 1, 0, 0),
            (170, 30, 0.5, -4, 4),
        ]:
            images = torch.rand(2, 1, *size, generator=torch.Generator().manual_seed(0))
            expected = torchvision_transforms.affine(
                images, angle, [right, down], scale, [shear, 0.0], interpolation=InterpolationMode.BILINEAR
            )
            each = torch.ones(2)
            found = affine(
                images, rotation=-math.radians(angle) * each, shear=math.tan(math.radians(shear)) * each,
                scale_x=scale * each, scale_y=scale * each, right=right * each, down=down * each,
            )  # fmt: skip
            torch.testing.assert_close(found, expected, atol=2e-4, rtol=0)


def test_around_an_image_are_zeros_or_its_border():
    for around in ["zeros", "border"]:
        image = torch.arange(1.0, 7).view(1, 1, 2, 3)
        still, size = torch.zeros(1), torch.ones(1)
        found = affine(
            image, rotation=still, shear=still, scale_x=size, scale_y=size, right=still + 2, down=still, around=around
        )
        first = torch.tensor([[1.0, 1, 1], [4, 4, 4]]) if around == "border" else torch.tensor([[0.0, 0, 1], [0, 0, 4]])
        torch.testing.assert_close(found[0, 0], first)


def test_affine_with_two_scales_is_that_of_scipy():
    for scale_x, scale_y in [(0.8, 1.2), (1.2, 0.8), (1.0, 1.1)]:
        for rotation, shear in [(0.0, 0.0), (0.3, 0.2), (-0.2, 0.1)]:
            image = np.pad(
                np.random.default_rng(0).random((20, 24)), 10
            )  # black at the edge, which the two treat apart
            cos, sin = math.cos(rotation), math.sin(rotation)
            # of a point x to the right and y above the middle: stretched, then sheared, then turned counter-clockwise
            forward = np.array([[cos, -sin], [sin, cos]]) @ np.array([[1, shear], [0, 1]]) @ np.diag([scale_x, scale_y])
            flip = np.array([[0, -1], [1, 0]])  # (right, up) to (down, right)
            backward = flip @ np.linalg.inv(forward) @ flip.T
            middle = (np.array(image.shape) - 1) / 2
            expected = scipy.ndimage.affine_transform(image, backward, middle - backward @ middle, order=1)
            drawn = {
                "rotation": rotation,
                "shear": shear,
                "scale_x": scale_x,
                "scale_y": scale_y,
                "right": 0.0,
                "down": 0.0,
            }
            tensors = {name: torch.tensor([value]) for name, value in drawn.items()}
            found = affine(torch.from_numpy(image).float()[None, None], **tensors)
            np.testing.assert_allclose(found[0, 0].numpy(), expected, atol=1e-4)


# --- torchvision's transforms

RANDOM_PIPELINE = v2.Compose(
    [v2.RandomCrop(8), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True), v2.GaussianNoise()]
)


def stored(count: int = 12) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, 10, 10), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def test_each_image_depends_on_its_key_alone():
    for size in [1, 5, 12]:
        images, key = stored(), sample_key(0, 0, torch.arange(12))
        together = transform_each(RANDOM_PIPELINE, images, key)
        parts = [
            transform_each(RANDOM_PIPELINE, *part) for part in zip(images.split(size), key.split(size), strict=True)
        ]
        assert together.shape == (12, 3, 8, 8)
        assert torch.cat(parts).equal(together)
        assert not transform_each(RANDOM_PIPELINE, images, key + 1).equal(together)


def test_images_of_one_batch_are_transformed_differently():
    images = stored(1).expand(12, -1, -1, -1)
    found = transform_each(RANDOM_PIPELINE, images, sample_key(0, 0, torch.arange(12)))
    assert len(found.unique(dim=0)) == 12


def test_torchs_generator_is_left_as_it_was():
    before = torch.get_rng_state()
    transform_each(RANDOM_PIPELINE, stored(), sample_key(0, 0, torch.arange(12)))
    assert torch.get_rng_state().equal(before)


def test_each_image_is_what_the_pipeline_gives_with_the_key_as_seed():
    key = torch.tensor([7, 2**62 + 5])
    found = transform_each(RANDOM_PIPELINE, stored(2), key)
    with torch.random.fork_rng([]):
        for image, seed, result in zip(stored(2), key.tolist(), found, strict=True):
            torch.default_generator.manual_seed(seed)
            assert RANDOM_PIPELINE(image).equal(result)
