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
        no_difference = []
        smaller = []
        for index in members:
            tests = sides[index].tests
            no_difference.append(max(test.p for test in tests))
            smaller.append(max(p_of_smaller(test, claims[index]) for test in tests))
        others = other_p_values(family, {sides[index].line for index in members})
        adjusted = holm([*no_difference, *smaller, *others, *[1.0] * len(others)])
        for place, index in enumerate(members):
            corrected[index] = (adjusted[place], adjusted[len(members) + place])
    judged = []
    for index, claim in enumerate(claims):
        judged.append(judge(claim, sides[index], *corrected[index]))
    return judged


def read_claims() -> list[dict[str, Any]]:
    claims = []
    for topic in yaml.safe_load((ROOT / "docs" / "claims.yaml").read_text())["topics"]:
        claims += [{**topic, **claim} for claim in topic["claims"]]
    return claims


def sides_of(claim: dict[str, Any]) -> Sides:
    if "first" in claim:
        first = values_of(claim["first"])
        if not isinstance(claim["second"], dict):
            second = first * 0 + claim["second"]
            return compared(first, second, paired=True, other=False, family="", line=-1)
        second = values_of(claim["second"])
        paired = claim.get("paired", False)
        other = row_of(claim["first"]) != row_of(claim["second"])
        return compared(first, second, paired=paired, other=other, family="", line=-1)
    asked = claim["comparison"]
    lines = pd.read_csv(RESULTS / f"{asked['file']}_comparisons.csv", keep_default_na=False)
    chosen = lines[lines["comparison"] == asked["name"]]
    chosen = chosen[chosen["first"].str.startswith(asked.get("row", ""))]
    chosen = chosen[chosen["first_column"].str.startswith(asked.get("column", ""))]
    assert len(chosen) == 1
    line = chosen.iloc[0]
    number = int(chosen.index[0])
    plans = pd.read_csv(RESULTS / "plans.csv")
    plans = plans[(plans["table"] == asked["file"]) & (plans["comparison"] == asked["name"])]
    plan = plans.iloc[0]["planned"]
    name = f"{asked['file']}|{line['family'] or line['comparison']}|{line['source']}"
    family = name if plan == "yes" else ""
    if line["test"].startswith("bootstrap"):
        test = Test(line["difference"], float(line["error"]), float(line["df"]), float(line["p"]))
        low, high = float(line["low"]), float(line["high"])
        return Sides([test], low, high, int(line["n_first"]), family, number)
    runs = pd.read_csv(RESULTS / f"{asked['file']}_runs.csv")
    runs = runs[(runs["status"] == "done") & (runs["source"] == line["source"])]
    by_cell = runs.set_index("seed").groupby(["row", "column"])["value"]
    return compared(
        by_cell.get_group((line["first"], line["first_column"])),
        by_cell.get_group((line["second"], line["second_column"])),
        paired=line["test"].startswith("paired"),
        other=line["first"] != line["second"],
        family=family,
        line=number,
    )


def row_of(sample: dict[str, str]) -> dict[str, str]:
    """What names the row of a sample, without its column."""
    return {key: sample[key] for key in ("file", "row", "network") if key in sample}


def values_of(sample: dict[str, str]) -> pd.Series:
    runs = pd.read_csv(RESULTS / sample["file"])
    for key in ("column", "row", "network"):
        if key in sample:
            runs = runs[runs[key].str.startswith(sample[key])]
            runs = runs[runs[key] == sample[key]] if (runs[key] == sample[key]).any() else runs
    runs = runs[runs["status"] == "done"] if "status" in runs else runs
    values = runs.set_index("seed")[sample.get("value", "value")]
    if "minus" in sample:
        subtracted = {"file": sample["file"], "row": sample["row"], "column": sample["minus"]}
        values = values - values_of(subtracted)
    return values


def compared(
    first: pd.Series, second: pd.Series, *, paired: bool, other: bool, family: str, line: int
) -> Sides:
    common = first.index.intersection(second.index)
    if paired:
        count = len(common)
        main = pair_test(first[common], second[common])
    else:
        count = min(len(first), len(second))
        main = welch_test(first, second)
    tests = [main]
    if other and sorted(first.index) == sorted(second.index):
        if paired:
            tests.append(welch_test(first, second))
        else:
            tests.append(pair_test(first[common], second[common]))
    half = stats.t.ppf(1 - LEVEL / 2, main.df) * main.error
    return Sides(tests, main.difference - half, main.difference + half, count, family, line)


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
    of_itself = (lines["family"] == "") & (lines["comparison"] == name)
    of_family = (lines["family"] == name) | of_itself
    lines = lines[of_family & (lines["source"] == source) & ~lines.index.isin(of_claims)]
    return [float(p) for p in lines["p"] if p]


def holm(p_values: list[float]) -> list[float]:
    count = len(p_values)
    adjusted = [0.0] * count
    largest = 0.0
    for rank, index in enumerate(sorted(range(count), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, p_values[index] * (count - rank)))
        adjusted[index] = largest
    return adjusted


def judge(claim: dict[str, Any], side: Sides, p: float, p_smaller: float) -> Verdict:
    low, high = (side.low, side.high) if claim["expects"] == "more" else (-side.high, -side.low)
    smallest = claim["smallest"]
    verdict = "undecided"
    if side.count >= 3 and p < LEVEL and low > 0:
        verdict = "holds" + size_of(low, high, smallest)
    elif side.count >= 3 and p < LEVEL and high < 0:
        verdict = "the opposite holds" + size_of(-high, -low, smallest)
    elif side.count >= 3 and p_smaller < LEVEL:
        verdict = "does not hold"
    if "planned_first" in claim and verdict != "undecided":
        supports, opposes = planned_measure(claim)
        agrees = {"h": supports, "t": opposes, "d": not supports}[verdict[0]]
        verdict = verdict if agrees else "undecided"
    return Verdict(verdict, p, p_smaller)


def size_of(low: float, high: float, smallest: float) -> str:
    """Words for an interval of positive differences beside the smallest that matters."""
    if low >= smallest:
        return ""
    return ", but small" if high < smallest else ", size open"


def planned_measure(claim: dict[str, Any]) -> tuple[bool, bool]:
    """Whether the measure that was planned first supports the claim, and whether it opposes it."""
    planned = claim["planned_first"]
    lines = pd.read_csv(RESULTS / f"{planned['file']}_comparisons.csv")
    lines = lines[lines["comparison"] == planned["name"]]
    line = lines[lines["first"].str.startswith(planned["row"])].iloc[0]
    towards = line["difference"] * (1 if claim["expects"] == "more" else -1)
    significant = line["p_holm"] < LEVEL
    return significant and towards > 0, significant and towards < 0
