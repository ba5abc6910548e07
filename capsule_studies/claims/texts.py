"""Texts about one claim that the page, its figures and README.md share."""

from __future__ import annotations

import re
from collections import Counter
from decimal import ROUND_HALF_UP, Decimal

from capsule_studies.claims.effects import PLANNED, Effect
from capsule_studies.claims.verdicts import PRELIMINARY, VERDICTS, Judged

TABLES = {  # by kind of claim
    "paper": "A",
    "implied": "A",
    "ours": "B",
    "control": "B",
    "tautology": "C",
}


def in_table(every: list[Judged], table: str) -> list[Judged]:
    """Return the tests of table A (claims of papers), B (ours) or C (struck)."""
    return [each for each in every if TABLES[each.claim["kind"]] == table]


def with_verdict(tests: list[Judged]) -> list[Judged]:
    """Return the tests with enough runs; others are listed and not counted."""
    return [each for each in tests if each.verdict != PRELIMINARY]


def not_struck(every: list[Judged]) -> list[Judged]:
    """Return the tests of tables A and B."""
    return in_table(every, "A") + in_table(every, "B")


def by_claim(every: list[Judged]) -> dict[str, list[Judged]]:
    """Return the tests of every claim; several algorithms may test the same one."""
    tests: dict[str, list[Judged]] = {}
    for each in every:
        asked = each.claim.get("asks", each.claim["claim"])
        tests.setdefault(asked, []).append(each)
    return tests


def by_topic(every: list[Judged]) -> dict[str, list[Judged]]:
    """Return the tests of every topic."""
    topics: dict[str, list[Judged]] = {}
    for each in every:
        topics.setdefault(each.claim["topic"], []).append(each)
    return topics


def title(each: Judged) -> str:
    """Return the claim, with a label if its data are a stand-in."""
    return each.claim["claim"] + label_of_standin(each)


def label_of_standin(each: Judged) -> str:
    """Return the name of a stand-in in brackets; nothing for genuine data."""
    return "" if each.effect.real else f" [stand-in: {each.claim['data']}]"


def data(each: Judged) -> str:
    """Return the name of the data, and whether they are a stand-in."""
    name: str = each.claim["data"]
    return name if each.effect.real else f"{name}, stand-in"


def anchor(each: Judged) -> str:
    """Return the anchor of a claim, which is that of its heading."""
    name: str = each.claim["id"]
    return f"#{name.lower()}"


def slug(text: str) -> str:
    """Return a text as a name of a file or of a class: ``the_opposite_holds``."""
    words = re.findall(r"\w+", text.lower())
    return "_".join(words)


def signed(value: float) -> str:
    """Round half away from zero, as the digits of the records say: a binary fraction of 0.415 is below 0.415."""
    step = Decimal("0.001") if abs(value) < 0.1 else Decimal("0.01")
    digits = str(float(f"{value:.6g}"))
    rounded = Decimal(digits).quantize(step, ROUND_HALF_UP)
    return f"{rounded:+}"


def p_value(p: float) -> str:
    """Return a p value as text."""
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def interval(effect: Effect) -> str:
    """Return a difference with its interval."""
    return f"{signed(effect.found.estimate)} ({signed(effect.low)} to {signed(effect.high)})"


def count(effect: Effect) -> str:
    """Return the numbers of runs of both samples if they differ, or that of the plan if it is larger."""
    first, second = effect.found.counts
    if first != second:
        return f"{first} and {second}"
    if effect.count < effect.plan.seeds:
        return f"{effect.count} of {effect.plan.seeds}"
    return str(effect.count)


def plan(each: Judged) -> str:
    """Return whether the test was planned."""
    plan = each.effect.plan
    if plan.label != PLANNED:
        return plan.label
    label = plan.label
    if plan.margin != each.claim["smallest"]:
        label += ", but for the margin"
    if plan.trained_before:
        label += "; networks trained before the plan"
    return label


def counted(every: list[Judged]) -> str:
    """Return how many claims have each verdict."""
    counts = Counter(each.verdict for each in every)
    parts = [f"{verdict}: {counts[verdict]}" for verdict in VERDICTS if counts[verdict]]
    return "; ".join(parts)
