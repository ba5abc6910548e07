"""What arrays of images and of labels mean: axes, range of pixels, classes."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from capsule_lab.errors import DataError, printable

log = logging.getLogger(__name__)

Values = npt.NDArray[Any]

_CHANNELS = (1, 2, 3)  # ours: other numbers of channels would be mistaken for heights or widths
_AXES = {3: ("nhw",), 4: ("nhwc", "nchw")}
_AXES_OF_MATLAB = {3: ("hwn",), 4: ("hwcn",)}
_RANGES = ((0, 1), (-1, 1), (0, 255), (0, 4095), (0, 65535))  # usual ones, for messages
_BLOCK = 2**24  # ours: numbers that are converted at once
_NUMBERS = "buif"  # numpy's kinds: bool, unsigned, int, float


def check_axes(axes: str | None) -> None:
    """Check the option ``data.axes``."""
    if axes is None:
        return
    letters = sorted(str(axes))
    if letters not in (sorted("nhw"), sorted("nhwc")):
        raise ValueError(
            f"data.axes is {axes!r}; expected the letters n, h, w and c for number, height, width and channels, in "
            "the order of the array, such as nhwc"
        )


def check_range(limits: Sequence[float] | None) -> None:
    """Check the option ``data.range``."""
    if limits is not None and not _is_range(limits):
        raise ValueError(
            f"data.range is {limits!r}; expected the numbers of black and of white, such as [0, 255]"
        )


def _is_range(limits: Sequence[float]) -> bool:
    if isinstance(limits, str) or not isinstance(limits, Sequence):
        return False
    if len(limits) != 2:
        return False
    for limit in limits:
        if not isinstance(limit, int | float) or not math.isfinite(limit):
            return False
    low, high = limits
    return low < high


def find_axes(
    shape: Sequence[int],
    axes: str | None,
    what: str,
    *,
    number: int | None = None,
    image_shape: Sequence[int] | None = None,
    is_of_matlab: bool = False,
) -> str:
    """Return what the axes of an array are, as letters: n(umber), c(hannels), h(eight), w(idth).

    Args:
        shape: of the array.
        axes: the answer, if it is known.
        what: name of the array, for messages.
        number: of the images, if it is known.
        image_shape: ``(channel, height, width)``, if it is known.
        is_of_matlab: the last axis may be the number of images.

    Raises:
        DataError: if there is no answer, or more than one.
    """
    described = f"{what} has shape {tuple(shape)}"
    candidates = _candidates(len(shape), axes, is_of_matlab)
    if not candidates:
        raise DataError(
            f"{described}; expected images as {axes or 'nhw, nhwc or nchw'} (n: number, h: height, w: width, "
            "c: channels): reshape them"
        )
    counted = []
    for candidate in candidates:
        images = shape[candidate.index("n")]
        if number in (None, images):
            counted.append(candidate)
    if not counted:
        raise DataError(
            f"{described}, and there are {number} labels; expected a label for each image"
        )
    possible = []
    for candidate in counted:
        found = _image_shape(shape, candidate)
        if _fits(found, image_shape, is_given=axes is not None):
            possible.append(candidate)
    if image_shape is not None and not possible:
        expected = "x".join(map(str, image_shape))
        raise DataError(
            f"{described}; expected images of {expected}, channels x height x width, as the network was trained on: "
            "resize them"
        )
    if len(possible) != 1:
        answers = " or ".join(possible) or "none of nhwc and nchw with 1, 2 or 3 channels"
        raise DataError(
            f"{described}, whose axes can be {answers}; expected one answer: set it, such as data.axes={counted[0]}"
        )
    return possible[0]


def _candidates(dimensions: int, axes: str | None, is_of_matlab: bool) -> list[str]:
    """Return the orders of axes that an array of so many dimensions may have."""
    if axes is not None:
        return [axes] if len(axes) == dimensions else []
    candidates = [*_AXES.get(dimensions, ())]
    if is_of_matlab:
        candidates += _AXES_OF_MATLAB.get(dimensions, ())
    return candidates


def _image_shape(shape: Sequence[int], axes: str) -> tuple[int, ...]:
    sizes = dict(zip(axes, shape, strict=True))
    return (sizes.get("c", 1), sizes["h"], sizes["w"])


def _fits(found: tuple[int, ...], expected: Sequence[int] | None, *, is_given: bool) -> bool:
    if expected is not None:
        return found == tuple(expected)
    channels, *_ = found
    return is_given or channels in _CHANNELS


def arranged(array: Values, axes: str) -> Values:
    """Return a view ``(n, channel, height, width)`` of an array with these axes."""
    if "c" not in axes:
        array = array[..., None]
        axes = f"{axes}c"
    order = [axes.index(axis) for axis in "nchw"]
    return array.transpose(order)


def as_bytes(images: Values, limits: Sequence[float] | None, what: str) -> Tensor:
    """Return images as uint8, of the same shape and contiguous: the range of the pixels becomes 0 to 255.

    Numbers are rounded to one of 256 levels, which changes them by at most 1/510 of the range; a line of the log says
    so if this changes any.

    Args:
        images: uint8, bool or other numbers, which are then from 0 to 1.
        limits: the numbers that mean 0 and 255, if they are others.
        what: name of the array, for messages.

    Raises:
        DataError: if the numbers are outside of the range, not finite, or no real numbers.
    """
    if images.dtype.kind not in "buif":
        raise DataError(
            f"{what} has elements of {images.dtype}; expected pixels: uint8, or real numbers"
        )
    if not images.size:
        raise DataError(f"{what} has shape {images.shape}; expected one or more images")
    with np.errstate(invalid="ignore"):  # of NaN
        least = float(images.min())
        most = float(images.max())
    if not (math.isfinite(least) and math.isfinite(most)):
        raise DataError(
            f"{what} has numbers that are not finite; expected pixels: replace them, such as with np.nan_to_num"
        )
    is_byte = images.dtype == np.uint8
    if is_byte and limits is None:
        if most == 1:  # they would be black
            raise _outside(images, (least, most), limits, what)
        writable = np.require(images, requirements=["C", "W"])
        return torch.from_numpy(writable)
    low, high = limits or (0.0, 1.0)
    if least < low or most > high:
        raise _outside(images, (least, most), limits, what)
    return _scaled(images, float(low), float(high), what)


def _outside(
    images: Values,
    found: tuple[float, float],
    limits: Sequence[float] | None,
    what: str,
) -> DataError:
    least, most = found
    expected = "uint8 up to 255, or numbers from 0 to 1"
    if limits is not None:
        low, high = limits
        expected = f"{low:g} to {high:g}, as data.range states"
    black, white = _usual_range(least, most)
    return DataError(
        f"{what} has pixels of {images.dtype} from {least:g} to {most:g}; expected {expected}: state the numbers of "
        f"black and white, such as data.range=[{black},{white}]"
    )


def _usual_range(least: float, most: float) -> tuple[int, int]:
    """Return the first usual range that contains these numbers, or the whole numbers around them."""
    for low, high in _RANGES:
        if low <= least and most <= high:
            return low, high
    return math.floor(least), math.ceil(most)


def _scaled(images: Values, low: float, high: float, what: str) -> Tensor:
    """Map ``low`` to 0 and ``high`` to 255, in blocks, because float64 takes eight times the memory."""
    scaled = np.empty(images.shape, dtype=np.uint8)
    step = max(1, _BLOCK // math.prod(images.shape[1:]))
    levels_per_unit = 255 / (high - low)
    largest_change = 0.0
    for first in range(0, len(images), step):
        block = slice(first, first + step)
        pixels = images[block].astype(np.float64)
        levels = (pixels - low) * levels_per_unit
        rounded = np.rint(levels)
        scaled[block] = rounded
        changes = np.abs(levels - rounded)
        largest_change = max(largest_change, float(changes.max()))
    if largest_change > 1e-3:  # ours: of a level; less is the rounding of float32
        log.info(
            "%s: pixels of %s are stored as 256 levels, which changes them by up to %.2g of their range",
            what,
            images.dtype,
            largest_change / 255,
        )
    return torch.from_numpy(scaled)


def label_rows(array: Values, what: str) -> Values | None:
    """Return whether each image has each class, ``(n, class)`` bool, if the labels are such a matrix; else ``None``.

    A single column or row is one label for each image, see ``label_values``.

    Raises:
        DataError: if a matrix of numbers has others than 0 and 1.
    """
    are_numbers = array.dtype.kind in _NUMBERS
    if array.ndim != 2 or min(array.shape) < 2 or not are_numbers:
        return None
    is_one = array == 1
    others = array[~is_one & (array != 0)]
    if len(others):
        raise DataError(
            f"{what} has shape {array.shape} and the number {others[0]:g}; expected one label for each image, or a row "
            "of 0 and 1 for its classes: correct it"
        )
    return is_one


def label_values(array: Values, what: str) -> Values:
    """Return labels ``(n,)`` as int64 or text; ``(n, 1)`` and ``(1, n)`` are accepted, too.

    Raises:
        DataError: if they are neither whole numbers nor text, or of another shape.
    """
    shape = array.shape
    flat = array.reshape(-1)
    if array.ndim == 0 or len(flat) != max(array.shape):
        raise DataError(f"{what} has shape {shape}; expected one value for each image: reshape it")
    if flat.dtype.kind in "US":
        return _texts(flat, what)
    if flat.dtype.kind not in _NUMBERS:
        raise DataError(
            f"{what} has elements of {flat.dtype}; expected whole numbers or text: convert them"
        )
    with np.errstate(invalid="ignore"):  # of what is not finite
        whole = flat.astype(np.int64)
    is_other = whole != flat
    if is_other.any():
        first, *_ = flat[is_other]
        raise DataError(f"{what} has {first:g}; expected whole numbers or text, one for each image")
    return whole


def _texts(flat: Values, what: str) -> Values:
    texts = flat
    if flat.dtype.kind == "S":
        try:
            texts = np.char.decode(flat, "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{what} has text that is not UTF-8; expected UTF-8: convert it"
            ) from error
    texts = np.char.strip(texts)
    for text in np.unique(texts).tolist():
        if not text or printable(text) != text:
            raise DataError(f"{what} has the text {text!r}; expected printable text: correct it")
    return texts
