"""Corrects the p values of all claims, and judges them.

Each claim has three tests: of no difference, of a difference in the claimed direction that matters, and of one in the
other direction. The last two are the one-sided tests of equivalence (Schuirmann 1987), with the smallest difference
that matters as margin. All three belong to one family of Holm's correction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from capsule_lab import statistics
from capsule_lab.statistics import Difference
from capsule_studies.claims.effects import Effect, effect_of, sign
from capsule_studies.claims.published import Published, published_of

HOLDS = "holds"
OPEN = "holds, size open"
SMALL = "holds, but small"
OPPOSITE = "the opposite holds"
OPPOSITE_OPEN = "the opposite holds, size open"
OPPOSITE_SMALL = "the opposite holds, but small"
EQUAL = "equal"
NOT = "does not hold"
OPPOSITE_NOT = "the opposite does not hold"
UNDECIDED = "undecided"
PRELIMINARY = "preliminary"
VERDICTS = {
    HOLDS: "a difference in the claimed direction; the 95 % interval contains only differences that matter.",
    OPEN: "the same, but the interval also contains differences that do not matter.",
    SMALL: "the same, but the interval contains only differences that do not matter.",
    OPPOSITE: "a difference in the other direction; the interval contains only differences that matter.",
    OPPOSITE_OPEN: "the same, but the interval also contains differences that do not matter.",
    OPPOSITE_SMALL: "the same, but the interval contains only differences that do not matter.",
    EQUAL: "no difference is found, and none that matters exists in either direction (two one-sided tests).",
    NOT: "no difference is found; one in the claimed direction that matters is excluded, one in the other is not.",
    OPPOSITE_NOT: "no difference is found; one in the other direction that matters is excluded, one as claimed is not.",
    UNDECIDED: "no test is significant after the correction; or one is, and the planned measure disagrees.",
    PRELIMINARY: "fewer than five runs, or pairs of runs; the difference and its interval are no verdict.",
}
CORRECTION = (
    "Each claim has three tests: of no difference, of a difference in the claimed direction that matters, and of one "
    "in the other direction that matters. The claim is *equal* if the last two are both significant: this is the test "
    "of equivalence (two one-sided tests), corrected. All p values are corrected together by Holm's method. For "
    "planned comparisons, the family is the one that their table names, separately for real data and a stand-in: n "
    "comparisons have 3 n tests, whether they are claims or not; a test that is not made counts with p = 1. All other "
    "claims are one family. Where two kinds of networks have the same seeds, the paired test and Welch's are both "
    "made, and the larger p counts, unless the plan of the table says why seeds pair, or why not; the interval is "
    "that of the table's test."
)
FEWEST = 5  # ours: with fewer runs, an interval depends more on the assumed distribution


@dataclass
class Judged:
    """A claim with its effect, the corrected p values of its tests, and the number of tests in the correction.

    Attributes:
        p: of no difference.
        p_of_smaller: of a difference in the claimed direction that matters.
        p_of_larger: of a difference in the other direction that matters.
        planned_first: the outcome of the measure that was planned, if ``effect`` is that of a later one.
    """

    claim: dict[str, Any]
    effect: Effect
    p: float
    p_of_smaller: float
    p_of_larger: float = 1.0
    tests: int = 1
    planned_first: Effect | None = None

    @property
    def verdict(self) -> str:
        """One of ``VERDICTS``."""
        found = self._verdict
        return UNDECIDED if self._contradicted(found) else found

    @property
    def is_decided(self) -> bool:
        """Whether the verdict says anything about the claim."""
        return self.verdict not in (UNDECIDED, PRELIMINARY)

    @property
    def published(self) -> Published | None:
        """The effect that the paper reports, if it is known; see ``published``."""
        return published_of(self.claim, self.effect)

    @property
    def equivalence(self) -> str:
        """Why a table's own test of equivalence, which is not corrected, differs from the verdict; may be empty."""
        if self.effect.found.equivalent != "yes" or self.verdict in (EQUAL, SMALL, OPPOSITE_SMALL):
            return ""
        within = f"{self.effect.plan.margin:g} {self.claim['unit']}"
        found = f"The table's two one-sided tests find a difference of less than {within} at 5 %, uncorrected."
        if self.verdict == PRELIMINARY:
            return f"{found} {self.effect.count} runs are too few for a verdict."
        p = max(self.p_of_smaller, self.p_of_larger)
        return f"{found} Corrected as one of {self.tests} tests, their p is {p:.2g}, so the verdict is not *equal*."

    @property
    def _verdict(self) -> str:
        towards = sign(self.claim)
        low, high = sorted((towards * self.effect.low, towards * self.effect.high))
        smallest = self.claim["smallest"]
        if self.effect.count < FEWEST:
            return PRELIMINARY
        if self.p < statistics.LEVEL and high < 0:
            return _sized(-high, -low, smallest, (OPPOSITE, OPPOSITE_OPEN, OPPOSITE_SMALL))
        if self.p < statistics.LEVEL and low > 0:
            return _sized(low, high, smallest, (HOLDS, OPEN, SMALL))
        excludes_claimed = self.p_of_smaller < statistics.LEVEL
        excludes_other = self.p_of_larger < statistics.LEVEL
        if excludes_claimed:
            return EQUAL if excludes_other else NOT
        return OPPOSITE_NOT if excludes_other else UNDECIDED

    def _contradicted(self, verdict: str) -> bool:
        """Whether the planned measure was significant in the other direction, or found nothing where this one does."""
        if self.planned_first is None or verdict in (UNDECIDED, PRELIMINARY):
            return False
        significant = _p_alone(self.planned_first) < statistics.LEVEL
        towards = sign(self.claim) * self.planned_first.found.estimate
        if verdict == EQUAL:
            return significant
        if verdict == NOT:
            return significant and towards > 0
        if verdict == OPPOSITE_NOT:
            return significant and towards < 0
        return not significant or (towards > 0) != verdict.startswith("holds")

    def needed_for(self, difference: float) -> int | None:
        """Return the seeds that find a difference with a power of 80 %, as one of ``tests``, by all tests that count.

        ``None`` if 10,000 are not enough.
        """
        numbers = []
        for test in self.effect.tests:
            seeds = self.seeds_for(difference, test)
            if seeds is None:
                return None
            numbers.append(seeds)
        return max(numbers)

    def seeds_for(self, difference: float, test: Difference) -> int | None:
        """Return the seeds, or pairs of seeds, that find a difference by one test."""
        level = statistics.LEVEL / self.tests
        assert test.spread is not None
        return statistics.runs_for(difference, test.spread, pairs=test.pairs, level=level)


def _sized(least: float, most: float, smallest: float, verdicts: tuple[str, str, str]) -> str:
    """Return the verdict of a difference between ``least`` and ``most`` in one direction: large, open or small."""
    large, unclear, small = verdicts
    if least >= smallest:
        return large
    return small if most < smallest else unclear


def judged(claims: list[dict[str, Any]], effects: list[Effect] | None = None) -> list[Judged]:
    """Judge all claims of the page; planned comparisons are corrected with their family, all others with each other.

    A family of n comparisons in a table has 3 n tests, whether its comparisons are claims or not. The one-sided tests
    of a comparison that is no claim are not made: they count with p values of 1, which is the strictest correction.
    """
    if effects is None:
        effects = [effect_of(claim) for claim in claims]
    families: dict[str, list[Judged]] = {}
    found = []
    for claim, effect in zip(claims, effects, strict=True):
        planned_first = None
        if "planned_first" in claim:
            planned_first = effect_of({"comparison": claim["planned_first"]})
        each = Judged(claim, effect, 1, 1, planned_first=planned_first)
        families.setdefault(effect.plan.family, []).append(each)
        found.append(each)
    for members in families.values():
        _correct(members)
    return found


def _correct(members: list[Judged]) -> None:
    """Correct the p values of the claims of one family."""
    others = _p_values_of_others([each.effect for each in members])
    not_made = [1.0] * (2 * len(others))
    corrected = _corrected(members, [*others, *not_made])
    for each, p_values in zip(members, corrected, strict=True):
        each.p, each.p_of_smaller, each.p_of_larger = p_values
        each.tests = 3 * (len(members) + len(others))


def _corrected(
    every: list[Judged], others: Sequence[float] = ()
) -> list[tuple[float, float, float]]:
    """Correct the three p values of every claim by Holm's method: ``p``, ``p_of_smaller``, ``p_of_larger``."""
    p_values = []
    for each in every:
        effect = each.effect
        p_values += [effect.p, effect.p_of_smaller(each.claim), effect.p_of_larger(each.claim)]
    corrected = statistics.holm([*p_values, *others])
    of_claims = iter(corrected[: len(p_values)])
    return [*zip(of_claims, of_claims, of_claims, strict=True)]


def _p_alone(effect: Effect) -> float:
    """Return the p value of no difference of one comparison of a family in which no other is a claim."""
    others = _p_values_of_others([effect])
    not_made = [1.0] * (2 * (1 + len(others)))
    return statistics.holm([effect.p, *others, *not_made])[0]


def _p_values_of_others(members: list[Effect]) -> list[float]:
    """Return the p values of the comparisons in the family that are no claims."""
    plan = members[0].plan
    if not plan.family:
        return []
    claims = {effect.plan.line for effect in members}
    return [p for line, p in plan.family_p.items() if line not in claims]


@dataclass
class Survivors:
    """What a correction over all tests of several rows leaves.

    Attributes:
        decided: rows whose verdict says anything.
        changed: those of them that would have another verdict by Holm's method over all rows, by id.
        different: differences below 5 % before any correction.
        by_benjamini_hochberg: those below a false discovery rate of 5 %.
    """

    decided: int
    changed: dict[str, str]
    different: int
    by_benjamini_hochberg: int


def survivors(every: list[Judged]) -> Survivors:
    """Correct the tests of all rows by Holm's method, and those of no difference by Benjamini and Hochberg's."""
    p_values = [each.effect.p for each in every]
    decided = 0
    changed = {}
    for each, corrected in zip(every, _corrected(every), strict=True):
        if not each.is_decided:
            continue
        decided += 1
        p, p_of_smaller, p_of_larger = corrected
        over_page = replace(each, p=p, p_of_smaller=p_of_smaller, p_of_larger=p_of_larger)
        if over_page.verdict != each.verdict:
            changed[each.claim["id"]] = over_page.verdict
    different = sum(p < statistics.LEVEL for p in p_values)
    return Survivors(decided, changed, different, _discoveries(p_values))


def _discoveries(p_values: list[float]) -> int:
    """Return how many tests have a false discovery rate of 5 % (Benjamini and Hochberg 1995)."""
    found = 0
    for rank, p in enumerate(sorted(p_values), start=1):
        if p <= statistics.LEVEL * rank / len(p_values):
            found = rank
    return found
