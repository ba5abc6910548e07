"""Shapes of the figures of claims: SVG, whose text stays legible on a phone and in print."""

from __future__ import annotations

import html
import math
import textwrap
from dataclasses import dataclass

from capsule_studies.claims.effects import PLANNED, sign
from capsule_studies.claims.verdicts import (
    EQUAL,
    HOLDS,
    NOT,
    OPEN,
    OPPOSITE,
    OPPOSITE_NOT,
    OPPOSITE_OPEN,
    OPPOSITE_SMALL,
    PRELIMINARY,
    SMALL,
    UNDECIDED,
    Judged,
)  # fmt: skip

COLOURS = {  # those of docs/static/site.css
    HOLDS: "#1b7837",
    OPEN: "#458a4b",
    SMALL: "#6b6b6b",
    OPPOSITE: "#b3146f",
    OPPOSITE_OPEN: "#b5478a",
    OPPOSITE_SMALL: "#8a6079",
    EQUAL: "#1f6f9e",
    NOT: "#a8620a",
    OPPOSITE_NOT: "#6d6a00",
    UNDECIDED: "#404040",
    PRELIMINARY: "#7a5c99",
}
WIDTH = 940  # beside the longest verdict
RIGHT = 672  # margin with the facts about a claim
ROW = 48  # height of a claim
WIDEST = 8.0  # differences are drawn up to this multiple of the smallest one that matters
_LETTERS = 62  # of a line of a claim
_STYLE = "text{font:12px system-ui,sans-serif;fill:#1b1b1b}.b{font-weight:600}.s{font-size:11px;fill:#555}"


@dataclass
class Axis:
    """The place of differences, in multiples of the smallest one that matters, between two borders in pixels."""

    left: float
    right: float

    def place(self, difference: float) -> float:
        """Return where a difference is; beyond the widest, where that is."""
        inside = math.copysign(min(abs(difference), WIDEST), difference)
        middle = (self.left + self.right) / 2
        return middle + inside / WIDEST * (self.right - middle)


def interval(each: Judged, axis: Axis, y: float) -> list[str]:
    """Return the shapes of a difference: the band that does not matter, the interval, and a marker.

    The claimed direction is to the right. The marker is filled if the test was planned. Beyond the border, an arrow
    replaces it.
    """
    scale = sign(each.claim) / each.claim["smallest"]
    low, high = sorted((scale * each.effect.low, scale * each.effect.high))
    estimate = scale * each.effect.found.estimate
    start, middle, end = axis.place(low), axis.place(estimate), axis.place(high)
    band, zero = axis.place(-1), axis.place(0)
    colour = COLOURS[each.verdict]
    fill = colour if each.effect.plan.label == PLANNED else "#fff"
    style = f'style="fill:{fill};stroke:{colour};stroke-width:1.5"'
    marker = f'<circle cx="{middle:.1f}" cy="{y}" r="3.5" {style}/>'
    if abs(estimate) > WIDEST:
        back = math.copysign(9, -estimate)
        marker = f'<path d="M{middle:.1f} {y}l{back:.1f} -5v10z" {style}/>'
    width = 2 * (zero - band)
    return [
        f'<rect x="{band:.1f}" y="{y - 8}" width="{width:.1f}" height="16" style="fill:#e4e4e4"/>',
        f'<path d="M{zero:.1f} {y - 8}v16" style="stroke:#888"/>',
        f'<path d="M{start:.1f} {y}H{end:.1f}" style="stroke:{colour};stroke-width:2.5"/>',
        marker,
    ]


def claim_lines(each: Judged, y: float) -> list[str]:
    """Return the claim at the left margin, on lines around a height."""
    lines = textwrap.wrap(each.claim["claim"], _LETTERS, break_on_hyphens=False)
    top = y + 4 - 7 * (len(lines) - 1)
    return [text(10, top + 14 * number, line) for number, line in enumerate(lines)]


def verdict_line(each: Judged, y: float) -> str:
    """Return the id and the verdict at the right margin, above a height."""
    verdict = f'<tspan style="fill:{COLOURS[each.verdict]}">{each.verdict}</tspan>'
    return f'<text class="b" x="{RIGHT}" y="{y - 10:.0f}">{each.claim["id"]} {verdict}</text>'


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    """Return a line of text."""
    escaped = html.escape(words, quote=False)
    return f'<text class="{style}" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escaped}</text>'


def svg(height: float, title: str, shapes: list[str]) -> str:
    """Return the text of a file."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">',
        f"<title>{html.escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height:.0f}" style="fill:#fff"/>',
        *shapes,
        "</svg>",
        "",
    ]
    return "\n".join(lines)
