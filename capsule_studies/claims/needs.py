"""Says what would decide an undecided claim: seeds, pairs of seeds, test toys, or no number of them."""

from __future__ import annotations

import re

from scipy.stats import norm

from capsule_lab import statistics
from capsule_studies.claims.verdicts import FEWEST, Judged


def needs(each: Judged) -> str:
    """Return a sentence for an undecided claim; the power is 80 % after the correction for its number of tests."""
    if each.planned_first is not None:
        return "a new table, with one measure that is chosen before its runs. More seeds do not decide this row."
    if each.effect.found.error_of_clusters:
        return _of_clusters(each)
    matters = f"{each.claim['smallest']:g} {each.claim['unit']}"
    correction = f"with a power of 80 %, as one of {each.tests} tests"
    needed = each.needed_for(each.claim["smallest"])
    if needed is None:
        sentence = f"another network or a larger margin. Seeds differ too much to find {matters}."
        observed = each.needed_for(abs(each.effect.found.estimate))
        if observed is not None:
            sentence += f" About {observed} seeds find a difference as large as the observed one."
        return sentence
    needed = max(needed, FEWEST)
    sentence = f"about {needed} seeds to find a difference of {matters} {correction}."
    paired = [test for test in each.effect.tests if test.pairs]
    pairs = each.seeds_for(each.claim["smallest"], paired[0]) if paired else None
    if pairs is not None and pairs <= needed / 2:
        sentence += f" Pairing limits this: in a new table that pairs seeds from the start, about {pairs} pairs do."
    return sentence


def _of_clusters(each: Judged) -> str:
    """Describe what limits a test over runs and clusters of images."""
    found = each.effect.found
    clusters = re.search(r"(\d+) clusters", found.test)
    assert clusters is not None, found.test
    half = float(norm.ppf(1 - statistics.LEVEL / 2)) * found.error_of_clusters
    low, high = found.estimate - half, found.estimate + half
    return (
        f"more test toys. No number of seeds decides this row: with infinitely many, the {clusters[1]} toys alone "
        f"still give an interval of about {low:+.2f} to {high:+.2f} {each.claim['unit']}."
    )
