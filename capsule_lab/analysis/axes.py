"""Headings, axes and colours shared by many figures. This module does not import torch, since reports use it."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, NullFormatter

from capsule_lab.errors import printable

SIZE = 8.5  # ours: font size of all text, in points
LINE, LETTER = 0.16, 0.075  # ours: line height and character width, in inches
MARGIN = 0.15  # ours: inches
_LIGHTEST = 0.9  # ours: end of viridis, whose last colours are too light for lines on white
_OF_MATPLOTLIB = r"$\mathdefault{"
_DECADES = 3  # ours: logarithmic axes with more decades have no minor labels


def plain_label(text: str) -> str:
    """Return text that comes from files for a figure: matplotlib would read ``$…$`` as a formula."""
    return printable(text).replace("$", r"\$")


def add_heading(figure: Figure, heading: str) -> None:
    """Write ``heading`` above everything else in the figure, and increase its height accordingly."""
    width, height = figure.get_size_inches()
    heading, title = wrapped(plain_label(heading), width), wrapped(figure.get_suptitle(), width)
    above = height_of([heading])
    figure.set_size_inches(width, height + above)
    text = "\n".join(filter(None, [heading, title]))
    if figure.get_layout_engine() is not None:  # it makes room for a title without a position
        figure.suptitle(text, size=SIZE + 1)
        return
    kept = height / (height + above)
    for axes in figure.axes:
        left, bottom, across, down = axes.get_position(original=True).bounds
        axes.set_position((left, bottom * kept, across, down * kept))
    figure.suptitle(text, y=1 - MARGIN / 2 / (height + above), va="top", size=SIZE + 1)


def show_dollar_signs(figure: Figure) -> None:
    """Draw texts with dollar signs as they are, before the figure is saved.

    Matplotlib takes them for formulas, and raises an error for what is none; names of classes, data and rows come from
    files. Formulas of its own, for numbers at axes, stay.
    """
    for text in figure.findobj(Text):
        shown = text.get_text()
        if "$" in shown and not shown.startswith(_OF_MATPLOTLIB):
            text.set_parse_math(False)


def sequential_colours(count: int) -> list[tuple[float, float, float, float]]:
    """Return ``count`` colours from dark to light, for ordered items such as iterations or types of capsule."""
    return [
        matplotlib.colormaps["viridis"](_LIGHTEST * number / max(count - 1, 1))
        for number in range(count)
    ]


def label_log_axis(axis: Axes) -> None:
    """Make the vertical axis logarithmic, after drawing, with labels such as 0.05 instead of powers of ten."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.yaxis.set_minor_locator(
        LogLocator(subs=(2, 3, 5))
    )  # ours: labels do not overlap over three decades
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("{x:g}" if high < 10**_DECADES * low else NullFormatter())


def wrapped(text: str, width: float) -> str:
    """Wrap ``text`` to a width of ``width`` inches; words are not broken."""
    letters = max(1, int(width / LETTER))
    return "\n".join(
        part for line in text.splitlines() for part in wrap(line, letters, break_long_words=False)
    )


def height_of(texts: Iterable[str]) -> float:
    """Return the height in inches of the text with the most lines."""
    lines = max((text.count("\n") + 1 if text else 0 for text in texts), default=0)
    return lines * LINE + LINE / 2 if lines else 0.0
