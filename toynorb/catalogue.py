"""A sheet with all toys, one toy per category from all azimuths, and one per category under each lighting."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from matplotlib.axes import Axes
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
    number, size = toys.shape[1], toys.shape[3]
    step = 360 / azimuths.shape[1]  # a full turn, in degrees
    splits = ["train" if instance in training else "test" for instance in range(number)]
    instances = [f"{instance} {split}" for instance, split in enumerate(splits)]
    degrees = [f"{column * step:.0f}°" for column in range(azimuths.shape[1])]
    numbers = [f"{lighting}" for lighting in range(lightings.shape[1])]
    blocks = [
        _Block("instance", _mosaic(toys), instances, categories),
        _Block("azimuth", _mosaic(azimuths), degrees, []),
        _Block("lighting", _mosaic(_widened(lightings, number)), numbers, []),
    ]
    heights = [block.height for block in blocks]
    figure = Figure(figsize=(_WIDTH, sum(heights) + _TITLE), layout="constrained")
    figure.suptitle(title)
    all_axes = figure.subplots(len(blocks), 1, height_ratios=heights)
    for axes, block in zip(all_axes, blocks, strict=True):
        _draw(axes, block, size)
    return figure


class _Block(NamedTuple):
    """Images in rows and columns, with captions of the columns and of the rows."""

    title: str
    mosaic: UInt8[np.ndarray, "height width"]
    columns: Sequence[str]
    rows: Sequence[str]

    @property
    def height(self) -> float:
        """Height on the sheet, in inches."""
        height, width = self.mosaic.shape
        return _WIDTH * height / width + _TITLE


def _draw(axes: Axes, block: _Block, size: int) -> None:
    axes.imshow(block.mosaic, cmap="gray", vmin=0, vmax=255)
    axes.xaxis.tick_top()
    most = max(len(block.columns), len(block.rows))
    middles = (size + _GAP) * np.arange(most) + (size - 1) / 2
    axes.set_xticks(middles[: len(block.columns)], block.columns, size=8)  # points
    axes.set_yticks(middles[: len(block.rows)], block.rows, size=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(block.title, loc="left", size=10)  # points


def _widened(
    images: UInt8[np.ndarray, "row column size size"], columns: int
) -> UInt8[np.ndarray, "row more size size"]:
    """Add white images until there are as many columns as in another block, so that both have the same scale."""
    missing = max(0, columns - images.shape[1])
    return np.pad(images, [(0, 0), (0, missing), (0, 0), (0, 0)], constant_values=255)


def _mosaic(images: UInt8[np.ndarray, "row column size size"]) -> UInt8[np.ndarray, "height width"]:
    """Join all images into one, with white lines between them."""
    framed = np.pad(images, [(0, 0), (0, 0), (0, _GAP), (0, _GAP)], constant_values=255)
    rows, columns, height, width = framed.shape
    return framed.swapaxes(1, 2).reshape(rows * height, columns * width)[:-_GAP, :-_GAP]
