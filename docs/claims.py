"""Writes docs/claims.md, and its short form in README.md, from docs/claims.yaml and results/: ``make claims``.

A claim names two samples of runs, or a comparison that a report wrote. Its verdict follows from the 95 % interval of
the difference and from the smallest difference that would matter:

- holds: p is below 0.05 after Holm's correction, and the difference has the claimed direction;
- holds, but small: the same, and the interval excludes every difference that would matter;
- does not hold: the interval excludes every difference that would matter, or the opposite direction is significant;
- undecided: anything else.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from capsule_lab.tables import statistics

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAGE, README = ROOT / "docs" / "claims.md", ROOT / "README.md"
START, END = "<!-- written by make claims -->\n", "<!-- end -->"
HOLDS, SMALL, NOT, UNDECIDED = "holds", "holds, but small", "does not hold", "undecided"
_FEWEST = 3  # runs; with fewer there is no verdict
_FAMILY = "claims"  # comparisons without a family in a report are corrected together, over this page


@dataclass
class Effect:
    """The difference that decides a claim: first sample minus second."""

    difference: float
    low: float
    high: float
    p: float
    count: int
    planned: str
    test: str
    family: str = _FAMILY


def effect_of(claim: dict[str, Any]) -> Effect:
    """Compute the effect of a claim from the records."""
    if "comparison" in claim:
        return _of_report(**claim["comparison"])
    first, second = (_sample(claim[side]) for side in ("first", "second"))
    paired = claim.get("paired", False)
    if paired:
        seeds = first.index.intersection(second.index)
        first, second = first[seeds], second[seeds]
    compare = statistics.paired_difference if paired else statistics.unpaired_difference
    found = compare([*first], [*second])
    if found.low is None or found.high is None or found.p is None:
        raise ValueError(f"{claim['claim']} has samples without a deviation; expected several different values")
    return Effect(found.estimate, found.low, found.high, found.p, min(found.counts), "after the fact", found.test)


def _of_report(file: str, name: str, row: str = "", column: str = "") -> Effect:
    frame = pd.read_csv(RESULTS / f"{file}_comparisons.csv", keep_default_na=False)
    found = frame[(frame["comparison"] == name) & frame["first"].str.startswith(row)]
    found = found[found["first_column"].str.startswith(column)]
    if len(found) != 1:
        raise ValueError(f"{file}_comparisons.csv has {len(found)} lines of {name}, {row!r}, {column!r}; expected one")
    line = found.iloc[0]
    difference, low, high, p = (float(line[key] or "nan") for key in ("difference", "low", "high", "p_holm"))
    planned = {"yes": "planned", "no": "after the fact"}.get(line["planned"], "unknown")
    count, family = int(min(line["n_first"], line["n_second"])), f"{file}/{line['family']}"
    return Effect(difference, low, high, p, count, planned, line["test"], family)


def _sample(source: dict[str, str]) -> pd.Series:
    """Return the values of a row of a file of runs by seed; ``value`` names the column of values."""
    frame = pd.read_csv(RESULTS / source["file"])
    value = source.get("value", "value")
    for key in ("column", "row", "network", "recipe"):
        if key in source:
            frame = frame[frame[key].astype(str).str.startswith(source[key])]
    if "status" in frame:
        frame = frame[frame["status"] == "done"]
    if frame.empty or frame[next(key for key in ("seed", "fold") if key in frame)].duplicated().any():
        raise ValueError(f"{source} has {len(frame)} runs; expected one of each seed")
    index = "seed" if "seed" in frame else "fold"
    return frame.set_index(index)[value].astype(float)


def corrected(effects: list[Effect]) -> list[Effect]:
    """Correct the p values of the effects that no report has corrected."""
    own = [each for each in effects if each.family == _FAMILY]
    for each, p in zip(own, statistics.holm([each.p for each in own]), strict=True):
        each.p = p
    return effects


def verdict(claim: dict[str, Any], effect: Effect) -> str:
    """Return the verdict; ``expects`` is the sign that the claim predicts, ``smallest`` the difference that matters."""
    sign = {"less": -1, "more": 1}[claim["expects"]]
    low, high = sorted((sign * effect.low, sign * effect.high))
    if effect.count < _FEWEST:
        return UNDECIDED
    if effect.p < statistics.LEVEL:
        if low > 0:
            return HOLDS if high >= claim["smallest"] else SMALL
        if high < 0:
            return NOT
    return NOT if high < claim["smallest"] else UNDECIDED


def needed(claim: dict[str, Any], effect: Effect) -> int:
    """Return about how many runs decide the claim with a power of 80 %.

    They find the observed difference if it has the claimed direction and matters, else the smallest one that matters.
    """
    half = (effect.high - effect.low) / 2
    observed = {"less": -1, "more": 1}[claim["expects"]] * effect.difference
    ratio = (half * 1.43 / max(observed, claim["smallest"])) ** 2  # 1.43: (1.96 + 0.84) / 1.96 standard errors
    return max(_FEWEST, math.ceil(effect.count * ratio))


def signed(value: float) -> str:
    return f"{value:+.3f}" if abs(value) < 0.1 else f"{value:+.2f}"


def p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def page(claims: list[dict[str, Any]]) -> str:
    """Return docs/claims.md."""
    judged = _judged(claims)
    lines = [_HEAD.format(number=len(claims), counts=_counted(judged))]
    for topic in dict.fromkeys(claim["topic"] for claim in claims):
        of_topic = [each for each in judged if each[0]["topic"] == topic]
        lines += [f"## {topic}", "", "| claim | verdict | difference (95 % interval) | n |", "|---|---|---|---|"]
        for claim, effect, found in of_topic:
            numbers = f"{signed(effect.difference)} ({signed(effect.low)} to {signed(effect.high)}) {claim['unit']}"
            lines.append(f"| {claim['claim']} | **{found}** | {numbers} | {effect.count} |")
        lines.append("")
        for each in of_topic:
            lines += _details(*each)
    return "\n".join(lines).rstrip() + "\n"


_HEAD = """# Claims about capsule networks, and what was found here

This page tests {number} claims of papers, talks and tutorials: {counts}. The verdicts are about the networks, data and
training lengths below, which are small: MNIST for one to ten epochs, and a rendered stand-in for smallNORB (toynorb).

- **Holds**: p is below 0.05 after Holm's correction, and the difference has the claimed direction.
- **Holds, but small**: the same, and the 95 % interval excludes every difference that would matter.
- **Does not hold**: the interval excludes every difference that would matter, or the opposite is significant.
- **Undecided**: none of these. The number of seeds that would decide it is given (power 80 %): they find the observed
  difference if it has the claimed direction and matters, else the smallest one that matters.
- **n** is the number of seeds, or of pairs of runs with the same seed. Fewer than three give no verdict.
- **Planned**: the comparison stood in its table in the commit of the runs. Otherwise it was chosen after the fact.

`make claims` writes this page from [claims.yaml](claims.yaml) and the records in [results/](../results/README.md), so
a new run can change a verdict.
"""


def _judged(claims: list[dict[str, Any]]) -> list[tuple[dict[str, Any], Effect, str]]:
    effects = corrected([effect_of(claim) for claim in claims])
    return [(claim, effect, verdict(claim, effect)) for claim, effect in zip(claims, effects, strict=True)]


def _details(claim: dict[str, Any], effect: Effect, found: str) -> list[str]:
    matters = f"{claim['smallest']:g} {claim['unit']} would matter"
    predicted = {"less": "smaller", "more": "larger"}[claim["expects"]]
    lines = [
        f"**{claim['claim']}** ({claim['by']}): {found}.",
        "",
        f"- Test: {claim['test']} The claim predicts a {predicted} value; {matters}.",
        f"- Statistics: {effect.test}, {p_value(effect.p)} after Holm's correction, {effect.planned}.",
        f"- Scale: {claim['scale']}",
    ]
    if found == UNDECIDED:
        lines.append(f"- Needs: about {needed(claim, effect)} seeds.")
    lines += [f"- What would change the verdict: {claim['change']}", f"- Command: `{claim['command']}`", ""]
    if claim.get("figure") and found in (HOLDS, SMALL):
        lines += [f"![{claim['claim']}](../results/{claim['figure']})", ""]
    return lines


def short_form(claims: list[dict[str, Any]]) -> str:
    """Return the block of README.md: how many claims have each verdict, and the claims with a key ``short``."""
    judged = _judged(claims)
    lines = [f"**[{len(claims)} claims about capsule networks](docs/claims.md), tested**: {_counted(judged)}.", ""]
    for each in (HOLDS, SMALL, NOT, UNDECIDED):
        phrases = [claim["short"] for claim, _, found in judged if found == each and "short" in claim]
        if phrases:
            lines.append(f"- {each}: {'; '.join(phrases)}")
    return "\n".join([*lines, ""])


def _counted(judged: list[tuple[dict[str, Any], Effect, str]]) -> str:
    counts = Counter(found for _, _, found in judged)
    small = f"{counts[SMALL]} hold, but are too small to matter"
    return f"{counts[HOLDS]} hold, {small}, {counts[NOT]} do not hold, and {counts[UNDECIDED]} are undecided"


def with_short_form(readme: str, claims: list[dict[str, Any]]) -> str:
    """Return README.md with the current short form."""
    pattern = re.compile(re.escape(START) + ".*?" + re.escape(END), re.DOTALL)
    return pattern.sub(lambda _: START + short_form(claims) + END, readme)


def read() -> list[dict[str, Any]]:
    """Return the claims of docs/claims.yaml, with the keys of their groups."""
    groups = yaml.safe_load((ROOT / "docs" / "claims.yaml").read_text())
    return [{**group, **claim} for group in groups for claim in group.pop("claims")]


if __name__ == "__main__":
    PAGE.write_text(page(read()))
    README.write_text(with_short_form(README.read_text(), read()))
