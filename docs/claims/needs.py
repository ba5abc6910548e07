"""Says what would decide an undecided claim: seeds, pairs of seeds, test toys, or no number of them."""

from __future__ import annotations

import math
import re

from docs.claims.verdicts import Judged

_NORMAL_95 = 1.96


def needs(each: Judged) -> str:
    """Return a sentence for an undecided claim; the power is 80 % after the correction for its number of tests."""
    if each.planned_first is not None:
        return "a new table, with one measure that is chosen before its runs. More seeds of these networks decide nothing."
    if each.effect.found.error_of_clusters:
        return _of_clusters(each)
    matters = f"{each.claim['smallest']:g} {each.claim['unit']}"
    correction = f"with a power of 80 %, as one of {each.tests} tests"
    needed = each.needed
    if needed is None:
        observed = each.needed_for(abs(each.effect.found.estimate))
        found = "" if observed is None else f" About {observed} seeds find a difference as large as the observed one."
        return f"another network or a larger margin: its seeds differ too much to find {matters}.{found}"
    sentence = f"about {needed} seeds to find a difference of {matters} {correction}."
    pairs = None if each.effect.paired else each.needed_for(each.claim["smallest"], paired=True)
    if pairs is not None and pairs <= needed / 2:
        sentence += f" Pairing limits this: in a new table that pairs seeds from the start, about {pairs} pairs do."
    return sentence


def _of_clusters(each: Judged) -> str:
    """Describe what limits a bootstrap over runs and clusters of images."""
    found = each.effect.found
    clusters = re.search(r"(\d+) clusters", found.test)
    assert clusters is not None, found.test
    share = each.needed_clusters
    half = _NORMAL_95 * found.error_of_clusters
    low, high = found.estimate - half, found.estimate + half
    if share <= 1:
        seeds = math.ceil(found.counts[0] * (found.error**2 - found.error_of_clusters**2) / found.error**2 / (1 - share))
        return f"about {seeds} seeds, with the {clusters[1]} toys of this test."
    toys = math.ceil(int(clusters[1]) * share)
    return (
        f"more test toys: no number of seeds decides this row, because the {clusters[1]} toys limit it. With infinitely "
        f"many seeds, the interval would still be about {low:+.1f} to {high:+.1f}. About {toys} toys, with as many "
        f"seeds, find a difference of {each.claim['smallest']:g} {each.claim['unit']} with a power of 80 %."
    )
