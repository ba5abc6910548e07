"""Corruptions of MNIST-C (Mu and Gilmer 2019), most of which come from ImageNet-C (Hendrycks and Dietterich 2019).

Only the kinds that torch, torchvision and scipy can produce are included. Constants are those of MNIST-C's
``corruptions.py``, for images of 28 x 28 pixels in [0, 1]; lengths are in pixels, whatever the image size. Random draws
derive from the key of an image: they differ from the published files, but are the same in every batch and at every
severity. Unlike the published images, images are not rounded to whole grey levels, except by JPEG.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import scipy.ndimage
import scipy.stats
import torch
from jaxtyping import Float
from torch import Tensor
from torchvision.transforms.v2 import functional as torchvision_transforms

from capsule_lab.data.transforms import affine, contrast, element_keys, random_uniform
from capsule_lab.errors import check_choice
from capsule_studies.attacks.gradient import UNIT, Box, Key
from capsule_studies.attacks.kind import attack

Pictures = Float[Tensor, "batch channel height width"]


@attack("corruption", strengths=(1.0, 2.0, 3.0, 4.0, 5.0), unit="severity")  # Mu and Gilmer 2019
def corruption(
    objective: object,
    images: Pictures,
    epsilon: float,
    key: Key,
    box: Box = UNIT,
    *,
    kind: str = "gaussian_noise",
) -> Pictures:
    """Apply a corruption of MNIST-C (Mu and Gilmer 2019); the strength is a severity, 1 to 5.

    Strength 0 returns the image bit for bit. The bounds of the box are black and white, so that standardised images
    need ``space=grey_levels``. Three channels are red, green and blue. Otherwise the channels are grey images of one
    scene, like the stereo pairs of smallNORB: noise is drawn for each channel; geometry, fog and spatter are shared.
    """
    check_choice("kind", kind, tuple(KINDS))
    check_choice("epsilon, a severity,", epsilon, (0, 1, 2, 3, 4, 5))
    if math.isinf(box.high - box.low):
        raise ValueError(
            "pixels have no bounds, as in standardised images, but a corruption needs black and white; "
            "expected space=grey_levels"
        )
    if epsilon == 0:
        return images
    function, constants = KINDS[kind]
    low, high = (torch.as_tensor(bound).to(images) for bound in box)
    constant = constants[int(epsilon) - 1]
    with torch.no_grad():
        unit = ((images - low) / (high - low)).clamp(0, 1)
        corrupted = function(unit, constant, key).clamp(0, 1)
        return torch.clamp(low + (high - low) * corrupted, low, high)


def _gaussian_noise(images: Pictures, deviation: float, key: Key) -> Pictures:
    normal = _normal(key, 0, tuple(images.shape[1:]))
    return images + deviation * normal.to(images)


def _shot_noise(images: Pictures, photons: float, key: Key) -> Pictures:
    """Simulate a camera that counts ``photons`` photons in a white pixel."""
    uniform = _uniform(key, 0, tuple(images.shape[1:])).cpu().numpy()
    means = (photons * images).double().cpu().numpy()
    counts = torch.from_numpy(scipy.stats.poisson.ppf(uniform, means))
    counts = counts.to(images).clamp(min=0)  # scipy's quantile of 0 is -1
    return counts / photons


def _impulse_noise(images: Pictures, share: float, key: Key) -> Pictures:
    """Make a share of the pixels black or white, with equal probability."""
    uniform = _uniform(key, 0, tuple(images.shape[1:])).to(images.device)
    black_or_white = (uniform < share / 2).to(images)
    return torch.where(uniform < share, black_or_white, images)


def _gaussian_blur(images: Pictures, deviation: float, _: Key) -> Pictures:
    return _smoothed(images, deviation)


def _motion_blur(images: Pictures, constants: tuple[int, float], key: Key) -> Pictures:
    """Simulate a camera that moves along a line within 45 degrees of horizontal, one-sided as in ImageMagick.

    It interpolates between pixels; ImageMagick takes the nearest pixel.
    """
    radius, deviation = constants
    angle = random_uniform(key, 0, -torch.pi / 4, torch.pi / 4).to(images)
    width = 2 * radius + 1  # ImageMagick: of a kernel of this radius
    steps = torch.arange(width, device=images.device)
    weights = torch.exp(-(steps**2) / (2 * deviation**2)).to(images)
    weights = weights / weights.sum()
    still, size = torch.zeros_like(angle), torch.ones_like(angle)
    blurred = torch.zeros_like(images)
    for step, weight in zip(steps.tolist(), weights.tolist(), strict=True):
        moved = affine(
            images,
            rotation=still,
            shear=still,
            scale_x=size,
            scale_y=size,
            right=step * angle.cos(),
            down=step * angle.sin(),
            around="border",
        )
        blurred += weight * moved
    return blurred


def _pixelate(images: Pictures, share: float, _: Key) -> Pictures:
    """Reduce height and width to a share of them: pixels become the mean of their block, as by Pillow's box filter."""
    height, width = images.shape[2:]
    rows = _block_means(height, max(int(height * share), 1)).to(images)
    columns = _block_means(width, max(int(width * share), 1)).to(images)
    return rows @ images @ columns.T


def _block_means(pixels: int, blocks: int) -> Float[Tensor, "pixels pixels"]:
    """Return the matrix that replaces each pixel of a line by the mean of its block."""
    units = 2 * pixels  # per block
    middle = (2 * torch.arange(pixels) + 1) * blocks  # of each pixel, in these units
    # Pillow: a pixel centred between two blocks counts in the mean of the first and gets the mean of the second
    gets = middle // units
    counts_in = (middle - 1) // units
    same = (gets[:, None] == counts_in).float()
    return same / same.sum(1, keepdim=True)


def _jpeg(images: Pictures, quality: int, _: Key) -> Pictures:
    """Compress and decompress with Pillow; unless there are three channels, each channel is a grey image."""
    levels = (images * 255).round().to(torch.uint8).cpu()
    pictures = levels
    if levels.shape[1] != 3:
        pictures = levels.flatten(0, 1).unsqueeze(1)
    decompressed = []
    for picture in pictures:
        # torchvision deprecates this for tensors, but not for Pillow images
        pillow = torchvision_transforms.to_pil_image(picture)
        compressed = torchvision_transforms.jpeg(pillow, quality)
        decompressed.append(torchvision_transforms.pil_to_tensor(compressed))
    joined = torch.stack(decompressed).view_as(levels)
    return joined.to(images) / 255


def _brightness(images: Pictures, added: float, _: Key) -> Pictures:
    """Raise the brightness; with three channels, raise HSV's value, which keeps hue and saturation."""
    value = images.amax(1, keepdim=True) if images.shape[1] == 3 else images
    brighter = (value + added).clamp(max=1)
    return torch.where(value > 0, images / value * brighter, brighter)


def _contrast(images: Pictures, factor: float, _: Key) -> Pictures:
    return contrast(images, images.new_full((len(images),), factor))


def _stripe(images: Pictures, share: float, _: Key) -> Pictures:
    """Invert a share of the width on the left and on the right."""
    width = images.shape[3]
    stripe = round(share * width)
    column = torch.arange(width, device=images.device)
    inverted = (column < stripe) | (column >= width - stripe)
    return torch.where(inverted, 1 - images, images)


def _fog(images: Pictures, constants: tuple[float, float], key: Key) -> Pictures:
    """Add clouds, then scale all pixels such that the brightest pixel can be as bright as before."""
    amount, decay = constants
    height, width = images.shape[2:]
    power_of_two = 2 ** (max(height, width) - 1).bit_length()
    side = max(256, power_of_two)  # MNIST-C: 256, cropped to a corner
    clouds = _plasma(key, side, decay)[:, None, :height, :width].to(images)
    brightest = images.amax((1, 2, 3), keepdim=True)
    return (images + amount * clouds) * brightest / (brightest + amount)


def _plasma(key: Key, side: int, decay: float) -> Float[Tensor, "batch side side"]:
    """Draw periodic random heights in [0, 1] by the diamond-square algorithm; ``side`` is a power of 2.

    The random offsets shrink by the square of ``decay`` from one level to the next, as in ImageNet-C.
    """
    heights = torch.zeros(len(key), side, side, device=key.device)
    step, size, stream = side, 1.0, 0
    while step >= 2:
        half = step // 2
        cells = (side // step, side // step)
        offsets = []
        for number in range(3):
            uniform = _uniform(key, stream + number, cells)
            offsets.append(size * (2 * uniform - 1))
        corners = heights[:, ::step, ::step]
        right = corners.roll(-1, 2)
        lower = corners.roll(-1, 1)
        lower_right = right.roll(-1, 1)
        centres = (corners + right + lower + lower_right) / 4 + offsets[0]
        above = centres.roll(1, 1)
        before = centres.roll(1, 2)
        heights[:, half::step, half::step] = centres
        heights[:, ::step, half::step] = (corners + right + centres + above) / 4 + offsets[1]
        heights[:, half::step, ::step] = (corners + lower + centres + before) / 4 + offsets[2]
        step = half
        size = size / decay**2
        stream += 3
    heights = heights - heights.amin((1, 2), keepdim=True)
    return heights / heights.amax((1, 2), keepdim=True)


_MUD = (63 / 255, 42 / 255, 20 / 255)
"""Red, green and blue, of ImageNet-C; MNIST-C's grey mud is as bright as its red."""


def _spatter(
    images: Pictures, constants: tuple[float, float, float, float, float], key: Key
) -> Pictures:
    """Draw drops of mud where smoothed noise is above a threshold."""
    mean, deviation, smoothing, threshold, edge = constants
    height, width = images.shape[2:]
    noise = mean + deviation * _normal(key, 0, (height, width))
    liquid = _smoothed(noise, smoothing)
    drops = (liquid > threshold).float()
    mud = _smoothed(drops, edge)[:, None].to(images)
    mud = torch.where(mud < 0.8, 0, mud)  # MNIST-C
    colour = images.new_tensor(_MUD if images.shape[1] == 3 else _MUD[:1])
    colour = colour.view(1, -1, 1, 1)
    return images * (1 - mud) + colour * mud


def _elastic(images: Pictures, constants: tuple[float, float, float], key: Key) -> Pictures:
    """Apply a random affine map of three points, then move each pixel by smoothed noise; black enters from outside.

    The image is interpolated once; MNIST-C interpolates after each step. Constants are shares of the shorter side.
    """
    height, width = images.shape[2:]
    side = min(height, width)
    strength, smoothing, jitter = (side * constant for constant in constants)
    centre = images.new_tensor([width // 2, height // 2]).double()
    directions = images.new_tensor([[1, 1], [1, -1], [-1, -1]]).double()
    corners = centre + side // 3 * directions  # [3 2], x and y
    uniform = _uniform(key, 0, (3, 2)).to(corners)
    moved = corners + jitter * (2 * uniform - 1)  # [b 3 2]
    ones = torch.ones_like(moved[..., :1])
    extended = torch.cat([moved, ones], 2)
    back = torch.linalg.solve(extended, corners)  # [b 3 2]

    noise = 2 * _uniform(key, 1, (2, height, width)) - 1  # x and y
    offset = strength * _smoothed(noise, smoothing, mode="reflect", truncate=3.0).to(images)
    rows = torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device)
    x = columns + offset[:, 0]  # [b h w]
    y = rows[:, None] + offset[:, 1]  # [b h w]
    place = torch.stack([x, y, torch.ones_like(x)], 3)
    source = place @ back.to(images)[:, None]  # [b h w 2]
    size = images.new_tensor([width, height])
    grid = (2 * source + 1) / size - 1  # grid_sample: -1 and 1 are edges
    return torch.nn.functional.grid_sample(
        images, grid, mode="bilinear", padding_mode="zeros", align_corners=False
    )


def _uniform(key: Key, stream: int, shape: tuple[int, ...]) -> Float[Tensor, " batch *shape"]:
    return random_uniform(element_keys(key, shape), stream, 0.0, 1.0)


def _normal(key: Key, stream: int, shape: tuple[int, ...]) -> Float[Tensor, " batch *shape"]:
    half_a_step = 2**-25  # of the draws: avoids infinity at 0
    uniform = _uniform(key, stream, shape).double() + half_a_step
    return torch.special.ndtri(uniform).float()


def _smoothed(
    images: Float[Tensor, "*batch height width"],
    deviation: float,
    mode: str = "nearest",
    truncate: float = 4.0,
) -> Float[Tensor, "*batch height width"]:
    """Smooth with a Gaussian of ``deviation`` pixels, like skimage, which calls the same function of scipy."""
    array = images.cpu().numpy()
    smooth = scipy.ndimage.gaussian_filter(
        array, deviation, mode=mode, truncate=truncate, axes=(-2, -1)
    )
    return torch.from_numpy(smooth).to(images)


class _Kind(NamedTuple):
    """A function of images in [0, 1], and its constants for severities 1 to 5."""

    function: Callable[[Pictures, Any, Key], Pictures]
    constants: tuple[Any, ...]


_SPATTER = (
    (0.65, 0.3, 4.0, 0.69, 0.6),
    (0.65, 0.3, 3.0, 0.68, 0.6),
    (0.65, 0.3, 2.0, 0.68, 0.5),
    (0.65, 0.3, 1.0, 0.65, 1.5),
    (0.67, 0.4, 1.0, 0.65, 1.5),
)
"""Mean and deviation of noise, its smoothing in pixels, threshold, smoothing of edges in pixels."""
_ELASTIC = (
    (2.0, 0.7, 0.1),
    (2.0, 0.08, 0.2),
    (0.05, 0.01, 0.02),
    (0.07, 0.01, 0.02),
    (0.12, 0.01, 0.02),
)
"""Strength and smoothing of the noise, and jitter of the three points, as shares of the shorter side; as in MNIST-C,
severities 1 and 2 move the whole image, 3 to 5 do not."""
KINDS: dict[str, _Kind] = {
    # standard deviation; the first three are ImageNet-C's as well
    "gaussian_noise": _Kind(_gaussian_noise, (0.08, 0.12, 0.18, 0.26, 0.38)),
    # photons of a white pixel
    "shot_noise": _Kind(_shot_noise, (60.0, 25.0, 12.0, 5.0, 3.0)),
    # share of pixels
    "impulse_noise": _Kind(_impulse_noise, (0.03, 0.06, 0.09, 0.17, 0.27)),
    # standard deviation, pixels
    "gaussian_blur": _Kind(_gaussian_blur, (1.0, 2.0, 3.0, 4.0, 6.0)),
    # radius and deviation, pixels
    "motion_blur": _Kind(_motion_blur, ((10, 3.0), (15, 5.0), (15, 8.0), (15, 12.0), (20, 15.0))),
    # share of the height and width
    "pixelate": _Kind(_pixelate, (0.6, 0.5, 0.4, 0.3, 0.25)),
    # quality
    "jpeg": _Kind(_jpeg, (25, 18, 15, 10, 7)),
    # added
    "brightness": _Kind(_brightness, (0.1, 0.2, 0.3, 0.4, 0.5)),
    # factor
    "contrast": _Kind(_contrast, (0.4, 0.3, 0.2, 0.1, 0.05)),
    # share of the width on each side; ours: 1 to 4, MNIST-C has only 0.25, 7 of 28 pixels
    "stripe": _Kind(_stripe, (0.05, 0.1, 0.15, 0.2, 0.25)),
    # clouds added, and decay of their roughness
    "fog": _Kind(_fog, ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))),
    "spatter": _Kind(_spatter, _SPATTER),
    "elastic": _Kind(_elastic, _ELASTIC),
}
"""The corruptions by name; constants are from MNIST-C unless marked "ours"."""
