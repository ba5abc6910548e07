"""Grids of pictures with captions, and other helpers for figures."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from capsule_lab.analysis.axes import LETTER, MARGIN, SIZE, height_of, wrapped
from capsule_lab.analysis.axes import add_heading as add_heading
from capsule_lab.analysis.axes import label_log_axis as label_log_axis
from capsule_lab.analysis.axes import plain_label as plain_label
from capsule_lab.analysis.axes import sequential_colours as sequential_colours

_GAP, _BETWEEN_GROUPS = (
    0.08,
    0.4,
)  # ours: gaps between pictures and between groups, in widths of a picture
_CELL = 0.82  # ours: inches from one picture to the next, wide enough for R:(2,8)(P)
_FRAME = "0.75"  # ours: grey frame, to separate pictures with white edges
_FAINT = 0.2  # ours: pictures with a smaller range of pixels count as empty
_LONGEST_NAME = 40  # ours: characters of a class; longer names leave no room for the pictures
_ALIKE = 0.05  # ours: pictures with a smaller standard deviation over pictures, mean over pixels, count as equal

Picture = Float[Tensor, "channel height width"]


class Column(NamedTuple):
    """A caption above pictures in [0, 1] from top to bottom; ``below`` has an optional text and colour for each."""

    caption: str
    pictures: Sequence[Picture]
    colour: str = "black"
    below: Sequence[tuple[str, str]] = ()


class Group(NamedTuple):
    """Columns side by side under a common name."""

    name: str
    columns: Sequence[Column]


def picture_grid(
    groups: Sequence[Group],
    rows: Sequence[str],
    *,
    title: str = "",
    note: str = "",
    cell: float = _CELL,
) -> Figure:
    """Draw all pictures in one image, with gaps between groups of columns.

    Three channels are red, green and blue. Otherwise the first channel is drawn, dark on white; for a stereo pair, it
    is the left image. Pictures have equal sizes and are ``cell`` inches apart; groups without columns are left out. Row
    names are at the left, the title above, the note below.
    """
    groups = [group for group in groups if group.columns]
    columns = [
        column._replace(caption=wrapped(column.caption, cell))
        for group in groups
        for column in group.columns
    ]
    height, width = columns[0].pictures[0].shape[1:]
    group_of = [number for number, group in enumerate(groups) for _ in group.columns]
    apart, between = width + round(_GAP * width), round((_BETWEEN_GROUPS - _GAP) * width)
    lefts = [number * apart + group * between for number, group in enumerate(group_of)]
    pixel = cell / (width * (1 + _GAP))  # inches
    under = round(
        height_of(wrapped(text, cell) for column in columns for text, _ in column.below) / pixel
    )
    step = height + under + round(_GAP * width)
    mosaic = np.ones((len(rows) * step - round(_GAP * width), lefts[-1] + width, 3), np.float32)
    for left, column in zip(lefts, columns, strict=True):
        for row, picture in enumerate(column.pictures):
            mosaic[row * step : row * step + height, left : left + width] = _as_rgb(picture)

    across, down = mosaic.shape[1] * pixel, mosaic.shape[0] * pixel
    labels = MARGIN + LETTER * max(map(len, rows))
    captions = height_of(column.caption for column in columns)
    names = [wrapped(group.name, len(group.columns) * cell) for group in groups]
    title, note = wrapped(title, across), wrapped(note, across)
    below = height_of([note]) + MARGIN
    size = (
        labels + across + MARGIN,
        below + down + captions + height_of(names) + height_of([title]) + MARGIN,
    )
    figure = Figure(figsize=size)
    axes = figure.add_axes((labels / size[0], below / size[1], across / size[0], down / size[1]))
    axes.imshow(mosaic, vmin=0, vmax=1, aspect="auto")
    for corner in itertools.product(
        [left - 0.5 for left in lefts], [row * step - 0.5 for row in range(len(rows))]
    ):
        frame = Rectangle(
            corner, width, height, fill=False, clip_on=False, edgecolor=_FRAME, linewidth=0.5
        )
        axes.add_patch(frame)
    axes.xaxis.tick_top()
    axes.set_xticks(
        [left + (width - 1) / 2 for left in lefts],
        [column.caption for column in columns],
        size=SIZE,
    )
    for tick, column in zip(axes.get_xticklabels(), columns, strict=True):
        tick.set_color(column.colour)
    axes.set_yticks([row * step + (height - 1) / 2 for row in range(len(rows))], rows, size=SIZE)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for left, column in zip(lefts, columns, strict=True):
        for row, (text, colour) in enumerate(column.below):
            place = (left + (width - 1) / 2, row * step + height + 0.03 / pixel)
            axes.text(*place, wrapped(text, cell), ha="center", va="top", size=SIZE, color=colour)
    end = 0
    for group, name in zip(groups, names, strict=True):
        start, end = end, end + len(group.columns)
        middle, above = (lefts[start] + lefts[end - 1] + width - 1) / 2, 1 + captions / down
        x_in_pixels = axes.get_xaxis_transform()
        axes.text(
            middle,
            above,
            name,
            transform=x_in_pixels,
            ha="center",
            va="bottom",
            size=SIZE,
            weight="bold",
        )
    axes.text(
        0.5, -MARGIN / 2 / down, note, transform=axes.transAxes, ha="center", va="top", size=SIZE
    )
    figure.suptitle(title, y=1 - MARGIN / 2 / size[1], va="top", size=SIZE + 1)
    return figure


def image_rows(rows: Mapping[str, Float[Tensor, "image channel height width"]]) -> Figure:
    """Draw corresponding images, one row per name, in the last row's range, or in [0, 1] if that contains it."""
    last = [*rows.values()][-1]
    low, high = (
        (0.0, 1.0)
        if last.min() >= 0 and last.max() <= 1
        else (float(last.min()), float(last.max()))
    )
    columns = [
        Column("", [(picture - low) / max(high - low, 1e-12) for picture in pictures])
        for pictures in zip(*rows.values(), strict=True)
    ]
    return picture_grid([Group("", columns)], [*rows])


def panels(
    rows: int, columns: int, size: tuple[float, float], title: str, **options: Any
) -> tuple[Figure, Any]:
    """Return a figure with a title, of a size in inches, and its axes in rows and columns."""
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, size=9)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def draw_image(axis: Axes, picture: Picture, title: str = "", **options: Any) -> None:
    """Draw the first channel on ``axis``, dark on white."""
    axis.imshow(-picture[0].float().cpu().numpy(), **{"cmap": "gray", **options})
    axis.set(xticks=[], yticks=[])
    axis.set_title(title, fontsize=9)


def name_of_class(classes: Sequence[str], label: int) -> str:
    """Return the name of a class for a figure, or its number if classes have no names."""
    if not classes:
        return str(label)
    name = classes[label]
    return plain_label(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…")


def note_on_decoder(decoded: Float[Tensor, "picture channel height width"]) -> str:
    """Return a note for decoded images that are nearly empty or equal, as by a hardly trained decoder; else nothing."""
    pixels = decoded.detach().float().flatten(1)
    if float((pixels.amax(1) - pixels.amin(1)).median()) < _FAINT:
        return "decoded images are nearly one grey: the decoder has hardly been trained"
    if len(pixels) > 1 and float(pixels.std(0).mean()) < _ALIKE:
        return "decoded images are nearly the same: the decoder has hardly been trained"
    return ""


def _as_rgb(picture: Picture) -> np.ndarray:
    shown = picture.detach().float().clamp(0, 1).cpu()
    if len(shown) == 3:
        return shown.permute(1, 2, 0).numpy()
    return (1 - shown[:1]).expand(3, -1, -1).permute(1, 2, 0).numpy()
