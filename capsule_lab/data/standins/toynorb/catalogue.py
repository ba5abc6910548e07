"""A sheet of all toys, of one per category from all around, and of one per category under each lighting."""

from __future__ import annotations

from collections.abc import Collection, Sequence

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
    """Three blocks of images, one above another.

    Args:
        toys: every toy once; each is captioned with its instance and its split.
        azimuths: one toy per row, from all around, captioned in degrees.
        lightings: one toy per row, under every lighting, captioned with its number.
        categories: names, in order, written at the left of ``toys``.
        training: instances that are for training; the others are for testing.
        title: written above all.
    """
    instances = [f"{number} {'train' if number in training else 'test'}" for number in range(toys.shape[1])]
    step = 360 / azimuths.shape[1]  # a full turn, in degrees
    width = toys.shape[1]  # lightings are fewer, and shown no larger than the toys
    blocks: tuple[tuple[np.ndarray, list[str], list[str], str], ...] = (
        (_mosaic(toys), instances, list(categories), "instance"),
        (_mosaic(azimuths), [f"{number * step:.0f}°" for number in range(azimuths.shape[1])], [], "azimuth"),
        (_mosaic(lightings, width), [str(number) for number in range(lightings.shape[1])], [], "lighting"),
    )
    heights = [_WIDTH * mosaic.shape[0] / mosaic.shape[1] + _TITLE for mosaic, *_ in blocks]
    figure = Figure(figsize=(_WIDTH, sum(heights) + _TITLE), layout="constrained")
    figure.suptitle(title)
    for axes, block in zip(figure.subplots(len(blocks), 1, height_ratios=heights), blocks, strict=True):
        _draw(axes, *block, toys.shape[-1])
    return figure


def _mosaic(images: UInt8[np.ndarray, "row column size size"], columns: int = 0) -> UInt8[np.ndarray, "height width"]:
    """All images in one, with white lines between them, and white at the right to make up ``columns``."""
    missing = max(0, columns - images.shape[1])
    images = np.pad(images, [(0, 0), (0, missing), (0, 0), (0, 0)], constant_values=255)
    framed = np.pad(images, [(0, 0), (0, 0), (0, _GAP), (0, _GAP)], constant_values=255)
    rows, columns, height, width = framed.shape
    return framed.swapaxes(1, 2).reshape(rows * height, columns * width)[:-_GAP, :-_GAP]


def _draw(
    axes: Axes, mosaic: UInt8[np.ndarray, "height width"], columns: list[str], rows: list[str], name: str, size: int
) -> None:
    axes.imshow(mosaic, cmap="gray", vmin=0, vmax=255)
    axes.xaxis.tick_top()
    axes.set_xticks(_middles(len(columns), size), columns, size=8)  # points
    axes.set_yticks(_middles(len(rows), size), rows, size=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(name, loc="left", size=10)  # points


def _middles(count: int, size: int) -> list[float]:
    """Where the centres of images lie in a mosaic, in pixels."""
    return [number * (size + _GAP) + (size - 1) / 2 for number in range(count)]
