"""The verdicts of docs/claims.md, written a second time with numpy and scipy only.

It reads docs/claims.yaml, the runs in results/, results/plans.csv, and of the comparisons only which rows they compare.
Bootstraps over test toys are taken from the comparisons, because they need the predictions of every network.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml
from scipy import stats

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
LEVEL = 0.05


class Test(NamedTuple):
    """Difference, standard error, degrees of freedom, p value of no difference."""

    __test__ = False  # pytest collects classes of this name

    difference: float
    error: float
    df: float
    p: float


class Sides(NamedTuple):
    """What a claim compares: both tests, interval, smaller sample, family, number of the line in the comparisons."""

    tests: list[Test]
    low: float
    high: float
    count: int
    family: str
    line: int


class Verdict(NamedTuple):
    """Verdict and both corrected p values."""

    verdict: str
    p: float
    p_of_smaller: float


def verdicts() -> list[Verdict]:
    """Judge every claim of the page, in its order."""
    claims = read_claims()
    sides = [sides_of(claim) for claim in claims]
    families = defaultdict(list)
    for index, side in enumerate(sides):
        families[side.family].append(index)
    corrected: dict[int, tuple[float, float]] = {}
    for family, members in families.items():
        no_difference = [max(test.p for test in sides[index].tests) for index in members]
        smaller = [
            max(p_of_smaller(test, claims[index]) for test in sides[index].tests)
            for index in members
        ]
        others = other_p_values(family, {sides[index].line for index in members})
        adjusted = holm([*no_difference, *smaller, *others, *[1.0 for _ in others]])
        for place, index in enumerate(members):
            corrected[index] = (adjusted[place], adjusted[len(members) + place])
    return [judge(claims[index], sides[index], *corrected[index]) for index in range(len(claims))]


def read_claims() -> list[dict[str, Any]]:
    claims = []
    for topic in yaml.safe_load((ROOT / "docs" / "claims.yaml").read_text())["topics"]:
        claims += [{**topic, **claim} for claim in topic["claims"]]
    return claims


def sides_of(claim: dict[str, Any]) -> Sides:
    if "first" in claim:
        first = values_of(claim["first"])
        if not isinstance(claim["second"], dict):
            second, paired, other = first * 0 + claim["second"], True, False
        else:
            second, paired = values_of(claim["second"]), claim.get("paired", False)
            one, two = claim["first"], claim["second"]
            other = [one[key] for key in sorted(one) if key in ("file", "row", "network")] != [
                two[key] for key in sorted(two) if key in ("file", "row", "network")
            ]
        return compared(first, second, paired=paired, other=other, family="", line=-1)
    asked = claim["comparison"]
    lines = pd.read_csv(RESULTS / f"{asked['file']}_comparisons.csv", keep_default_na=False)
    chosen = lines[lines["comparison"] == asked["name"]]
    chosen = chosen[chosen["first"].str.startswith(asked.get("row", ""))]
    chosen = chosen[chosen["first_column"].str.startswith(asked.get("column", ""))]
    assert len(chosen) == 1
    line, number = chosen.iloc[0], int(chosen.index[0])
    plans = pd.read_csv(RESULTS / "plans.csv")
    plan = plans[(plans["table"] == asked["file"]) & (plans["comparison"] == asked["name"])].iloc[
        0
    ]["planned"]
    name = f"{asked['file']}|{line['family'] or line['comparison']}|{line['source']}"
    family = name if plan == "yes" else ""
    if line["test"].startswith("bootstrap"):
        test = Test(line["difference"], float(line["error"]), float(line["df"]), float(line["p"]))
        low, high = float(line["low"]), float(line["high"])
        return Sides([test], low, high, int(line["n_first"]), family, number)
    runs = pd.read_csv(RESULTS / f"{asked['file']}_runs.csv")
    runs = runs[(runs["status"] == "done") & (runs["source"] == line["source"])]
    first, second = (
        runs[(runs["row"] == line[side]) & (runs["column"] == line[f"{side}_column"])].set_index(
            "seed"
        )["value"]
        for side in ("first", "second")
    )
    paired, other = line["test"].startswith("paired"), line["first"] != line["second"]
    return compared(first, second, paired=paired, other=other, family=family, line=number)


def values_of(sample: dict[str, str]) -> pd.Series:
    runs = pd.read_csv(RESULTS / sample["file"])
    for key in ("column", "row", "network"):
        if key in sample:
            runs = runs[runs[key].str.startswith(sample[key])]
            runs = runs[runs[key] == sample[key]] if (runs[key] == sample[key]).any() else runs
    runs = runs[runs["status"] == "done"] if "status" in runs else runs
    values = runs.set_index("seed")[sample.get("value", "value")]
    if "minus" in sample:
        values = values - values_of(
            {"file": sample["file"], "row": sample["row"], "column": sample["minus"]}
        )
    return values


def compared(
    first: pd.Series, second: pd.Series, *, paired: bool, other: bool, family: str, line: int
) -> Sides:
    same_seeds = sorted(first.index) == sorted(second.index)
    both = [paired, not paired] if other and same_seeds else [paired]
    common = first.index.intersection(second.index)
    tests = [
        pair_test(first[common], second[common]) if each else welch_test(first, second)
        for each in both
    ]
    half = stats.t.ppf(1 - LEVEL / 2, tests[0].df) * tests[0].error
    difference = tests[0].difference
    count = len(common) if paired else min(len(first), len(second))
    return Sides(tests, difference - half, difference + half, count, family, line)


def pair_test(first: pd.Series, second: pd.Series) -> Test:
    differences = (first - second).to_numpy()
    found = stats.ttest_1samp(differences, 0)
    return Test(differences.mean(), stats.sem(differences), found.df, found.pvalue)


def welch_test(first: pd.Series, second: pd.Series) -> Test:
    found = stats.ttest_ind(first, second, equal_var=False)
    error = np.sqrt(first.var() / len(first) + second.var() / len(second))
    return Test(first.mean() - second.mean(), error, found.df, found.pvalue)


def p_of_smaller(test: Test, claim: dict[str, Any]) -> float:
    towards = test.difference if claim["expects"] == "more" else -test.difference
    return float(stats.t.cdf((towards - claim["smallest"]) / test.error, test.df))


def other_p_values(family: str, of_claims: set[int]) -> list[float]:
    """p values of the comparisons in a family that are no claims."""
    if not family:
        return []
    table, name, source = family.split("|")
    lines = pd.read_csv(RESULTS / f"{table}_comparisons.csv", keep_default_na=False)
    of_family = (lines["family"] == name) | (
        (lines["family"] == "") & (lines["comparison"] == name)
    )
    lines = lines[of_family & (lines["source"] == source) & ~lines.index.isin(of_claims)]
    return [float(p) for p in lines["p"] if p]


def holm(p_values: list[float]) -> list[float]:
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = largest
    return adjusted


def judge(claim: dict[str, Any], side: Sides, p: float, p_smaller: float) -> Verdict:
    low, high = (side.low, side.high) if claim["expects"] == "more" else (-side.high, -side.low)
    smallest, verdict = claim["smallest"], "undecided"
    if side.count >= 3 and p < LEVEL and low > 0:
        verdict = "holds" + (
            "" if low >= smallest else ", but small" if high < smallest else ", size open"
        )
    elif side.count >= 3 and p < LEVEL and high < 0:
        verdict = "the opposite holds"
        verdict += "" if -high >= smallest else ", but small" if -low < smallest else ", size open"
    elif side.count >= 3 and p_smaller < LEVEL:
        verdict = "does not hold"
    if "planned_first" in claim and verdict != "undecided":
        planned = claim["planned_first"]
        lines = pd.read_csv(RESULTS / f"{planned['file']}_comparisons.csv")
        line = lines[
            (lines["comparison"] == planned["name"]) & lines["first"].str.startswith(planned["row"])
        ].iloc[0]
        towards = line["difference"] * (1 if claim["expects"] == "more" else -1)
        supports = line["p_holm"] < LEVEL and towards > 0
        opposes = line["p_holm"] < LEVEL and towards < 0
        agrees = {"h": supports, "t": opposes, "d": not supports}[verdict[0]]
        verdict = verdict if agrees else "undecided"
    return Verdict(verdict, p, p_smaller)
