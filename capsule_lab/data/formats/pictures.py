"""Pictures in files: upright, without transparency, fitted to a size; drawn digits as in MNIST."""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from capsule_lab.errors import DataError, one_line
from capsule_lab.system.files import open_regular

Fit = Literal["crop", "pad", "stretch"]
Polarity = Literal["auto", "light_on_dark", "dark_on_light"]
Bytes = npt.NDArray[np.uint8]

log = logging.getLogger(__name__)

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Endings of the names of pictures, in lower or upper case."""

DIGIT_SIZE, DIGIT_BOX = 28, 20  # LeCun 1998: pixels of an image, and of the box around its digit
# ours: 400 MB of float64; JPEGs of more are reduced while they are decoded
MOST_PIXELS = 50_000_000
_SAMPLE_FORMAT, _UNSIGNED, _SIGNED = 339, 1, 2  # a tag of TIFF and its values
_HIDDEN = (".", "__MACOSX")  # beginnings of names that operating systems use
_LARGEST = 400  # ours: a larger picture is reduced first, so that noise of the camera is averaged
_FAINTEST = 0.1  # ours: least contrast of ink, of the range of a picture; noise and shades of paper have less
_INK = 0.3  # ours: least darkness of ink, relative to the darkest
_SPECK = 0.05  # ours: size of the largest speck, relative to the largest stroke


def is_hidden(name: str) -> bool:
    """Return whether a file or folder belongs to the operating system and is not part of the data."""
    return name.startswith(_HIDDEN)


def pictures_in(folder: Path) -> list[str]:
    """Return the paths of all pictures in ``folder`` and below, sorted, without following links to other folders.

    Raises:
        DataError: if a folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise DataError(
            f"{error.filename} cannot be read ({error.strerror}); expected a readable folder of pictures: change its "
            "permissions"
        ) from error

    found: list[str] = []
    for parent, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not is_hidden(name)]
        found += [os.path.join(parent, name) for name in files if _is_picture(name)]
    return sorted(found)


def _is_picture(name: str) -> bool:
    return name.lower().endswith(ENDINGS) and not is_hidden(name)


def open_picture(path: str | Path, size: int | None = None) -> Image.Image:
    """Read a picture from a file. A JPEG of more than four times ``size`` pixels a side is reduced while it is decoded.

    Raises:
        DataError: if it cannot be read, has a single pixel, more than ``MOST_PIXELS``, or numbers that Pillow
            misreads; the message has the file's name and the reason.
    """
    try:
        with open_regular(Path(path)) as file, Image.open(file) as picture:
            if size is not None and min(picture.size) > 4 * size:
                picture.draft(None, (2 * size, 2 * size))
            _check_size(picture)
            if getattr(picture, "is_animated", False):
                _warn_of_frames()
            picture.load()  # after the above, which moves to the next frame of a GIF and back
            _check_numbers(picture)
    except Exception as error:  # Pillow raises many types of errors for damaged files
        raise DataError(f"{path} cannot be read: {why_unreadable(error)}") from error
    return picture


def _check_size(picture: Image.Image) -> None:
    number = picture.width * picture.height
    if number == 1:
        raise DataError("it has a single pixel")
    if number > MOST_PIXELS:
        found, most = number / 1e6, MOST_PIXELS / 1e6
        raise DataError(
            f"it has {found:.0f} million pixels; expected at most {most:.0f} million: reduce it"
        )


def _check_numbers(picture: Image.Image) -> None:
    """Refuse TIFF files whose numbers Pillow reads as those of another type: signed of 8 bits, unsigned of 32 bits."""
    tags = getattr(picture, "tag_v2", {})
    kind, *_ = tags.get(_SAMPLE_FORMAT, (_UNSIGNED,))
    if kind == _SIGNED and picture.mode not in ("I", "I;16"):
        raise DataError("it has signed numbers of 8 bits; expected unsigned ones: convert it")
    if kind == _UNSIGNED and picture.mode == "I" and np.asarray(picture).min() < 0:
        raise DataError(
            f"it has numbers of 32 bits above {2**31 - 1}; expected smaller ones: convert it"
        )


def why_unreadable(error: Exception) -> str:
    """Return the reason why Pillow cannot read a picture, without the name of the file."""
    if isinstance(error, DataError):
        return str(error)
    if isinstance(error, UnidentifiedImageError):
        return "it is not a picture"
    if isinstance(error, Image.DecompressionBombError):
        return "it has more pixels than Pillow's limit against decompression bombs"
    reason = getattr(error, "strerror", None) or one_line(error)[:120]
    return reason or type(error).__name__


def opaque(picture: Image.Image, background: str = "white") -> Image.Image:
    """Return a picture upright, in grey (``"L"``) or colour (``"RGB"``), on ``background`` where it is transparent.

    Of an animation or a stack, the first frame is used. Numbers of 16 bits or more are scaled by their range to 8 bits.

    Raises:
        DataError: if it has numbers that are not finite, or cannot be converted.
    """
    try:
        picture = ImageOps.exif_transpose(picture)
        if picture.mode.startswith(("I", "F")):
            picture = _scaled(picture)
        if picture.has_transparency_data:
            picture = picture.convert("RGBA")
            picture = Image.alpha_composite(Image.new("RGBA", picture.size, background), picture)
        return picture.convert("L" if picture.mode in ("1", "L") else "RGB")
    except Exception as error:  # Pillow raises many types of errors for damaged metadata
        raise DataError(why_unreadable(error)) from error


def _scaled(picture: Image.Image) -> Image.Image:
    """Scale numbers of 16 bits or more by their range to 8 bits."""
    _warn_of_scaling()
    if picture.has_transparency_data:
        raise DataError("it has 16 bits and a transparent value; expected 8 bits: convert it")
    values = np.array(picture, dtype=np.float64)
    if not np.isfinite(values).all():
        raise DataError(
            "it has pixels that are not finite numbers; expected finite ones: replace them"
        )
    low = values.min()
    extent = max(values.max() - low, 1e-12)
    # in place: a large picture takes gigabytes otherwise
    values -= low
    values *= 255 / extent
    values.round(out=values)
    return Image.fromarray(values.astype(np.uint8))


@functools.cache
def _warn_of_frames() -> None:
    log.warning(
        "of pictures with several frames or pages, the first one is used; store each as a picture of its own if the "
        "others matter"
    )


@functools.cache
def _warn_of_scaling() -> None:
    log.warning(
        "pictures of 16 bits or more are scaled to 8 bits, each by its own range, so that brightness is not comparable "
        "between them; convert them to 8 bits first if it matters"
    )


def fitted(picture: Image.Image, size: tuple[int, int], fit: Fit, background: str) -> Image.Image:
    """Fit a picture of mode ``"L"`` or ``"RGB"`` to ``size``, ``(width, height)``.

    Args:
        fit: ``"crop"`` cuts off what has no place in the shape of ``size``, ``"pad"`` adds ``background``, and
            ``"stretch"`` changes the proportions.
    """
    if fit == "crop":
        return ImageOps.fit(picture, size, Image.Resampling.BILINEAR)
    if fit == "pad":
        return ImageOps.pad(picture, size, Image.Resampling.BILINEAR, color=background)
    return picture.resize(size, Image.Resampling.BILINEAR)


def as_pixels(picture: Image.Image, channels: int) -> UInt8[Tensor, "channel height width"]:
    """Return the pixels of a picture without transparency as grey values or as colours."""
    if channels == 1:
        grey = np.array(picture.convert("L"))
        return torch.from_numpy(grey[None])
    colours = np.array(picture.convert("RGB"))
    return torch.from_numpy(np.moveaxis(colours, 2, 0).copy())


def as_digit(picture: Image.Image, polarity: Polarity = "auto") -> UInt8[Tensor, "1 28 28"]:
    """Return a drawn digit as in MNIST: light on black, its longest side 20 pixels, its centre of mass in the middle.

    Args:
        picture: one digit on paper or on a screen, of any size and mode. A plane is subtracted for the shade of the
            paper, and specks are ignored.
        polarity: ``"dark_on_light"``, ``"light_on_dark"``, or ``"auto"``: dark on light if the border is lighter than
            the middle of the picture's range.

    Raises:
        DataError: if the picture is blank.
    """
    grey = _grey(picture)
    grey.thumbnail((_LARGEST, _LARGEST), Image.Resampling.BOX)
    pixels = np.asarray(grey, dtype=np.float64) / 255
    edge = np.ones(pixels.shape, dtype=bool)
    edge[1:-1, 1:-1] = False
    middle_of_range = (pixels.min() + pixels.max()) / 2
    is_dark = np.median(pixels[edge]) > middle_of_range
    if polarity == "dark_on_light" or (polarity == "auto" and is_dark):
        pixels = 1 - pixels
    pixels = (pixels - _paper(pixels, edge)).clip(0)
    if pixels.max() < _FAINTEST:
        raise DataError(
            "the picture is blank, or its digit has too little contrast; expected one dark digit on light paper, or a "
            "light one on dark: draw it with more contrast, or give its polarity, dark_on_light or light_on_dark"
        )
    return torch.from_numpy(_centred(_box_around_ink(pixels))[None])


def _box_around_ink(pixels: npt.NDArray[np.float64]) -> Bytes:
    """Return the smallest box around the strokes, without specks; the brightest pixel becomes 255."""
    strokes = connected(pixels > _INK * pixels.max())
    sizes = np.bincount(strokes.ravel())
    sizes[0] = 0  # the background
    ink = (sizes > _SPECK * sizes.max())[strokes]
    with_soft_edge = dilated(dilated(ink))  # twice: the width of the edge of a stroke
    pixels = np.where(with_soft_edge, pixels, 0)
    rows = np.flatnonzero(ink.any(axis=1))
    columns = np.flatnonzero(ink.any(axis=0))
    box = pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    scale = 255 / pixels.max()
    return (box * scale).round().astype(np.uint8)


def _centred(digit: Bytes) -> Bytes:
    """Scale a digit to the box of MNIST's digits, and put its centre of mass in the middle of an image."""
    picture = Image.fromarray(digit)
    scale = DIGIT_BOX / max(picture.size)
    width = max(1, round(picture.width * scale))
    height = max(1, round(picture.height * scale))
    small = np.asarray(picture.resize((width, height), Image.Resampling.BOX), dtype=np.float64)
    row, column = (small * np.indices(small.shape)).sum(axis=(1, 2)) / small.sum()
    top = _start(row, height)
    left = _start(column, width)
    image = np.zeros((DIGIT_SIZE, DIGIT_SIZE), dtype=np.uint8)
    image[top : top + height, left : left + width] = (small * (255 / small.max())).round()
    return image


def _start(centre: float, side: int) -> int:
    """Return the first pixel of a digit of ``side`` pixels, so that ``centre`` is in the middle and no pixel is cut."""
    middle = (DIGIT_SIZE - 1) / 2  # -1: positions are middles of pixels
    start = round(middle - centre)
    return min(max(start, 0), DIGIT_SIZE - side)


def connected(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return a positive number for each pixel of the mask, the same for pixels that touch, also at corners; else 0."""
    numbers = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:
        windows = torch.from_numpy(numbers).double()[None]
        largest = torch.nn.functional.max_pool2d(windows, 3, stride=1, padding=1)[0].long().numpy()
        spread = np.where(mask, largest, 0)
        # a number is the position of a pixel, which by now may have a larger one: long strokes need few turns
        spread = np.append(0, spread)[spread]
        if np.array_equal(spread, numbers):
            return numbers
        numbers = spread


def dilated(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return the pixels of the mask and those above, below and beside them."""
    wider = np.pad(mask, 1)
    beside = wider[1:-1, :-2] | wider[1:-1, 2:]
    return mask | beside | wider[:-2, 1:-1] | wider[2:, 1:-1]


def _grey(picture: Image.Image) -> Image.Image:
    """Return grey values; a light digit on a transparent background is on black, a dark one on white."""
    background = "white"
    if picture.has_transparency_data:
        values = np.asarray(picture.convert("RGBA").convert("LA"), dtype=np.float64)
        light, alpha = values[..., 0], values[..., 1]
        if (light * alpha).sum() > 127.5 * alpha.sum():  # 127.5: the middle of 0 to 255
            background = "black"
    return opaque(picture, background).convert("L")


def _paper(pixels: npt.NDArray[np.float64], edge: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Return the plane through the grey values at the edge; ink that touches the edge is left out."""
    rows, columns = np.indices(pixels.shape) / max(pixels.shape)
    terms = np.stack([np.ones_like(pixels), rows, columns], axis=-1)
    is_paper = edge
    for _ in range(3):  # ours: the plane no longer changes afterwards
        coefficients, *_ = np.linalg.lstsq(terms[is_paper], pixels[is_paper], rcond=None)
        plane = terms @ coefficients
        distances = np.abs(pixels - plane)
        usual = 2 * float(np.median(distances[edge]))
        is_paper = edge & (distances <= max(usual, 1 / 255))  # ours: a grey level or more
    return np.asarray(plane)
