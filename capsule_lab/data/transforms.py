"""Transformations of image batches on their device; every random draw is a function of the sample's key."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float, Int64, Shaped, UInt8
from torch import Tensor

Largest = int | tuple[int, int]
"""The largest shift in pixels, in both directions or ``(down, right)``."""

_INCREMENT = 0x9E3779B97F4A7C15  # SplitMix64 (Steele, Lea and Flood 2014)
_ROUNDS = (  # SplitMix64: shift and multiplier
    (30, 0xBF58476D1CE4E5B9),
    (27, 0x94D049BB133111EB),
)


def random_bits(
    key: Int64[Tensor, "*shape"], stream: int | Int64[Tensor, " ..."]
) -> Int64[Tensor, " ..."]:
    """Draw 63 random bits per key with SplitMix64; they depend neither on the device nor on the batching of the keys.

    ``stream`` is the number of the draw; one key gives an independent draw per stream. Several streams are a tensor,
    whose shape is broadcast with that of the keys.
    """
    step = (stream + 1) * _as_int64(_INCREMENT)
    if not isinstance(step, Tensor):  # a tensor wraps around at 64 bits by itself
        step = _as_int64(step)
    bits = key + step
    for count, multiplier in _ROUNDS:
        bits = bits ^ _shift_right(bits, count)
        bits = bits * _as_int64(multiplier)
    bits = bits ^ _shift_right(bits, 31)  # SplitMix64
    return _shift_right(bits, 1)


def random_integers(
    key: Int64[Tensor, "*shape"], stream: int | Int64[Tensor, " ..."], low: int, high: int
) -> Int64[Tensor, " ..."]:
    """Draw uniform integers from ``low`` to ``high``, both included."""
    return low + random_bits(key, stream) % (high - low + 1)


def random_uniform(
    key: Int64[Tensor, "*shape"], stream: int, low: float, high: float
) -> Float[Tensor, "*shape"]:
    """Draw uniform numbers from ``low`` to ``high``, in steps of 2^-24 of the interval, the same on all devices."""
    highest_bits = _shift_right(random_bits(key, stream), 39)  # 39: 63 - 24 bits
    share = highest_bits.float() / 2**24
    return low + (high - low) * share


def element_keys(
    key: Int64[Tensor, " batch"], shape: tuple[int, ...]
) -> Int64[Tensor, " batch *shape"]:
    """Derive a key for each element of a tensor of ``shape`` per sample, for independent draws per element."""
    numbers = torch.arange(torch.Size(shape).numel(), device=key.device)
    of_element = random_bits(numbers, 1).view(1, *shape)
    of_sample = random_bits(key, 0).view(-1, *[1] * len(shape))
    return of_sample ^ of_element


def sample_key(
    seed: int, epoch: int | Int64[Tensor, ""], index: Int64[Tensor, " batch"]
) -> Int64[Tensor, " batch"]:
    """Compute the keys of the samples ``index`` in ``epoch`` of a run with ``seed``."""
    return random_bits(index ^ _bits_of_run(seed), epoch + 1)


@functools.cache
def _bits_of_run(seed: int) -> int:
    return int(random_bits(torch.tensor(seed), 0))


def transform_each(
    pipeline: Callable[[Tensor], Tensor],
    images: UInt8[Tensor, "batch channel height width"],
    key: Int64[Tensor, " batch"],
) -> Tensor:
    """Apply a pipeline of ``torchvision.transforms.v2`` to each image, with torch's generators seeded by its key.

    This is slower than transforming a whole batch. Random numbers from Python or numpy in the pipeline are not seeded.
    The state of torch's generators is restored afterwards.
    """
    with torch.random.fork_rng([images.device] if images.is_cuda else []):
        transformed = []
        for image, seed in zip(images, key.tolist(), strict=True):
            torch.default_generator.manual_seed(seed)
            if images.is_cuda:
                torch.cuda.manual_seed(seed)
            transformed.append(pipeline(image))
    return torch.stack(transformed)


def as_float(images: Shaped[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Convert integers to float32; keep floating-point types, such as float64 in the gradient checks of attacks."""
    return images if images.is_floating_point() else images.float()


def to_unit_interval(images: Shaped[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Scale pixels from 0..255 to [0, 1] (official code of Sabour 2017; required by the decoder's sigmoid)."""
    return as_float(images) / 255


def shift(
    images: Float[Tensor, "batch channel height width"],
    down: Int64[Tensor, " batch"],
    right: Int64[Tensor, " batch"],
    largest: Largest,
) -> Float[Tensor, "batch channel height width"]:
    """Shift each image separately by at most ``largest`` whole pixels, padded with zeros (Sabour 2017, section 5)."""
    height, width = images.shape[2:]
    most_down, most_right = _down_and_right(largest)
    padding = (most_right, most_right, most_down, most_down)
    padded = torch.nn.functional.pad(images, padding)
    return _windows(padded, most_down - down, most_right - right, height, width)


def random_shift(
    images: Float[Tensor, "batch channel height width"],
    key: Int64[Tensor, " batch"],
    largest: Largest,
    stream: int = 0,
) -> Float[Tensor, "batch channel height width"]:
    """Shift each image by up to ``largest`` whole pixels in each direction, with the draws ``stream`` and the next."""
    most_down, most_right = _down_and_right(largest)
    if not (most_down or most_right):
        return images
    streams = torch.arange(stream, stream + 2, device=key.device)[:, None]
    bits_down, bits_right = random_bits(key, streams)
    down = bits_down % (2 * most_down + 1) - most_down
    right = bits_right % (2 * most_right + 1) - most_right
    return shift(images, down, right, largest)


def _down_and_right(largest: Largest) -> tuple[int, int]:
    return (largest, largest) if isinstance(largest, int) else largest


def random_mirror(
    images: Shaped[Tensor, "batch channel height width"], key: Int64[Tensor, " batch"], stream: int
) -> Shaped[Tensor, "batch channel height width"]:
    """Mirror each image left to right with a probability of one half."""
    is_mirrored = random_integers(key, stream, 0, 1).bool()
    return torch.where(is_mirrored[:, None, None, None], images.flip(3), images)


def affine(
    images: Float[Tensor, "batch channel height width"],
    *,
    rotation: Float[Tensor, " batch"],
    shear: Float[Tensor, " batch"],
    scale_x: Float[Tensor, " batch"],
    scale_y: Float[Tensor, " batch"],
    right: Float[Tensor, " batch"],
    down: Float[Tensor, " batch"],
    around: Literal["zeros", "border"] = "zeros",
) -> Float[Tensor, "batch channel height width"]:
    """Scale, shear, rotate about the centre, and shift each image, in this order, with bilinear interpolation.

    Args:
        rotation: radians, counter-clockwise in the displayed image.
        shear: pixels to the right per pixel above the centre.
        scale_x, scale_y: factors; 1 keeps the size.
        right, down: pixels.
        around: padding of the image: ``"zeros"``, or ``"border"``, its outermost pixels repeated.
    """
    height, width = images.shape[2:]
    forward = affine_matrix(rotation=rotation, shear=shear, scale_x=scale_x, scale_y=scale_y)
    # from the new position to the old one, in pixels; linalg.inv would synchronise to check for errors
    backward = torch.linalg.inv_ex(forward).inverse  # [b 2 2]
    moved = -backward @ torch.stack([right, down], 1)[:, :, None]  # [b 2 1]
    # the unit of affine_grid, half of each side; made on the device, without a copy from the CPU
    half_width = images.new_full((1,), width / 2)
    half_height = images.new_full((1,), height / 2)
    half = torch.cat([half_width, half_height])  # [2]
    theta = torch.cat([backward * half / half[:, None], moved / half[:, None]], 2)
    grid = torch.nn.functional.affine_grid(theta, list(images.shape), align_corners=False)
    return torch.nn.functional.grid_sample(
        images, grid, mode="bilinear", padding_mode=around, align_corners=False
    )


def affine_matrix(
    *,
    rotation: Float[Tensor, " batch"],
    shear: Float[Tensor, " batch"],
    scale_x: Float[Tensor, " batch"],
    scale_y: Float[Tensor, " batch"],
) -> Float[Tensor, "batch 2 2"]:
    """Return the matrix that ``affine`` applies to a point (x right, y down, from the centre) before the shift."""
    cos, sin = rotation.cos(), rotation.sin()
    zero = torch.zeros_like(shear)
    turn = torch.stack([cos, sin, -sin, cos], 1).view(-1, 2, 2)
    stretch = torch.stack([scale_x, -shear * scale_y, zero, scale_y], 1).view(-1, 2, 2)
    return turn @ stretch  # first (sx x - shear sy y, sy y), then the turn


def crop(
    images: Shaped[Tensor, "batch channel height width"],
    top: Int64[Tensor, " batch"],
    left: Int64[Tensor, " batch"],
    size: int,
) -> Shaped[Tensor, "batch channel size size"]:
    """Crop a square of ``size`` pixels from each image; its first pixel is at the image's ``(top, left)``."""
    return _windows(images, top, left, size, size)


def _windows(images: Tensor, top: Tensor, left: Tensor, height: int, width: int) -> Tensor:
    """Take one window from each image, through a view of all windows: five times as fast as indexing pixels."""
    views = images.unfold(2, height, 1).unfold(3, width, 1)  # [b channel top left height width]
    sample = torch.arange(len(images), device=images.device)
    return views[sample, :, top, left].contiguous()


def crop_at(
    images: Shaped[Tensor, "batch channel height width"], corner: tuple[int, int], size: int
) -> Shaped[Tensor, "batch channel size size"]:
    """Crop the same square from every image; its first pixel is at ``corner``, ``(top, left)``."""
    top, left = corner
    return images[:, :, top : top + size, left : left + size]


def centre_corner(image_size: int, size: int) -> tuple[int, int]:
    """Return the corner of the central square of ``size`` pixels: (8, 8) for 32 of 48."""
    margin = (image_size - size) // 2
    return margin, margin


def thirteen_corners(image_size: int, size: int) -> list[tuple[int, int]]:
    """Return the corners of the 13 crops in the official code of Hinton 2018: the centre, and 3 steps on 4 diagonals.

    The steps are meant to be 1, 2 and 3 pixels, but the official crop halves them and rounds down: crops of 32 of 48
    begin at 8, at 7 or 8, at 7 or 9, and at 6 or 9; (8, 8) counts twice. Crops stay inside the image.
    """
    margin = image_size - size
    corners = [centre_corner(image_size, size)]
    for shift in (1, 2, 3):  # official code of Hinton 2018
        far = min((margin + shift) // 2, margin)
        near = max((margin - shift) // 2, 0)
        corners += [(far, far), (far, near), (near, far), (near, near)]
    return corners


def contrast(
    images: Float[Tensor, "batch channel height width"], factor: Float[Tensor, " batch"]
) -> Float[Tensor, "batch channel height width"]:
    """Scale each channel about its mean, like TensorFlow's ``adjust_contrast``."""
    mean = images.mean(dim=(2, 3), keepdim=True)
    return mean + factor[:, None, None, None] * (images - mean)


def standardise(
    images: Float[Tensor, "batch channel height width"],
) -> Float[Tensor, "batch channel height width"]:
    """Standardise each image to mean 0 and deviation 1 over all channels, like TensorFlow's
    ``per_image_standardization``. The divisor is at least 1 / sqrt(number of values), so that blank images stay finite.
    """
    deviation, mean = torch.std_mean(images, dim=(1, 2, 3), correction=0, keepdim=True)
    smallest = images.shape[1:].numel() ** -0.5  # as in per_image_standardization
    return (images - mean) / deviation.clamp(min=smallest)


def _as_int64(number: int) -> int:
    """Return the low 64 bits as a signed integer, the only 64-bit integer type that torch computes with."""
    return (number + 2**63) % 2**64 - 2**63


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """Shift logically; torch's own shift keeps the sign."""
    return (bits >> count) & ((1 << (64 - count)) - 1)
