"""Grids of pictures with captions, and other helpers for figures."""

from __future__ import annotations

import math
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

_CELL = 0.82  # ours: inches from one picture to the next, wide enough for R:(2,8)(P)
_GAP = 0.08  # ours: gap between pictures, in cells
_BETWEEN_GROUPS = 0.4  # ours: additional gap between groups, in cells
_ABOVE_TEXT = 0.04  # ours: gap between a picture and the text below it, in cells
_FRAME = "0.75"  # ours: grey frame, to separate pictures with white edges
_FAINT = 0.2  # ours: pictures with a smaller range of pixels count as empty
_LONGEST_NAME = 40  # ours: characters of a class; longer names leave no room for the pictures
# ours: pictures with a smaller standard deviation over pictures, mean over pixels, count as equal
_ALIKE = 0.05

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


class _Cells(NamedTuple):
    """The sizes of pictures in cells: the distance from one column to the next is 1."""

    width: float
    height: float
    step: float  # from one row to the next, with the text between them


def picture_grid(
    groups: Sequence[Group],
    rows: Sequence[str],
    *,
    title: str = "",
    note: str = "",
    cell: float = _CELL,
    stacked: bool = False,
) -> Figure:
    """Draw groups of pictures side by side, or one below the other if ``stacked``, each group on axes of its own.

    Three channels are red, green and blue. Otherwise the first channel is drawn, dark on white; for a stereo pair, it
    is the left image. Pictures have equal sizes and are about ``cell`` inches apart; groups without columns are left
    out. Row names are at the left, the title above, the note below. Matplotlib's constrained layout makes room for
    these texts; only the size of the figure is estimated here.
    """
    groups = [_wrapped(group, cell) for group in groups if group.columns]
    cells = _cells(groups, cell)
    width, height = _figure_size(groups, rows, cells, cell, stacked)
    title, note = wrapped(title, width), wrapped(note, width)
    height += height_of([title]) + height_of([note])
    figure = Figure(figsize=(width, height))
    padding = {"h_pad": MARGIN / 2, "w_pad": _BETWEEN_GROUPS * cell / 2}  # around each group
    figure.set_layout_engine("compressed", wspace=0, **padding)

    columns = [len(group.columns) for group in groups]
    if stacked:
        columns = [max(columns)] * len(groups)
        every_axes = figure.subplots(len(groups), 1, squeeze=False)[:, 0]
    else:
        widths = [number - _GAP for number in columns]
        every_axes = figure.subplots(1, len(groups), width_ratios=widths, squeeze=False)[0]
    for axes, group, across in zip(every_axes, groups, columns, strict=True):
        _draw_group(axes, group, cells, across, len(rows))
    middles = cells.step * np.arange(len(rows)) + cells.height / 2
    for axes in every_axes if stacked else every_axes[:1]:
        axes.set_yticks(middles, rows, size=SIZE)
    figure.suptitle(title, size=SIZE + 1)
    figure.supxlabel(note, size=SIZE)
    return figure


def _wrapped(group: Group, cell: float) -> Group:
    """Break the texts of a group into lines that fit its columns of ``cell`` inches."""
    columns = []
    for column in group.columns:
        below = [(wrapped(text, cell), colour) for text, colour in column.below]
        columns.append(column._replace(caption=wrapped(column.caption, cell), below=below))
    return Group(wrapped(group.name, len(columns) * cell), columns)


def _cells(groups: Sequence[Group], cell: float) -> _Cells:
    pixels_down, pixels_across = groups[0].columns[0].pictures[0].shape[1:]
    width = 1 - _GAP
    height = width * pixels_down / pixels_across
    below = []
    for column in _columns_of(groups):
        below += [text for text, _ in column.below]
    return _Cells(width, height, step=height + height_of(below) / cell + _GAP)


def _figure_size(
    groups: Sequence[Group], rows: Sequence[str], cells: _Cells, cell: float, stacked: bool
) -> tuple[float, float]:
    """Estimate width and height in inches of the pictures with names and captions."""
    widths = []
    for group in groups:
        widths.append((len(group.columns) + _BETWEEN_GROUPS) * cell)
    captions = height_of(column.caption for column in _columns_of(groups))
    group_names = height_of(group.name for group in groups)
    of_group = group_names + captions + len(rows) * cells.step * cell
    row_names = LETTER * max(len(name) for name in rows)
    across = max(widths) if stacked else sum(widths)
    down = len(groups) * of_group if stacked else of_group
    return row_names + across + 2 * MARGIN, down + 2 * MARGIN


def _columns_of(groups: Sequence[Group]) -> list[Column]:
    columns: list[Column] = []
    for group in groups:
        columns += group.columns
    return columns


def _draw_group(axes: Axes, group: Group, cells: _Cells, across: int, rows: int) -> None:
    """Draw pictures and their texts in units of cells, from the upper left corner; ``across`` columns have room."""
    for left, column in enumerate(group.columns):
        right, middle = left + cells.width, left + cells.width / 2
        for row, picture in enumerate(column.pictures):
            top = row * cells.step
            bottom = top + cells.height
            axes.imshow(as_rgb(picture), extent=(left, right, bottom, top))
            frame = Rectangle((left, top), cells.width, cells.height, clip_on=False)
            frame.set(fill=False, edgecolor=_FRAME, linewidth=0.5)
            axes.add_patch(frame)
        for row, (text, colour) in enumerate(column.below):
            bottom = row * cells.step + cells.height
            label = axes.text(middle, bottom + _ABOVE_TEXT, text, ha="center", va="top")
            label.set(size=SIZE, color=colour)

    axes.set(xlim=(0, across - _GAP), ylim=(rows * cells.step - _GAP, 0), yticks=[])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.xaxis.tick_top()
    middles = np.arange(len(group.columns)) + cells.width / 2
    captions = [column.caption for column in group.columns]
    axes.set_xticks(middles, captions, size=SIZE)
    for label, column in zip(axes.get_xticklabels(), group.columns, strict=True):
        label.set_color(column.colour)
    axes.set_title(group.name, size=SIZE, weight="bold")


def folded_grid(columns: Sequence[Column], rows: Sequence[str], *, note: str = "") -> Figure:
    """Draw columns of pictures in blocks one below the other, as many as make the figure nearly square.

    Dashboards show figures in narrow cards, where a single block of many images would be too small to see.
    """
    blocks = max(1, math.isqrt(len(columns) // len(rows)))
    across = math.ceil(len(columns) / blocks)
    starts = range(0, len(columns), across)
    groups = [Group("", columns[start : start + across]) for start in starts]
    return picture_grid(groups, rows, note=note, stacked=True)


def image_rows(rows: Mapping[str, Float[Tensor, "image channel height width"]]) -> Figure:
    """Draw corresponding images, one row per name, in the last row's range, or in [0, 1] if that contains it."""
    last = [*rows.values()][-1]
    low, high = float(last.min()), float(last.max())
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    scaled = [(images - low) / max(high - low, 1e-12) for images in rows.values()]
    columns = [Column("", pictures) for pictures in zip(*scaled, strict=True)]
    return folded_grid(columns, [*rows])


def panels(
    rows: int, columns: int, size: tuple[float, float], title: str, **options: Any
) -> tuple[Figure, Any]:
    """Return a figure with a title, of a size in inches, and its axes in rows and columns."""
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, size=9)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def draw_image(axis: Axes, picture: Picture, title: str = "", **options: Any) -> None:
    """Draw three channels as colours, in [0, 1] or in their own range if it is wider; else the first, dark on white."""
    pixels = picture.detach().float().cpu()
    if len(pixels) == 3:
        low, high = min(0.0, float(pixels.min())), max(1.0, float(pixels.max()))
        axis.imshow(as_rgb((pixels - low) / (high - low)), **options)
    else:
        axis.imshow(-pixels[0].numpy(), **{"cmap": "gray", **options})
    axis.set(xticks=[], yticks=[])
    axis.set_title(title, fontsize=9)


def name_of_class(classes: Sequence[str], label: int) -> str:
    """Return the name of a class for a figure, or its number if classes have no names."""
    if not classes:
        return str(label)
    name = classes[label]
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}…"
    return plain_label(name)


def names_of_classes(classes: Sequence[str], labels: Sequence[int], between: str = ", ") -> str:
    """Return the names of several classes, see ``name_of_class``, with ``between`` between them."""
    return between.join(name_of_class(classes, label) for label in labels)


def note_on_decoder(decoded: Float[Tensor, "picture channel height width"]) -> str:
    """Return a note for decoded images that are nearly empty or equal, as by a hardly trained decoder; else nothing."""
    pixels = decoded.detach().float().flatten(1)
    ranges = pixels.amax(1) - pixels.amin(1)
    if ranges.median() < _FAINT:
        return "decoded images are nearly one grey: the decoder has hardly been trained"
    if len(pixels) > 1 and pixels.std(0).mean() < _ALIKE:
        return "decoded images are nearly the same: the decoder has hardly been trained"
    return ""


def as_rgb(picture: Picture) -> np.ndarray:
    """Return a picture in [0, 1] as ``(height, width, 3)``; any but a coloured one is dark on white."""
    shown = picture.detach().float().clamp(0, 1).cpu()
    if len(shown) != 3:
        shown = (1 - shown[:1]).expand(3, -1, -1)
    return shown.permute(1, 2, 0).numpy()
