"""Draws the differences of every topic, and ours beside those of the papers."""

from __future__ import annotations

import math

from capsule_studies.claims import texts
from capsule_studies.claims.drawing import (
    COLOURS,
    RIGHT,
    ROW,
    WIDTH,
    Axis,
    claim_lines,
    interval,
    svg,
    text,
    verdict_line,
)
from capsule_studies.claims.effects import sign
from capsule_studies.claims.published import Published
from capsule_studies.claims.read import RESULTS
from capsule_studies.claims.verdicts import Judged

FOLDER = RESULTS / "claims"
PAPERS = "claims_papers.svg"
_TOP = 30  # of the first claim
_LEFT_END, _RIGHT_END = 410, 660  # of the axis
_POINTS = (0.3, 1, 3, 10, 30)  # marks of the axis of points


def figures(every: list[Judged]) -> dict[str, str]:
    """Return the text of every figure by the name of its file."""
    of_papers = texts.in_table(every, "A")
    found = {PAPERS: beside_papers(of_papers)}
    for table in ("A", "B"):
        topics = texts.by_topic(texts.in_table(every, table))
        for topic, tests in topics.items():
            found[name_of(table, topic)] = of_topic(topic, tests)
    return found


def name_of(table: str, topic: str) -> str:
    """Return the file of the figure of a topic."""
    return f"claims_{table.lower()}_{texts.slug(topic)}.svg"


def of_topic(topic: str, tests: list[Judged]) -> str:
    """Return the differences of a topic with their intervals, data, numbers of runs and verdicts."""
    axis = Axis(_LEFT_END, _RIGHT_END)
    left = "right: as claimed. Grey: differences that do not matter"
    right = "filled: planned; open: after the fact or not verifiable"
    shapes = _head(left, right)
    for row, each in enumerate(tests):
        y = _middle(row)
        band = f"band: ±{each.claim['smallest']:g} {each.claim['unit']}"
        shapes += claim_lines(each, y) + interval(each, axis, y)
        shapes += [verdict_line(each, y), _data(each, y), text(RIGHT, y + 19, band, "s")]
    bottom = _TOP + ROW * len(tests)
    for multiple in (-8, -4, -1, 1, 4, 8):
        shapes.append(text(axis.place(multiple), bottom + 14, f"{multiple:+}", "s", "middle"))
    unit = "difference in units of the band, 95 % interval"
    shapes.append(text(axis.place(0), bottom + 30, unit, "s", "middle"))
    return svg(bottom + 40, topic, shapes)


def beside_papers(every: list[Judged]) -> str:
    """Return our differences in points, and those of the papers, of the tests that have both."""
    shapes = _head("right: as claimed. Circle: ours", "diamond: paper; filled: comparable")
    row = 0
    for each in every:
        published = each.published
        if published is None:
            continue
        y = _middle(row)
        row += 1
        shapes += claim_lines(each, y) + _both(each, published, y)
        shapes += [verdict_line(each, y), _data(each, y)]
        shapes.append(text(RIGHT, y + 19, _compared(published), "s"))
    bottom = _TOP + ROW * row
    for points in (0, *_POINTS):
        for signed in {points, -points}:
            shapes.append(text(_place(signed), bottom + 14, f"{signed:g}", "s", "middle"))
    unit = "points, on a logarithmic scale above 0.1; 95 % intervals"
    shapes.append(text(_place(0), bottom + 30, unit, "s", "middle"))
    return svg(bottom + 40, "Our differences beside those of the papers", shapes)


def _head(left: str, right: str) -> list[str]:
    return [text(10, 18, left, "s"), text(WIDTH - 10, 18, right, "s", "end")]


def _middle(row: int) -> float:
    return _TOP + ROW * (row + 0.5)


def _data(each: Judged, y: float) -> str:
    """Return the line with the data and the number of runs; a stand-in is bold."""
    style = "s" if each.effect.real else "s b"
    return text(RIGHT, y + 5, f"{texts.data(each)}, n = {texts.count(each.effect)}", style)


def _place(points: float) -> float:
    """Return where a difference is on the axis of points, which is linear around 0."""
    share = math.asinh(points / 0.1) / math.asinh(_POINTS[-1] / 0.1)
    middle = (_LEFT_END + _RIGHT_END) / 2
    return middle + share * (_RIGHT_END - middle)


def _both(each: Judged, published: Published, y: float) -> list[str]:
    """Return our interval above that of the paper."""
    towards = sign(each.claim)
    effect = each.effect
    colour = COLOURS[each.verdict]
    zero = _place(0)
    ours = [_place(towards * value) for value in (effect.low, effect.found.estimate, effect.high)]
    values = (published.low, published.difference, published.high)
    papers = [_place(towards * value) for value in values]
    start, middle, end = ours
    low, difference, high = papers
    fill = "#fff" if published.why_not_compared else "#1b1b1b"
    return [
        f'<path d="M{zero:.1f} {y - 16:.0f}v32" style="stroke:#888"/>',
        f'<path d="M{start:.1f} {y - 6:.0f}H{end:.1f}" style="stroke:{colour};stroke-width:2.5"/>',
        f'<circle cx="{middle:.1f}" cy="{y - 6:.0f}" r="3.5" style="fill:{colour}"/>',
        f'<path d="M{low:.1f} {y + 6:.0f}H{high:.1f}" style="stroke:#1b1b1b"/>',
        f'<path d="M{difference - 5:.1f} {y + 6:.0f}l5 -5 5 5 -5 5z" style="fill:{fill};stroke:#1b1b1b"/>',
    ]


def _compared(published: Published) -> str:
    if published.why_not_compared:
        return f"paper: {published.data}, {published.differs}"
    return f"paper: {'outside' if published.excluded else 'within'} our interval"
