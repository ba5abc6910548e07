"""A heading for any figure; axes and colours that many figures have. Reports use them, which import no torch."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

SIZE = 8.5  # ours: points, of all text
LINE, LETTER = 0.16, 0.075  # ours: inches, from one line to the next, and of a letter
MARGIN = 0.15  # ours: inches
_LIGHTEST = 0.9  # ours: of viridis, whose last colours are too light for lines on white
_DECADES = 3  # ours: of a logarithmic axis, above which not every label is written


def add_heading(figure: Figure, heading: str) -> None:
    """Write ``heading`` above everything else in the figure, which becomes higher by as much as that takes."""
    width, height = figure.get_size_inches()
    heading, title = wrapped(heading, width), wrapped(figure.get_suptitle(), width)
    above = height_of([heading])
    figure.set_size_inches(width, height + above)
    text = "\n".join(filter(None, [heading, title]))
    if figure.get_layout_engine() is not None:  # which makes room for a title whose place is not given
        figure.suptitle(text, size=SIZE + 1)
        return
    kept = height / (height + above)
    for axes in figure.axes:
        left, bottom, across, down = axes.get_position(original=True).bounds
        axes.set_position((left, bottom * kept, across, down * kept))
    figure.suptitle(text, y=1 - MARGIN / 2 / (height + above), va="top", size=SIZE + 1)


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


def wrapped(text: str, width: float) -> str:
    """``text`` with line breaks, so that it takes ``width`` inches, or as much as its longest word."""
    letters = max(1, int(width / LETTER))
    return "\n".join(part for line in text.splitlines() for part in wrap(line, letters, break_long_words=False))


def height_of(texts: Iterable[str]) -> float:
    """Height in inches of the text with most lines."""
    lines = max((text.count("\n") + 1 if text else 0 for text in texts), default=0)
    return lines * LINE + LINE / 2 if lines else 0.0
