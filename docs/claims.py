"""Writes docs/claims.md, and its short form in README.md, from docs/claims.yaml and results/: ``make claims``.

A claim names two samples of runs, or a comparison that a report wrote. Two tests decide it: is there a difference, and
is the difference in the claimed direction smaller than the smallest one that would matter? Their p values are corrected
by Holm's method: those of planned comparisons within their family, all others over the page.
"""

from __future__ import annotations

import hashlib
import math
import re
import textwrap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.stats import t as student

from capsule_lab.tables import statistics

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAGE, README = ROOT / "docs" / "claims.md", ROOT / "README.md"
FIGURE = RESULTS / "claims.png"
START, END = "<!-- written by make claims -->\n", "<!-- end -->"
HOLDS, OPEN, SMALL = "holds", "holds, size open", "holds, but small"
OPPOSITE, NOT, UNDECIDED = "the opposite holds", "does not hold", "undecided"
VERDICTS = {
    HOLDS: "a difference in the claimed direction; the 95 % interval contains only differences that matter.",
    OPEN: "the same, but the interval also contains differences that do not matter.",
    SMALL: "the same, but the interval contains only differences that do not matter.",
    OPPOSITE: "a difference in the other direction, of any size.",
    NOT: "if there is a difference in the claimed direction, it does not matter.",
    UNDECIDED: "neither test is significant, or there are fewer than three runs.",
}
_FEWEST = 3  # runs; with fewer there is no verdict
_COLOURS = {
    HOLDS: "#1b7837",
    OPEN: "#5aae61",
    SMALL: "#a6a6a6",
    OPPOSITE: "#c51b7d",
    NOT: "#f1a340",
    UNDECIDED: "#404040",
}
_WIDEST = 8.0  # differences are drawn up to this multiple of the smallest one that matters


@dataclass
class Effect:
    """The difference that decides a claim: first sample minus second.

    Attributes:
        p: of no difference.
        p_of_report: the same, corrected for the family of its report, if it comes from one.
        family: comparisons that are corrected together; empty for those of the page.
        counts: runs of both samples, or of pairs twice the same number.
        paired: whether runs with the same seed are compared.
        planned: ``"planned"``, ``"after the fact"`` or ``"unknown"``.
        test: name of the test.
    """

    difference: float
    low: float
    high: float
    p: float
    counts: tuple[int, int]
    paired: bool
    planned: str
    test: str
    p_of_report: float = 0.0
    family: str = ""

    @property
    def degrees(self) -> int:
        """Degrees of freedom; for Welch's test, those of equal deviations."""
        return self.counts[0] - 1 if self.paired else sum(self.counts) - 2

    @property
    def error(self) -> float:
        """Standard error of the difference, from its interval."""
        return (self.high - self.low) / 2 / float(student.ppf(1 - statistics.LEVEL / 2, self.degrees))

    def p_of_smaller(self, claim: dict[str, Any]) -> float:
        """Return the p value of a difference in the claimed direction that matters; small if there is none."""
        towards = _sign(claim) * self.difference
        return float(student.cdf((towards - claim["smallest"]) / self.error, self.degrees))


def effect_of(claim: dict[str, Any]) -> Effect:
    """Compute the effect of a claim from the records."""
    if "comparison" in claim:
        return _of_report(**claim["comparison"])
    first, second, paired = _sample(claim["first"]), claim["second"], claim.get("paired", False)
    if not isinstance(second, dict):  # a number
        second, paired = pd.Series(float(second), first.index), True
    else:
        second = _sample(second)
    if paired:
        seeds = first.index.intersection(second.index)
        first, second = first[seeds], second[seeds]
    compare = statistics.paired_difference if paired else statistics.unpaired_difference
    found = compare([*first], [*second])
    if found.low is None or found.high is None or found.p is None:
        raise ValueError(f"{claim['claim']} has samples without a deviation; expected several different values")
    return Effect(found.estimate, found.low, found.high, found.p, found.counts, paired, "after the fact", found.test)


def _of_report(file: str, name: str, row: str = "", column: str = "") -> Effect:
    frame = pd.read_csv(RESULTS / f"{file}_comparisons.csv", keep_default_na=False)
    found = frame[(frame["comparison"] == name) & frame["first"].str.startswith(row)]
    found = found[found["first_column"].str.startswith(column)]
    if len(found) != 1:
        raise ValueError(f"{file}_comparisons.csv has {len(found)} lines of {name}, {row!r}, {column!r}; expected one")
    line = found.iloc[0]
    difference, low, high, p, corrected = (
        float(line[key] or "nan") for key in ("difference", "low", "high", "p", "p_holm")
    )
    planned = {"yes": "planned", "no": "after the fact"}.get(line["planned"], "unknown")
    counts = int(line["n_first"]), int(line["n_second"])
    family = f"{file}/{line['family'] or name}" if planned == "planned" else ""
    paired = line["test"].startswith("paired")
    return Effect(difference, low, high, p, counts, paired, planned, line["test"], corrected, family)


def _sample(source: dict[str, str]) -> pd.Series:
    """Return the values of a row of a file of runs by seed; ``value`` names the column of values."""
    frame = pd.read_csv(RESULTS / source["file"])
    for key in ("column", "row", "network"):
        if key in source:
            exact = frame[key] == source[key]
            frame = frame[exact if exact.any() else frame[key].astype(str).str.startswith(source[key])]
    if "status" in frame:
        frame = frame[frame["status"] == "done"]
    if frame.empty or frame["seed"].duplicated().any():
        raise ValueError(f"{source} has {len(frame)} runs; expected one of each seed")
    return frame.set_index("seed")[source.get("value", "value")].astype(float)


def _sign(claim: dict[str, Any]) -> int:
    return {"less": -1, "more": 1}[claim["expects"]]


@dataclass
class Judged:
    """A claim with its effect, the corrected p values of both tests, and the verdict."""

    claim: dict[str, Any]
    effect: Effect
    p: float
    p_of_smaller: float
    tests: int = 1

    @property
    def verdict(self) -> str:
        """One of ``VERDICTS``."""
        claim, effect = self.claim, self.effect
        low, high = sorted((_sign(claim) * effect.low, _sign(claim) * effect.high))
        if min(effect.counts) < _FEWEST:
            return UNDECIDED
        if self.p < statistics.LEVEL and high < 0:
            return OPPOSITE
        if self.p < statistics.LEVEL and low > 0:
            return HOLDS if low >= claim["smallest"] else SMALL if high < claim["smallest"] else OPEN
        return NOT if self.p_of_smaller < statistics.LEVEL else UNDECIDED

    @property
    def needed(self) -> int | None:
        """Seeds that find the smallest difference that matters with a power of 80 %, as one of ``tests``."""
        effect = self.effect
        spread = effect.error / math.sqrt(sum(1 / count for count in effect.counts) / (2 if effect.paired else 1))
        level = statistics.LEVEL / self.tests
        return statistics.runs_for(self.claim["smallest"], spread, pairs=effect.paired, level=level)


def judged(claims: list[dict[str, Any]], effects: list[Effect] | None = None) -> list[Judged]:
    """Judge all claims of the page; planned comparisons are corrected with their family, all others with each other.

    The report has corrected the p values of no difference of planned comparisons, also for those that are not claims.
    """
    effects = [effect_of(claim) for claim in claims] if effects is None else effects
    found = [Judged(claim, effect, 1, 1) for claim, effect in zip(claims, effects, strict=True)]
    for family in {effect.family for effect in effects}:
        members = [each for each in found if each.effect.family == family]
        smaller = [each.effect.p_of_smaller(each.claim) for each in members]
        if family:
            p_values = [each.effect.p_of_report for each in members] + statistics.holm(smaller)
        else:
            p_values = statistics.holm([*(each.effect.p for each in members), *smaller])
        for index, each in enumerate(members):
            each.p = max(p_values[index], each.effect.p_of_report)
            each.p_of_smaller, each.tests = p_values[len(members) + index], len(p_values)
    return found


def signed(value: float) -> str:
    return f"{value:+.3f}" if abs(value) < 0.1 else f"{value:+.2f}"


def p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def page(claims: list[dict[str, Any]]) -> str:
    """Return docs/claims.md."""
    every = judged(claims)
    rules = "\n".join(f"- **{name[0].upper()}{name[1:]}**: {rule}" for name, rule in VERDICTS.items())
    lines = [_HEAD.format(number=len(claims), counts=_counted(every), rules=rules)]
    for topic in dict.fromkeys(claim["topic"] for claim in claims):
        of_topic = [each for each in every if each.claim["topic"] == topic]
        lines += [f"## {topic}", "", "| claim | verdict | difference (95 % interval) | n |", "|---|---|---|---|"]
        for each in of_topic:
            effect, claim = each.effect, each.claim
            numbers = f"{signed(effect.difference)} ({signed(effect.low)} to {signed(effect.high)}) {claim['unit']}"
            lines.append(f"| {claim['claim']} | **{each.verdict}** | {numbers} | {min(effect.counts)} |")
        lines.append("")
        for each in of_topic:
            lines += _details(each)
    return "\n".join(lines).rstrip() + "\n"


_HEAD = """# Claims about capsule networks, and what was found here

This page tests {number} claims of papers, talks and tutorials, and questions that follow from them: {counts}.

The verdicts are about the networks, data and training lengths below, which are small: mostly MNIST for 1.6 epochs, and
a rendered stand-in for smallNORB (toynorb). Rows are not independent: many describe the networks of the same five
seeds, and many concern an algorithm of ours. The counts describe this page, not capsule networks.

{rules}

Differences in the grey band do not matter. Intervals are not corrected for the number of tests. The direction
of a verdict is corrected; its size (holds, size open, small) is not.

![Every difference with its interval](../results/claims.png)

- **Correction.** Each claim has two tests: of no difference, and of a difference that matters. Their p values are
  corrected by Holm's method: for planned comparisons within the family in their table, for all others over this page.
- **n** is the number of seeds, or of pairs of runs with the same seed. Intervals cover other seeds; those of a
  bootstrap over clusters of images also cover other toys.
- **Planned** means that the comparison stood in its table in the commit of the runs; otherwise it was chosen after the
  fact. The selection of claims, their directions, and the smallest differences that matter were written down when many
  results were already known.

`make claims` writes this page from [claims.yaml](claims.yaml) and the records in [results/](../results/README.md), so
a new run can change a verdict. Two readers read two drafts, one as an advocate and one as a sceptic of capsules. What
they showed to be unsuitable was removed or replaced after its verdict was known. In the last reading, these were seven
claims, of which two were contradicted and two held; the direction of one was reversed, and three were added.
"""


def _details(each: Judged) -> list[str]:
    claim, effect = each.claim, each.effect
    predicted = {"less": "smaller", "more": "larger"}[claim["expects"]]
    matters = f"{claim['smallest']:g} {claim['unit']}"
    p_values = f"no difference: {p_value(each.p)}; a difference that matters: {p_value(each.p_of_smaller)}"
    lines = [
        f"**{claim['claim']}** ({claim['by']}): {each.verdict}.",
        "",
        f"- Test: {claim['test']} The claim predicts a {predicted} value; {matters} would matter.",
        f"- Statistics: {effect.test}, {effect.planned}; {p_values}.",
        f"- Scale: {claim['scale']}",
    ]
    if each.verdict == UNDECIDED:
        needed = each.needed
        many = "more than 10,000 seeds" if needed is None else f"about {needed} seeds"
        lines.append(f"- Needs: {many} to find a difference of {matters} with a power of 80 %, after the correction.")
    lines += [f"- What would change the verdict: {claim['change']}", f"- Command: `{claim['command']}`", ""]
    if claim.get("figure") and each.verdict in (HOLDS, OPEN, SMALL):
        lines += [f"![{claim['claim']}](../results/{claim['figure']})", ""]
    return lines


def figure(claims: list[dict[str, Any]]) -> Figure:
    """Draw every difference with its interval, in units of the smallest difference that matters.

    The claimed direction is to the right. Intervals that reach beyond the axis end in an arrow.
    """
    every = judged(claims)
    topics = [each.claim["topic"] for each in every]
    order = list(dict.fromkeys(topics))
    heights = [row + 1.6 * (order.index(topic) + 1) for row, topic in enumerate(topics)]
    drawn = Figure(figsize=(12, 0.19 * heights[-1] + 1))
    below, above = (inches / drawn.get_figheight() for inches in (0.5, 0.3))
    axes = drawn.add_axes((0.6, below, 0.38, 1 - below - above))
    axes.axvspan(-1, 1, color="0.93", linewidth=0)
    axes.axvline(0, color="0.6", linewidth=0.7)
    text = {"va": "center", "ha": "right", "size": 7.5, "transform": axes.get_yaxis_transform()}
    for each, height in zip(every, heights, strict=True):
        scale, colour = _sign(each.claim) / each.claim["smallest"], _COLOURS[each.verdict]
        low, middle, high = sorted(
            scale * value for value in (each.effect.low, each.effect.difference, each.effect.high)
        )
        inside = [max(-_WIDEST, min(value, _WIDEST)) for value in (low, high)]
        axes.plot(inside, [height, height], color=colour, linewidth=1.4, solid_capstyle="butt")
        for end in {math.copysign(_WIDEST, value) for value in (low, high) if abs(value) > _WIDEST}:
            axes.plot([end], [height], "<" if end < 0 else ">", color=colour, markersize=4)
        if abs(middle) <= _WIDEST:
            axes.plot([middle], [height], "o", color=colour, markersize=4)
        claim = textwrap.shorten(each.claim["claim"], 125, placeholder=" …")
        axes.text(-0.015, height, claim, color=colour, **text)
    for topic in dict.fromkeys(topics):
        axes.text(-0.015, heights[topics.index(topic)] - 1.1, topic, **{**text, "size": 8, "weight": "bold"})
    axes.set_xlim(-1.05 * _WIDEST, 1.05 * _WIDEST)
    axes.set_ylim(heights[-1] + 0.8, heights[0] - 1.8)
    axes.set_yticks([])
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.set_xlabel(
        "difference in the claimed direction, in units of the smallest one that matters; 95 % interval", size=8
    )
    keys = [
        Line2D([], [], color=colour, marker="o", markersize=4, label=verdict) for verdict, colour in _COLOURS.items()
    ]
    drawn.legend(handles=keys, loc="upper left", ncols=len(keys), fontsize=8, frameon=False)
    return drawn


def short_form(claims: list[dict[str, Any]]) -> str:
    """Return the block of README.md: how many claims have each verdict, and the decided claims with a key ``short``."""
    every = judged(claims)
    lines = [f"**[{len(claims)} claims about capsule networks](docs/claims.md), tested**: {_counted(every)}.", ""]
    for verdict in VERDICTS:
        phrases = [each.claim["short"] for each in every if each.verdict == verdict and "short" in each.claim]
        if phrases and verdict != UNDECIDED:
            lines.append(f"- {verdict}: {'; '.join(phrases)}")
    return "\n".join([*lines, ""])


def _counted(every: list[Judged]) -> str:
    counts = Counter(each.verdict for each in every)
    words = {HOLDS: "hold", OPEN: "hold with an open size", SMALL: "hold but are small", OPPOSITE: "are contradicted"}
    words |= {NOT: "do not hold", UNDECIDED: "are undecided"}
    return ", ".join(f"{counts[verdict]} {words[verdict]}" for verdict in VERDICTS if counts[verdict])


def with_short_form(readme: str, claims: list[dict[str, Any]]) -> str:
    """Return README.md with the current short form."""
    pattern = re.compile(re.escape(START) + ".*?" + re.escape(END), re.DOTALL)
    return pattern.sub(lambda _: START + short_form(claims) + END, readme)


def read(*, pending: bool = False) -> list[dict[str, Any]]:
    """Return the claims of docs/claims.yaml with the keys of their groups, or those whose records are ``pending``."""
    groups = yaml.safe_load((ROOT / "docs" / "claims.yaml").read_text())
    claims = [{**group, **claim} for group in groups for claim in group.pop("claims")]
    return [claim for claim in claims if claim.get("pending", False) is pending]


if __name__ == "__main__":
    PAGE.write_text(page(read()))
    digest = hashlib.sha256(PAGE.read_bytes()).hexdigest()
    figure(read()).savefig(FIGURE, dpi=110, metadata={"Description": digest})  # a test compares it with the page
    README.write_text(with_short_form(README.read_text(), read()))
