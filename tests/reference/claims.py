"""The verdicts of docs/claims.md, written a second time from their rules, with numpy and scipy only.

It reads docs/claims.yaml, the runs in results/, results/plans.csv, and of the comparisons only which rows they compare.
Tests over runs and toys are taken from the comparisons, because they need the predictions of every network.

Costs have no verdict: ``ratios`` reads them from their records, and ``parameters`` counts by the sizes of the papers.
"""

import csv
import functools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from scipy import stats

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
LEVEL = 0.05
FEWEST = 5

Line = dict[str, str]
Sample = dict[int, float]  # by seed


class Test(NamedTuple):
    """Difference, standard error, degrees of freedom, p value of no difference."""

    __test__ = False  # pytest collects classes of this name

    difference: float
    error: float
    df: float
    p: float


class Sides(NamedTuple):
    """What a claim compares: its tests, interval, smaller sample, family, and the line of its comparison."""

    tests: list[Test]
    low: float
    high: float
    count: int
    family: str = ""
    line: int = -1


class Verdict(NamedTuple):
    """What the page prints: the corrected p values are of no difference, and of differences that matter."""

    difference: float
    low: float
    high: float
    p: float
    p_as_claimed: float
    p_opposite: float
    verdict: str


def verdicts() -> dict[str, Verdict]:
    """Judge every claim of the page, by its id."""
    claims = read_claims()
    sides = {name: sides_of(claim) for name, claim in claims.items()}
    families = defaultdict(list)
    for name, side in sides.items():
        families[side.family].append(name)
    judged = {}
    for family, members in families.items():
        p_values = {}
        for name in members:
            for kind, p in p_values_of(claims[name], sides[name]).items():
                p_values[name, kind] = p
        for line, p in others_in(family, {sides[name].line for name in members}).items():
            p_values[line, "none"] = p
            p_values[line, "as claimed"] = 1.0
            p_values[line, "opposite"] = 1.0
        corrected = holm(p_values)
        for name in members:
            judged[name] = judge(claims[name], sides[name], corrected)
    return {name: judged[name] for name in claims}


def read_claims() -> dict[str, dict[str, Any]]:
    claims = {}
    for topic in yaml.safe_load((ROOT / "docs" / "claims.yaml").read_text())["topics"]:
        for claim in topic["claims"]:
            if not claim.get("pending"):
                claims[claim["id"]] = {**topic, **claim}
    return claims


@functools.cache
def lines_of(file: str) -> list[Line]:
    with (RESULTS / file).open(newline="") as opened:
        return list(csv.DictReader(opened))


def sides_of(claim: dict[str, Any]) -> Sides:
    if "comparison" in claim:
        return sides_of_comparison(claim["comparison"], by_plan="pairing" in claim)
    first = sample_of(claim["first"])
    if not isinstance(claim["second"], dict):
        constant = dict.fromkeys(first, float(claim["second"]))
        return compared(first, constant, pairs=True, both=False)
    second = sample_of(claim["second"])
    networks = []
    for sample in (claim["first"], claim["second"]):
        networks.append([sample.get(key) for key in ("file", "row", "network")])
    return compared(
        first, second, pairs=claim.get("paired", False), both=networks[0] != networks[1]
    )


def sides_of_comparison(asked: dict[str, str], *, by_plan: bool) -> Sides:
    chosen = []
    row = asked.get("row", "")
    for number, line in enumerate(lines_of(f"{asked['file']}_comparisons.csv")):
        is_asked = (
            line["comparison"] == asked["name"]
            and line["first"].startswith(row)
            and line["first_column"].startswith(asked.get("column", ""))
        )
        if is_asked:
            chosen.append((number, line))
    if len(chosen) > 1:  # a row may begin with the label of another
        chosen = [(number, line) for number, line in chosen if line["first"] == row]
    ((number, line),) = chosen
    family = family_of(asked["file"], line)
    if line["test"].startswith("crossed"):
        recorded = [float(line[key]) for key in ("difference", "error", "df", "p")]
        interval = float(line["low"]), float(line["high"])
        return Sides([Test(*recorded)], *interval, int(line["n_first"]), family, number)
    samples = samples_of(asked["file"], line)
    if line["test"] == "t-test with pooled deviation":
        test = pooled_test(*samples, every_sample_of_family(asked["file"], line))
        half = stats.t.ppf(1 - LEVEL / 2, test.df) * test.error
        low, high = test.difference - half, test.difference + half
        return Sides([test], low, high, min(map(len, samples)), family, number)
    found = compared(
        *samples,
        pairs=line["test"].startswith("paired"),
        both=line["first"] != line["second"] and not by_plan,
    )
    return found._replace(family=family, line=number)


def samples_of(table: str, line: Line) -> list[Sample]:
    found = []
    for side in ("first", "second"):
        where = {"row": line[side], "column": line[f"{side}_column"], "source": line["source"]}
        found.append(values(f"{table}_runs.csv", where))
    return found


def every_sample_of_family(table: str, line: Line) -> list[Sample]:
    """The samples that a family compares in one column, each once."""
    samples = {}
    for other in lines_of(f"{table}_comparisons.csv"):
        keys = ("family", "first_column", "source")
        if all(other[key] == line[key] for key in keys):
            names = (other["first"], other["second"])
            samples |= dict(zip(names, samples_of(table, other), strict=True))
    return [*samples.values()]


def family_of(table: str, line: Line) -> str:
    """Only planned comparisons have a family of their own."""
    for plan in lines_of("plans.csv"):
        if (plan["table"], plan["comparison"]) == (table, line["comparison"]):
            if plan["planned"] != "yes":
                return ""
            return "|".join([table, name_of_family(line)])
    raise LookupError(f"{table}, {line['comparison']}")


def name_of_family(line: Line) -> str:
    return "|".join([line["family"] or line["comparison"], line["source"]])


def sample_of(source: dict[str, str]) -> Sample:
    names = {key: source[key] for key in ("column", "row", "network") if key in source}
    lines = lines_of(source["file"])
    where = {}
    for key, start in names.items():
        known = {line[key] for line in lines}
        where[key] = start if start in known else first_with(known, start)
    found = values(source["file"], where, source.get("value", "value"))
    if "minus" not in source:
        return found
    minus = sample_of({"file": source["file"], "row": source["row"], "column": source["minus"]})
    return {seed: value - minus[seed] for seed, value in found.items()}


def first_with(names: set[str], start: str) -> str:
    (found,) = [name for name in names if name.startswith(start)]
    return found


def values(file: str, where: Line, column: str = "value") -> Sample:
    found: Sample = {}
    for line in lines_of(file):
        is_done = line.get("status", "done") == "done"
        if is_done and all(line[key] == value for key, value in where.items()):
            seed = int(line["seed"])
            assert seed not in found
            found[seed] = float(line[column])
    return found


def compared(first: Sample, second: Sample, *, pairs: bool, both: bool) -> Sides:
    """Make the test of the table, and the other one if both kinds of networks have the same seeds."""
    common = sorted(first.keys() & second.keys())
    main = pair_test(first, second, common) if pairs else welch_test(first, second)
    tests = [main]
    if both and first.keys() == second.keys():
        other = welch_test(first, second) if pairs else pair_test(first, second, common)
        tests.append(other)
    half = stats.t.ppf(1 - LEVEL / 2, main.df) * main.error
    count = len(common) if pairs else min(len(first), len(second))
    return Sides(tests, main.difference - half, main.difference + half, count)


def pair_test(first: Sample, second: Sample, seeds: list[int]) -> Test:
    differences = np.array([first[seed] - second[seed] for seed in seeds])
    found = stats.ttest_1samp(differences, 0)
    return Test(differences.mean(), stats.sem(differences), found.df, found.pvalue)


def welch_test(first: Sample, second: Sample) -> Test:
    one = np.array([*first.values()])
    other = np.array([*second.values()])
    found = stats.ttest_ind(one, other, equal_var=False)
    error = np.hypot(stats.sem(one), stats.sem(other))
    return Test(one.mean() - other.mean(), error, found.df, found.pvalue)


def pooled_test(first: Sample, second: Sample, every: list[Sample]) -> Test:
    """A t-test whose deviation is that of all samples, as at least one of the two has none."""
    squares = sum(np.var([*sample.values()]) * len(sample) for sample in every)
    df = sum(len(sample) - 1 for sample in every)
    error = np.sqrt(squares / df * (1 / len(first) + 1 / len(second)))
    difference = np.mean([*first.values()]) - np.mean([*second.values()])
    return Test(difference, error, df, 2 * stats.t.sf(abs(difference / error), df))


def p_values_of(claim: dict[str, Any], side: Sides) -> dict[str, float]:
    """The larger p of both tests: of no difference, of one that matters as claimed, and of the opposite."""
    direction = direction_of(claim)
    as_claimed = []
    opposite = []
    for test in side.tests:
        towards = direction * test.difference
        as_claimed.append(stats.t.cdf((towards - claim["smallest"]) / test.error, test.df))
        opposite.append(stats.t.sf((towards + claim["smallest"]) / test.error, test.df))
    return {
        "none": max(test.p for test in side.tests),
        "as claimed": max(as_claimed),
        "opposite": max(opposite),
    }


def direction_of(claim: dict[str, Any]) -> int:
    return 1 if claim["expects"] == "more" else -1


def others_in(family: str, of_claims: set[int]) -> dict[int, float]:
    """p values of the comparisons in a family that are no claims, by line; 1 for tests that were not made."""
    if not family:
        return {}
    table, _, name = family.partition("|")
    found = {}
    without_source, _, _ = name.rpartition("|")
    missing = 0
    for number, line in enumerate(lines_of(f"{table}_comparisons.csv")):
        if name_of_family(line).rpartition("|")[0] == without_source:
            missing -= 1
            comparison = line["comparison"]
        if name_of_family(line) == name and number not in of_claims:
            found[number] = float(line["p"] or 1)
    for plan in lines_of("plans.csv"):
        if (plan["table"], plan["comparison"]) == (table, comparison):
            missing += int(plan["lines_of_family"])
    for number in range(missing):
        found[-1 - number] = 1.0
    return found


def holm(p_values: dict[Any, float]) -> dict[Any, float]:
    """The smallest p times the number of tests, the next times one less, and so on; none below an earlier one."""
    adjusted = {}
    largest = 0.0
    left = len(p_values)
    for name in sorted(p_values, key=p_values.__getitem__):
        largest = max(largest, min(1.0, p_values[name] * left))
        adjusted[name] = largest
        left -= 1
    return adjusted


def judge(claim: dict[str, Any], side: Sides, corrected: dict[Any, float]) -> Verdict:
    name = claim["id"]
    p = corrected[name, "none"]
    as_claimed = corrected[name, "as claimed"]
    opposite = corrected[name, "opposite"]
    low, high = sorted([direction_of(claim) * side.low, direction_of(claim) * side.high])
    verdict = "undecided"
    if side.count < FEWEST:
        verdict = "preliminary"
    elif p < LEVEL and low > 0:
        verdict = "holds" + size_of(low, high, claim["smallest"])
    elif p < LEVEL and high < 0:
        verdict = "the opposite holds" + size_of(-high, -low, claim["smallest"])
    elif max(as_claimed, opposite) < LEVEL:
        verdict = "equal"
    elif as_claimed < LEVEL:
        verdict = "does not hold"
    elif opposite < LEVEL:
        verdict = "the opposite does not hold"
    if "planned_first" in claim and not agrees(verdict, *planned_measure(claim)):
        verdict = "undecided"
    difference = side.tests[0].difference
    return Verdict(difference, side.low, side.high, p, as_claimed, opposite, verdict)


def size_of(low: float, high: float, smallest: float) -> str:
    """Words for an interval of positive differences beside the smallest that matters."""
    if low >= smallest:
        return ""
    return ", but small" if high < smallest else ", size open"


def agrees(verdict: str, supports: bool, opposes: bool) -> bool:
    """Whether the measure that was planned first allows a verdict of a later one."""
    if verdict.startswith("holds"):
        return supports
    if verdict == "the opposite does not hold":
        return not opposes
    if verdict.startswith("the opposite"):
        return opposes
    if verdict == "equal":
        return not supports and not opposes
    return verdict != "does not hold" or not supports


def planned_measure(claim: dict[str, Any]) -> tuple[bool, bool]:
    """Whether the measure that was planned first supports the claim, and whether it opposes it."""
    side = sides_of_comparison(claim["planned_first"], by_plan=False)
    p_values = {("ours", kind): 1.0 for kind in ("none", "as claimed", "opposite")}
    p_values["ours", "none"] = max(test.p for test in side.tests)
    for line, p in others_in(side.family, {side.line}).items():
        p_values |= {(line, "none"): p, (line, "as claimed"): 1.0, (line, "opposite"): 1.0}
    towards = direction_of(claim) * side.tests[0].difference
    significant = holm(p_values)["ours", "none"] < LEVEL
    return significant and towards > 0, significant and towards < 0


def ratios() -> dict[str, dict[str, float]]:
    """Divide the first by the second number of every measured cost, by id and name."""
    found: dict[str, dict[str, float]] = {}
    for row in yaml.safe_load((ROOT / "docs" / "claims.yaml").read_text())["measured"]:
        of_row = found.setdefault(row["id"], {})
        for asked in row["ratios"]:
            lines = records(asked.get("file", row.get("file")))
            value = asked.get("value", row.get("value"))
            first, second = (number_in(lines, asked[side], value) for side in ("first", "second"))
            of_row[asked["name"]] = first / second
    return found


def records(file: str) -> list[dict[str, Any]]:
    if file.endswith(".csv"):
        return [*lines_of(file)]
    rows: list[dict[str, Any]] = json.loads((RESULTS / file).read_text())["rows"]
    return rows


def number_in(lines: list[dict[str, Any]], where: Line, value: str) -> float:
    (found,) = [
        line
        for line in lines
        if line.get(value) and all(line.get(key) == wanted for key, wanted in where.items())
    ]
    return float(found[value])


def parameters() -> dict[str, int]:
    """Count weights and biases for images of 28x28 pixels and ten classes of 16 components, layer by layer."""
    decoder = (160 + 1) * 512 + (512 + 1) * 1024 + (1024 + 1) * 784
    # Sabour 2017: 6x6 positions of 32 types, with one bias of each component of a class as in the authors' code
    convolutions = (9 * 9 * 1 + 1) * 256 + (9 * 9 * 256 + 1) * 256
    capsnet = convolutions + 6 * 6 * 32 * 8 * 10 * 16 + 10 * 16
    # Mazzia 2021: four normalised convolutions, a depthwise one, 16 children with a prior for each parent
    widths = [1, 32, 64, 64, 128]
    kernels = [5, 3, 3, 3]
    efficient = (9 * 9 + 1) * 128 + 16 * 8 * 10 * 16 + 16 * 10
    for number, kernel in enumerate(kernels):
        children, parents = widths[number], widths[number + 1]
        efficient += (kernel * kernel * children + 1) * parents + 2 * parents
    return {
        "CapsNet": capsnet + decoder,
        "CapsNet, no decoder": capsnet,
        "Efficient-CapsNet": efficient + decoder,
        "Efficient-CapsNet, no decoder": efficient,
    }
