"""Corrects the p values of all claims, and judges them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from capsule_lab.tables import statistics
from capsule_studies.claims.effects import Effect, effect_of, sign

HOLDS, OPEN, SMALL = "holds", "holds, size open", "holds, but small"
OPPOSITE, OPPOSITE_OPEN = "the opposite holds", "the opposite holds, size open"
OPPOSITE_SMALL, NOT, UNDECIDED = "the opposite holds, but small", "does not hold", "undecided"
VERDICTS = {
    HOLDS: "a difference in the claimed direction; the 95 % interval contains only differences that matter.",
    OPEN: "the same, but the interval also contains differences that do not matter.",
    SMALL: "the same, but the interval contains only differences that do not matter.",
    OPPOSITE: "a difference in the other direction; the interval contains only differences that matter.",
    OPPOSITE_OPEN: "the same, but the interval also contains differences that do not matter.",
    OPPOSITE_SMALL: "the same, but the interval contains only differences that do not matter.",
    NOT: "if there is a difference in the claimed direction, it does not matter.",
    UNDECIDED: "neither test is significant, there are fewer than three runs, or the planned measure disagrees.",
}
_FEWEST = 3  # runs; with fewer there is no verdict


@dataclass
class Judged:
    """A claim with its effect, the corrected p values of both tests, and the number of tests in the correction.

    Attributes:
        planned_first: the outcome of the measure that was planned, if ``effect`` is that of a later one.
    """

    claim: dict[str, Any]
    effect: Effect
    p: float
    p_of_smaller: float
    tests: int = 1
    planned_first: Effect | None = None

    @property
    def verdict(self) -> str:
        """One of ``VERDICTS``."""
        found = self._verdict
        return UNDECIDED if self._contradicted(found) else found

    @property
    def _verdict(self) -> str:
        towards = sign(self.claim)
        low, high = sorted((towards * self.effect.low, towards * self.effect.high))
        smallest = self.claim["smallest"]
        if self.effect.count < _FEWEST:
            return UNDECIDED
        if self.p < statistics.LEVEL and high < 0:
            return _sized(-high, -low, smallest, (OPPOSITE, OPPOSITE_OPEN, OPPOSITE_SMALL))
        if self.p < statistics.LEVEL and low > 0:
            return _sized(low, high, smallest, (HOLDS, OPEN, SMALL))
        return NOT if self.p_of_smaller < statistics.LEVEL else UNDECIDED

    def _contradicted(self, verdict: str) -> bool:
        """Whether the planned measure was significant in the other direction, or found nothing where this one does."""
        if self.planned_first is None or verdict == UNDECIDED:
            return False
        significant = self.planned_first.p_of_report < statistics.LEVEL
        towards = sign(self.claim) * self.planned_first.found.estimate
        if verdict == NOT:
            return significant and towards > 0
        return not significant or (towards > 0) != verdict.startswith("holds")

    @property
    def needed(self) -> int | None:
        """Seeds that find the smallest difference that matters with a power of 80 %, as one of ``tests``."""
        return self.needed_for(self.claim["smallest"])

    def needed_for(self, difference: float, *, paired: bool | None = None) -> int | None:
        """Return the seeds that find a difference, with the test of the table or with the other pairing."""
        use_other = paired is not None and paired != self.effect.paired
        test = self.effect.other if use_other else self.effect.found
        pairs = self.effect.paired if paired is None else paired
        if test is None:
            return None
        first, second = test.counts
        spread = (
            test.error * math.sqrt(first)
            if pairs
            else test.error / math.sqrt(1 / first + 1 / second)
        )
        return statistics.runs_for(
            difference, spread, pairs=pairs, level=statistics.LEVEL / self.tests
        )


def _sized(least: float, most: float, smallest: float, verdicts: tuple[str, str, str]) -> str:
    """Return the verdict of a difference between ``least`` and ``most`` in one direction: large, open or small."""
    large, unclear, small = verdicts
    if least >= smallest:
        return large
    return small if most < smallest else unclear


def judged(claims: list[dict[str, Any]], effects: list[Effect] | None = None) -> list[Judged]:
    """Judge all claims of the page; planned comparisons are corrected with their family, all others with each other.

    A family of n comparisons in a table has 2 n tests, whether its comparisons are claims or not. The second test of
    a comparison that is no claim is not made: it counts with a p value of 1, which corrects the others most strictly.
    """
    effects = [effect_of(claim) for claim in claims] if effects is None else effects
    found = []
    for claim, effect in zip(claims, effects, strict=True):
        earlier = (
            effect_of({"comparison": claim["planned_first"]}) if "planned_first" in claim else None
        )
        found.append(Judged(claim, effect, 1, 1, planned_first=earlier))
    for family in {effect.plan.family for effect in effects}:
        members = [each for each in found if each.effect.plan.family == family]
        own = [each.effect.p for each in members] + [
            each.effect.p_of_smaller(each.claim) for each in members
        ]
        of_claims = {each.effect.plan.line for each in members}
        others: list[float] = []
        if family:
            others = [
                p for line, p in members[0].effect.plan.family_p.items() if line not in of_claims
            ]
        corrected = statistics.holm([*own, *others, *[1.0] * len(others)])
        for index, each in enumerate(members):
            each.p = max(corrected[index], each.effect.p_of_report)
            each.p_of_smaller = corrected[len(members) + index]
            each.tests = len(corrected)
    return found


@dataclass
class Survivors:
    """How many claims would keep a decided verdict, and how many differences would remain, corrected over the page."""

    decided: int
    by_holm: int
    different: int
    by_benjamini_hochberg: int


def survivors(every: list[Judged]) -> Survivors:
    """Correct both tests of all claims by Holm's method, and the tests of no difference by Benjamini and Hochberg's."""
    p_values = [each.effect.p for each in every]
    smaller = [each.effect.p_of_smaller(each.claim) for each in every]
    corrected = statistics.holm([*p_values, *smaller])
    strict = [
        Judged(
            each.claim,
            each.effect,
            corrected[index],
            corrected[len(every) + index],
            1,
            each.planned_first,
        )
        for index, each in enumerate(every)
    ]
    decided = [each.verdict != UNDECIDED for each in every]
    kept = [
        one.verdict != UNDECIDED and is_decided
        for one, is_decided in zip(strict, decided, strict=True)
    ]
    levels = [statistics.LEVEL * (rank + 1) / len(every) for rank in range(len(every))]
    below = [rank + 1 for rank, p in enumerate(sorted(p_values)) if p <= levels[rank]]
    different = sum(p < statistics.LEVEL for p in p_values)
    return Survivors(sum(decided), sum(kept), different, max(below, default=0))
