"""Headings, axes and colours shared by many figures. This module does not import torch, since reports use it."""

from __future__ import annotations

import io
from collections.abc import Iterable
from textwrap import wrap

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, NullFormatter

from capsule_lab.errors import printable

SIZE = 8.5  # ours: font size of all text, in points
LINE = 0.16  # ours: line height, in inches
LETTER = 0.075  # ours: character width, in inches
MARGIN = 0.15  # ours: inches
_LIGHTEST = 0.9  # ours: end of viridis, whose last colours are too light for lines on white
_OF_MATPLOTLIB = r"$\mathdefault{"
_DECADES = 3  # ours: logarithmic axes with more decades have no minor labels


def plain_label(text: str) -> str:
    """Return text that comes from files for a figure: matplotlib would read ``$…$`` as a formula."""
    return printable(text).replace("$", r"\$")


def add_heading(figure: Figure, heading: str) -> None:
    """Write ``heading`` above the title of a figure with constrained layout, and increase its height accordingly."""
    width, height = figure.get_size_inches()
    heading = wrapped(plain_label(heading), width)
    title = wrapped(figure.get_suptitle(), width)
    figure.set_size_inches(width, height + height_of([heading]))
    figure.suptitle(f"{heading}\n{title}".rstrip(), size=SIZE + 1)


def show_dollar_signs(figure: Figure) -> None:
    """Draw texts with dollar signs as they are, before the figure is saved.

    Matplotlib takes them for formulas, and raises an error for text that is not one; names of classes, data and rows
    come from files. Its own formulas, for numbers on axes, stay.
    """
    for text in figure.findobj(Text):
        shown = text.get_text()
        if "$" in shown and not shown.startswith(_OF_MATPLOTLIB):
            text.set_parse_math(False)


def as_png(figure: Figure, dpi: int) -> bytes:
    """Return a figure as a PNG. ``savefig`` draws a figure with a layout twice, this function once."""
    show_dollar_signs(figure)
    figure.dpi, dpi_before = dpi, figure.dpi
    content = io.BytesIO()
    try:
        FigureCanvasAgg(figure).print_png(content)
    finally:
        figure.dpi = dpi_before
    return content.getvalue()


def sequential_colours(count: int) -> list[tuple[float, float, float, float]]:
    """Return ``count`` colours from dark to light, for ordered items such as iterations or types of capsule."""
    colour_map = matplotlib.colormaps["viridis"]
    last = max(count - 1, 1)
    return [colour_map(_LIGHTEST * number / last) for number in range(count)]


def label_log_axis(axis: Axes) -> None:
    """Make the vertical axis logarithmic, after drawing, with labels such as 0.05 instead of powers of ten."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    few_decades = high < 10**_DECADES * low
    # ours: at these steps, labels do not overlap over three decades
    axis.yaxis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("{x:g}" if few_decades else NullFormatter())


def wrapped(text: str, width: float) -> str:
    """Wrap ``text`` to a width of ``width`` inches; words are not broken."""
    letters = max(1, int(width / LETTER))
    lines = []
    for line in text.splitlines():
        lines += wrap(line, letters, break_long_words=False)
    return "\n".join(lines)


def height_of(texts: Iterable[str]) -> float:
    """Return the height in inches of the text with the most lines."""
    lines = max((len(text.splitlines()) for text in texts), default=0)
    return (lines + 0.5) * LINE if lines else 0.0
