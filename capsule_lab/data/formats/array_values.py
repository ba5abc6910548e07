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


def check_axes(axes: str | None) -> None:
    """Check the option ``data.axes``."""
    if axes is not None and sorted(str(axes)) not in (sorted("nhw"), sorted("nhwc")):
        raise ValueError(
            f"data.axes is {axes!r}; expected the letters n, h, w and c for number, height, width and channels, in "
            "the order of the array, such as nhwc"
        )


def check_range(limits: Sequence[float] | None) -> None:
    """Check the option ``data.range``."""
    if limits is None:
        return
    is_pair = isinstance(limits, Sequence) and not isinstance(limits, str) and len(limits) == 2
    if is_pair and all(isinstance(limit, int | float) for limit in limits):
        low, high = limits
        if math.isfinite(low) and math.isfinite(high) and low < high:
            return
    raise ValueError(
        f"data.range is {limits!r}; expected the numbers of black and of white, such as [0, 255]"
    )


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
    candidates = [*_AXES.get(len(shape), ())]
    if is_of_matlab:
        candidates += _AXES_OF_MATLAB.get(len(shape), ())
    if axes is not None:
        candidates = [axes] if len(axes) == len(shape) else []
    if not candidates:
        raise DataError(
            f"{what} has shape {tuple(shape)}; expected images as {axes or 'nhw, nhwc or nchw'} (n: number, h: height, "
            "w: width, c: channels): reshape them"
        )
    counted = [each for each in candidates if number in (None, shape[each.index("n")])]
    if not counted:
        raise DataError(
            f"{what} has shape {tuple(shape)}, and there are {number} labels; expected a label for each image"
        )
    possible = [
        each for each in counted if _fits(_image_shape(shape, each), image_shape, axes is not None)
    ]
    if image_shape is not None and not possible:
        expected = "x".join(map(str, image_shape))
        raise DataError(
            f"{what} has shape {tuple(shape)}; expected images of {expected}, channels x height x width, as the "
            "network was trained on: resize them"
        )
    if len(possible) != 1:
        found = " or ".join(possible) or "none of nhwc and nchw with 1, 2 or 3 channels"
        raise DataError(
            f"{what} has shape {tuple(shape)}, whose axes can be {found}; expected one answer: set it, such as "
            f"data.axes={counted[0]}"
        )
    return possible[0]


def _image_shape(shape: Sequence[int], axes: str) -> tuple[int, ...]:
    sizes = dict(zip(axes, shape, strict=True))
    return (sizes.get("c", 1), sizes["h"], sizes["w"])


def _fits(found: tuple[int, ...], expected: Sequence[int] | None, is_given: bool) -> bool:
    if expected is not None:
        return found == tuple(expected)
    return is_given or found[0] in _CHANNELS


def arranged(array: Values, axes: str) -> Values:
    """Return a view ``(n, channel, height, width)`` of an array with these axes."""
    if "c" not in axes:
        array, axes = array[..., None], f"{axes}c"
    return array.transpose([axes.index(axis) for axis in "nchw"])


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
        least, most = float(images.min()), float(images.max())
    if not (math.isfinite(least) and math.isfinite(most)):
        raise DataError(
            f"{what} has numbers that are not finite; expected pixels: replace them, such as with np.nan_to_num"
        )
    is_byte = images.dtype == np.uint8
    if is_byte and limits is None and most != 1:
        return torch.from_numpy(np.require(images, requirements=["C", "W"]))
    low, high = limits or (0.0, 1.0)
    # uint8 of 0 and 1 would be black
    is_unclear = is_byte and limits is None
    if is_unclear or least < low or most > high:
        _refuse_range(images, (least, most), limits, what)
    return _scaled(images, float(low), float(high), what)


def _refuse_range(
    images: Values, found: tuple[float, float], limits: Sequence[float] | None, what: str
) -> None:
    least, most = found
    whole = (math.floor(least), math.ceil(most))
    containing = (each for each in _RANGES if each[0] <= least and most <= each[1])
    low, high = next(containing, whole)
    expected = "uint8 up to 255, or numbers from 0 to 1"
    if limits is not None:
        expected = f"{limits[0]:g} to {limits[1]:g}, as data.range states"
    raise DataError(
        f"{what} has pixels of {images.dtype} from {least:g} to {most:g}; expected {expected}: state the numbers of "
        f"black and white, such as data.range=[{low},{high}]"
    )


def _scaled(images: Values, low: float, high: float, what: str) -> Tensor:
    """Map ``low`` to 0 and ``high`` to 255, in blocks, because float64 takes eight times the memory."""
    scaled = np.empty(images.shape, dtype=np.uint8)
    step = max(1, _BLOCK // math.prod(images.shape[1:]))
    largest_change = 0.0
    for first in range(0, len(images), step):
        block = slice(first, first + step)
        levels = (images[block].astype(np.float64) - low) * (255 / (high - low))
        rounded = np.rint(levels)
        scaled[block] = rounded
        largest_change = max(largest_change, float(np.abs(levels - rounded).max()))
    if largest_change > 1e-3:  # ours: of a level; less is the rounding of float32
        log.info(
            "%s: pixels of %s are stored as 256 levels, which changes them by up to %.2g of their range",
            what,
            images.dtype,
            largest_change / 255,
        )
    return torch.from_numpy(scaled)


def label_values(array: Values, what: str) -> Values:
    """Return labels ``(n,)`` as int64 or text; ``(n, 1)``, ``(1, n)`` and rows with a single 1 are accepted, too.

    Raises:
        DataError: if they are neither whole numbers nor text, or of another shape.
    """
    shape = array.shape
    if array.ndim == 2 and min(shape) > 1 and array.dtype.kind in "buif":
        is_one_hot = ((array == 0) | (array == 1)).all() and (array.sum(1) == 1).all()
        if not is_one_hot:
            raise DataError(
                f"{what} has shape {shape}; expected one label for each image, or rows with a single 1: reshape them"
            )
        array = array.argmax(1)
    flat = array.reshape(-1)
    if array.ndim == 0 or len(flat) != max(array.shape):
        raise DataError(f"{what} has shape {shape}; expected one value for each image: reshape it")
    if flat.dtype.kind in "US":
        return _texts(flat, what)
    if flat.dtype.kind not in "buif":
        raise DataError(
            f"{what} has elements of {flat.dtype}; expected whole numbers or text: convert them"
        )
    with np.errstate(invalid="ignore"):  # of what is not finite
        whole = flat.astype(np.int64)
    is_other = whole != flat
    if is_other.any():
        raise DataError(
            f"{what} has {flat[is_other][0]:g}; expected whole numbers or text, one for each image"
        )
    return whole


def _texts(flat: Values, what: str) -> Values:
    try:
        texts = np.char.strip(np.char.decode(flat, "utf-8") if flat.dtype.kind == "S" else flat)
    except UnicodeDecodeError as error:
        raise DataError(f"{what} has text that is not UTF-8; expected UTF-8: convert it") from error
    for text in np.unique(texts).tolist():
        if not text or printable(text) != text:
            raise DataError(f"{what} has the text {text!r}; expected printable text: correct it")
    return texts
