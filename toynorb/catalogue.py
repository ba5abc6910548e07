"""A sheet with all toys, one toy per category from all azimuths, and one per category under each lighting."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from jaxtyping import UInt8
from matplotlib.figure import Figure

_GAP = 2  # ours: white pixels between images
_WIDTH = 12.0  # ours: inches
_TITLE = 0.45  # ours: inches for the title of each block


def toy_sheet(
    toys: UInt8[np.ndarray, "category instance size size"],
    azimuths: UInt8[np.ndarray, "row azimuth size size"],
    lightings: UInt8[np.ndarray, "other lighting size size"],
    *,
    categories: Sequence[str],
    training: Collection[int],
    title: str = "",
) -> Figure:
    """Draw three blocks of images, one above the other.

    Args:
        toys: every toy once, with its instance and split as captions.
        azimuths: one toy per row, from all azimuths, with degrees as captions.
        lightings: one toy per row, under every lighting, with its number as a caption.
        categories: names in order, shown to the left of ``toys``.
        training: instances for training; the others are for testing.
        title: title of the sheet.
    """
    instances = [
        f"{number} {'train' if number in training else 'test'}" for number in range(toys.shape[1])
    ]
    step = 360 / azimuths.shape[1]  # a full turn, in degrees
    degrees = [f"{number * step:.0f}°" for number in range(azimuths.shape[1])]
    numbers = list(map(str, range(lightings.shape[1])))
    missing = max(
        0, toys.shape[1] - lightings.shape[1]
    )  # there are fewer lightings; same scale as toys
    lightings = np.pad(lightings, [(0, 0), (0, missing), (0, 0), (0, 0)], constant_values=255)
    mosaics = [_mosaic(images) for images in (toys, azimuths, lightings)]
    captions = [
        (instances, categories, "instance"),
        (degrees, [], "azimuth"),
        (numbers, [], "lighting"),
    ]
    heights = [_WIDTH * mosaic.shape[0] / mosaic.shape[1] + _TITLE for mosaic in mosaics]
    figure = Figure(figsize=(_WIDTH, sum(heights) + _TITLE), layout="constrained")
    figure.suptitle(title)
    blocks = figure.subplots(len(mosaics), 1, height_ratios=heights)
    size = toys.shape[3]
    for axes, mosaic, (columns, rows, name) in zip(blocks, mosaics, captions, strict=True):
        axes.imshow(mosaic, cmap="gray", vmin=0, vmax=255)
        axes.xaxis.tick_top()
        middles = (size + _GAP) * np.arange(max(len(columns), len(rows))) + (size - 1) / 2
        axes.set_xticks(middles[: len(columns)], columns, size=8)  # points
        axes.set_yticks(middles[: len(rows)], rows, size=8)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(name, loc="left", size=10)  # points
    return figure


def _mosaic(images: UInt8[np.ndarray, "row column size size"]) -> UInt8[np.ndarray, "height width"]:
    """Join all images into one, with white lines between them."""
    framed = np.pad(images, [(0, 0), (0, 0), (0, _GAP), (0, _GAP)], constant_values=255)
    rows, columns, height, width = framed.shape
    return framed.swapaxes(1, 2).reshape(rows * height, columns * width)[:-_GAP, :-_GAP]
