"""Pictures in rows and columns, under captions; a heading for any figure; axes and colours that many figures have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import NamedTuple

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullFormatter
from torch import Tensor

_GAP, _BETWEEN_GROUPS = 0.08, 0.4  # ours: white between pictures and between groups, in widths of a picture
_CELL = 0.82  # ours: inches from one picture to the next, wide enough for R:(2,8)(P)
_SIZE = 8.5  # ours: points, of all text
_LINE, _LETTER = 0.16, 0.075  # ours: inches, from one line to the next, and of a letter
_MARGIN = 0.15  # ours: inches
_FRAME = "0.75"  # ours: grey around pictures, so that those with a white edge do not run into each other
_LIGHTEST = 0.9  # ours: of viridis, whose last colours are too light for lines on white
_FAINT = 0.2  # ours: difference of the darkest and the brightest pixel of a picture that shows next to nothing
_ALIKE = 0.05  # ours: standard deviation over pictures, mean over pixels, of pictures that are next to the same
_DECADES = 3  # ours: of a logarithmic axis, above which not every label is written

Picture = Float[Tensor, "channel height width"]


class Column(NamedTuple):
    """A caption over pictures from top to bottom, in [0, 1], under each of which may be a text in a colour."""

    caption: str
    pictures: Sequence[Picture]
    colour: str = "black"
    below: Sequence[tuple[str, str]] = ()


class Group(NamedTuple):
    """Columns side by side, under a common name."""

    name: str
    columns: Sequence[Column]


def picture_grid(
    groups: Sequence[Group], rows: Sequence[str], *, title: str = "", note: str = "", cell: float = _CELL
) -> Figure:
    """All pictures in one image, groups of columns apart from each other.

    Three channels are red, green and blue. Otherwise the first channel is drawn, dark on white: of a stereo pair, the
    left image.

    Args:
        groups: of pictures of one size; groups without columns are left out.
        rows: names of the rows, at the left.
        title: above the figure.
        note: below the figure.
        cell: inches from one picture to the next.
    """
    groups = [group for group in groups if group.columns]
    columns = [column._replace(caption=_wrapped(column.caption, cell)) for group in groups for column in group.columns]
    height, width = columns[0].pictures[0].shape[1:]
    lefts = _lefts([len(group.columns) for group in groups], width)
    pixel = cell / (width * (1 + _GAP))  # inches
    under = round(_height(_wrapped(text, cell) for column in columns for text, _ in column.below) / pixel)
    step = height + under + round(_GAP * width)
    mosaic = np.ones((len(rows) * step - round(_GAP * width), lefts[-1] + width, 3), np.float32)
    for left, column in zip(lefts, columns, strict=True):
        for row, picture in enumerate(column.pictures):
            mosaic[row * step : row * step + height, left : left + width] = _as_rgb(picture)
    corners = [(left, row * step) for left in lefts for row in range(len(rows))]

    across, down = mosaic.shape[1] * pixel, mosaic.shape[0] * pixel
    labels = _MARGIN + _LETTER * max(map(len, rows))
    captions = _height(column.caption for column in columns)
    names = [_wrapped(group.name, len(group.columns) * cell) for group in groups]
    title, note = _wrapped(title, across), _wrapped(note, across)
    below = _height([note]) + _MARGIN
    size = (labels + across + _MARGIN, below + down + captions + _height(names) + _height([title]) + _MARGIN)
    figure = Figure(figsize=size)
    axes = figure.add_axes((labels / size[0], below / size[1], across / size[0], down / size[1]))
    axes.imshow(mosaic, vmin=0, vmax=1, aspect="auto")
    for left, top in corners:
        corner = (left - 0.5, top - 0.5)
        frame = Rectangle(corner, width, height, fill=False, clip_on=False, edgecolor=_FRAME, linewidth=0.5)
        axes.add_patch(frame)
    axes.xaxis.tick_top()
    axes.set_xticks([left + (width - 1) / 2 for left in lefts], [column.caption for column in columns], size=_SIZE)
    for tick, column in zip(axes.get_xticklabels(), columns, strict=True):
        tick.set_color(column.colour)
    axes.set_yticks([row * step + (height - 1) / 2 for row in range(len(rows))], rows, size=_SIZE)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for left, column in zip(lefts, columns, strict=True):
        for row, (text, colour) in enumerate(column.below):
            place = (left + (width - 1) / 2, row * step + height + 0.03 / pixel)
            axes.text(*place, _wrapped(text, cell), ha="center", va="top", size=_SIZE, color=colour)
    end = 0
    for group, name in zip(groups, names, strict=True):
        start, end = end, end + len(group.columns)
        middle, above = (lefts[start] + lefts[end - 1] + width - 1) / 2, 1 + captions / down
        x_in_pixels = axes.get_xaxis_transform()
        axes.text(middle, above, name, transform=x_in_pixels, ha="center", va="bottom", size=_SIZE, weight="bold")
    axes.text(0.5, -_MARGIN / 2 / down, note, transform=axes.transAxes, ha="center", va="top", size=_SIZE)
    figure.suptitle(title, y=1 - _MARGIN / 2 / size[1], va="top", size=_SIZE + 1)
    return figure


def image_rows(rows: Mapping[str, Float[Tensor, "image channel height width"]]) -> Figure:
    """Images of the same things, one row for each name, all in the range of the last row.

    Args:
        rows: in [0, 1], where they are drawn as they are; or in any other range.
    """
    last = [*rows.values()][-1]
    low, high = (0.0, 1.0) if last.min() >= 0 and last.max() <= 1 else (float(last.min()), float(last.max()))
    columns = [
        Column("", [(picture - low) / max(high - low, 1e-12) for picture in pictures])
        for pictures in zip(*rows.values(), strict=True)
    ]
    return picture_grid([Group("", columns)], [*rows])


def add_heading(figure: Figure, heading: str) -> None:
    """Write ``heading`` above everything else in the figure, which becomes higher by as much as that takes."""
    width, height = figure.get_size_inches()
    heading, title = _wrapped(heading, width), _wrapped(figure.get_suptitle(), width)
    above = _height([heading])
    figure.set_size_inches(width, height + above)
    text = "\n".join(filter(None, [heading, title]))
    if figure.get_layout_engine() is not None:  # which makes room for a title whose place is not given
        figure.suptitle(text, size=_SIZE + 1)
        return
    kept = height / (height + above)
    for axes in figure.axes:
        left, bottom, across, down = axes.get_position(original=True).bounds
        axes.set_position((left, bottom * kept, across, down * kept))
    figure.suptitle(text, y=1 - _MARGIN / 2 / (height + above), va="top", size=_SIZE + 1)


def name_of_class(classes: Sequence[str], label: int) -> str:
    """The name of a class, or its number where classes have no names."""
    return classes[label] if classes else str(label)


def sequential_colours(count: int) -> list[tuple[float, float, float, float]]:
    """As many colours as there are things in an order, dark to light: of iterations, or of types of capsule."""
    return [matplotlib.colormaps["viridis"](_LIGHTEST * number / max(count - 1, 1)) for number in range(count)]


def label_log_axis(axis: Axes) -> None:
    """Make the vertical axis, of what is drawn so far, logarithmic, with numbers such as 0.05 for powers of ten."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.yaxis.set_minor_locator(LogLocator(subs=(2, 3, 5)))  # ours: labels do not overlap over three decades
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("{x:g}" if high < 10**_DECADES * low else NullFormatter())


def note_on_decoder(decoded: Float[Tensor, "picture channel height width"]) -> str:
    """What to write under images that a decoder which is hardly trained makes of several; nothing, if it is."""
    pixels = decoded.detach().float().flatten(1)
    if float((pixels.amax(1) - pixels.amin(1)).median()) < _FAINT:
        return "decoded images are nearly one grey: the decoder has hardly been trained"
    if len(pixels) > 1 and float(pixels.std(0).mean()) < _ALIKE:
        return "decoded images are nearly the same: the decoder has hardly been trained"
    return ""


def _wrapped(text: str, width: float) -> str:
    """``text`` with line breaks, so that it takes ``width`` inches, or as much as its longest word."""
    letters = max(1, int(width / _LETTER))
    return "\n".join(part for line in text.splitlines() for part in wrap(line, letters, break_long_words=False))


def _height(texts: Iterable[str]) -> float:
    """Height in inches of the text with most lines."""
    lines = max((text.count("\n") + 1 if text else 0 for text in texts), default=0)
    return lines * _LINE + _LINE / 2 if lines else 0.0


def _lefts(groups: Sequence[int], width: int) -> list[int]:
    """Left edge of each column in pixels; ``groups`` are numbers of columns."""
    lefts, left = [], 0
    for columns in groups:
        for _ in range(columns):
            lefts.append(left)
            left += width + round(_GAP * width)
        left += round((_BETWEEN_GROUPS - _GAP) * width)
    return lefts


def _as_rgb(picture: Picture) -> np.ndarray:
    """A picture as ``(height, width, 3)``."""
    shown = picture.detach().float().clamp(0, 1).cpu()
    if len(shown) == 3:
        return shown.permute(1, 2, 0).numpy()
    return (1 - shown[:1]).expand(3, -1, -1).permute(1, 2, 0).numpy()
