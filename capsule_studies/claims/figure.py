"""Draws the difference of every claim."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from capsule_studies.claims.effects import sign
from capsule_studies.claims.page import title
from capsule_studies.claims.verdicts import (
    EQUAL,
    HOLDS,
    NOT,
    OPEN,
    OPPOSITE,
    OPPOSITE_OPEN,
    OPPOSITE_SMALL,
    PRELIMINARY,
    SMALL,
    UNDECIDED,
    Judged,
)  # fmt: skip

COLOURS = {
    HOLDS: "#1b7837",
    OPEN: "#5aae61",
    SMALL: "#8c8c8c",
    OPPOSITE: "#c51b7d",
    OPPOSITE_OPEN: "#de77ae",
    OPPOSITE_SMALL: "#b08fa8",
    EQUAL: "#2b83ba",
    NOT: "#f1a340",
    UNDECIDED: "#404040",
    PRELIMINARY: "#a0a0a0",
}
_WIDEST = 8.0  # differences are drawn up to this multiple of the smallest one that matters
_MOST_LETTERS = 125  # of a claim


def figure(every: list[Judged]) -> Figure:
    """Draw every difference with its interval, in units of the smallest difference that matters.

    The claimed direction is to the right. Intervals that reach beyond the axis end in an arrow.
    """
    topics = [each.claim["topic"] for each in every]
    order = list(dict.fromkeys(topics))
    heights = []
    for row, topic in enumerate(topics):
        headings = order.index(topic) + 1
        heights.append(row + 1.6 * headings)
    drawn = Figure(figsize=(12, 0.19 * heights[-1] + 1))
    margin = 0.5 / drawn.get_figheight()  # of half an inch, below and above
    axes = drawn.add_axes((0.6, margin, 0.38, 1 - margin - margin))
    axes.axvspan(-1, 1, color="0.93", linewidth=0)
    axes.axvline(0, color="0.6", linewidth=0.7)
    for each, height in zip(every, heights, strict=True):
        _draw(axes, each, height)
        _write_left(axes, height, _shortened(each), size=7.5, color=COLOURS[each.verdict])
    for topic in order:
        height = heights[topics.index(topic)] - 1.1
        _write_left(axes, height, topic, size=8, weight="bold")
    axes.set_xlim(-1.05 * _WIDEST, 1.05 * _WIDEST)
    axes.set_ylim(heights[-1] + 0.8, heights[0] - 1.8)
    axes.set_yticks([])
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.tick_params(labelsize=8)
    unit = "in units of the smallest one that matters; 95 % interval"
    axes.set_xlabel(f"difference in the claimed direction, {unit}", size=8)
    keys = []
    for verdict, colour in COLOURS.items():
        keys.append(Line2D([], [], color=colour, marker="o", markersize=4, label=verdict))
    drawn.legend(handles=keys, loc="upper left", ncols=4, fontsize=8, frameon=False)
    return drawn


def _write_left(axes: Axes, height: float, text: str, **style: Any) -> None:
    """Write a line of text to the left of the axes."""
    transform = axes.get_yaxis_transform()
    axes.text(-0.015, height, text, va="center", ha="right", transform=transform, **style)


def _draw(axes: Axes, each: Judged, height: float) -> None:
    colour = COLOURS[each.verdict]
    scale = sign(each.claim) / each.claim["smallest"]
    middle = scale * each.effect.found.estimate
    low, high = sorted((scale * each.effect.low, scale * each.effect.high))
    ends = np.clip([low, high], -_WIDEST, _WIDEST)
    axes.plot(ends, [height, height], color=colour, linewidth=1.4, solid_capstyle="butt")
    if low < -_WIDEST:
        axes.plot([-_WIDEST], [height], "<", color=colour, markersize=4)
    if high > _WIDEST:
        axes.plot([_WIDEST], [height], ">", color=colour, markersize=4)
    if abs(middle) <= _WIDEST:
        axes.plot([middle], [height], "o", color=colour, markersize=4)


def _shortened(each: Judged) -> str:
    """Return the title of a claim; a last parenthesis and the label of a stand-in are never cut."""
    claim = each.claim["claim"]
    label = title(each).removeprefix(claim)
    if len(claim + label) <= _MOST_LETTERS:
        return claim + label
    start, _, end = claim.rpartition(" (")
    if claim.endswith(")."):
        tail = f" ({end}{label}"
    else:
        start, tail = claim, label
    shortened = textwrap.shorten(start, _MOST_LETTERS - len(tail), placeholder=" …")
    return shortened + tail
