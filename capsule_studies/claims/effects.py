"""The difference that decides a claim, from the records in results/."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from capsule_lab import statistics
from capsule_lab.errors import ConfigError
from capsule_lab.statistics import Difference, Spread
from capsule_studies.claims.read import RESULTS

PLANNED, AFTER, UNKNOWN = "planned", "after the fact", "plan not verifiable"


@dataclass(frozen=True)
class Plan:
    """What results/plans.csv knows about a comparison, and which lines of its report belong to the family.

    Attributes:
        label: ``PLANNED``, ``AFTER`` or ``UNKNOWN``.
        margin: the margin in the table; ``None`` without one.
        seeds: number of seeds in the table.
        commits: commits of the runs.
        missing: those that are not in the history of the repository.
        trained_before: whether the networks of an analysis were trained before the comparison stood in the table.
        family: name of the family that Holm's method corrects; empty for a comparison that is not planned.
        line: the comparison in its family.
        family_p: p values of no difference of all comparisons in the family, by line; 1 for a missing one.
    """

    label: str = AFTER
    margin: float | None = None
    seeds: int = 0
    commits: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    trained_before: bool = False
    family: str = ""
    line: int = 0
    family_p: dict[int | str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Effect:
    """The difference that decides a claim: first sample minus second.

    Attributes:
        found: difference, interval, p value, standard error and degrees of freedom.
        paired: whether runs with the same seed are compared.
        real: whether the data are real, not a stand-in.
        other: the test with the other pairing, for two kinds of networks with the same seeds; the larger p counts.
        over_runs: the difference over runs alone, which has Hedges' g; ``found`` unless that is also over images.
        images_seen: training images that a network of the first sample has seen; ``None`` if no record says it.
        means: the means of both samples, which differ by the estimate; ``None`` if they are not known.
    """

    found: Difference
    paired: bool
    real: bool = True
    plan: Plan = Plan()
    other: Difference | None = None
    over_runs: Difference | None = None
    images_seen: int | None = None
    means: tuple[float, float] | None = None

    @property
    def count(self) -> int:
        """Number of runs of the smaller sample, or of pairs."""
        return min(self.found.counts)

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        assert self.found.low is not None
        return self.found.low

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        assert self.found.high is not None
        return self.found.high

    @property
    def tests(self) -> list[Difference]:
        """The test of the table, and the one with the other pairing."""
        return [self.found] if self.other is None else [self.found, self.other]

    @property
    def p(self) -> float:
        """P value of no difference."""
        return max(test.p for test in self.tests if test.p is not None)

    def p_of_smaller(self, claim: dict[str, Any]) -> float:
        """Return the p value of a difference in the claimed direction that matters; small if there is none."""
        return self._p_of_less(claim["smallest"], sign(claim))

    def p_of_larger(self, claim: dict[str, Any]) -> float:
        """Return the p value of a difference in the other direction that matters; small if there is none."""
        return self._p_of_less(claim["smallest"], -sign(claim))

    def _p_of_less(self, smallest: float, direction: int) -> float:
        """Return the p value of a difference of at least ``smallest`` in one direction."""
        return max(_p_of_less(test, smallest, direction) for test in self.tests)

    def margin_as_g(self, claim: dict[str, Any]) -> float | None:
        """Return the smallest difference that matters in the unit of ``hedges_g``."""
        over_runs = self.over_runs or self.found
        if over_runs.g_error is None:
            return None
        return float(claim["smallest"]) * over_runs.g_error / over_runs.error

    @property
    def hedges_g(self) -> float | None:
        """The difference in standard deviations of single runs, corrected for small samples."""
        return (self.over_runs or self.found).g

    @property
    def hedges_g_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of ``hedges_g``."""
        return (self.over_runs or self.found).g_interval


def sign(claim: dict[str, Any]) -> int:
    """Return the sign of the difference that the claim predicts."""
    return {"less": -1, "more": 1}[claim["expects"]]


def effect_of(claim: dict[str, Any], folder: Path = RESULTS) -> Effect:
    """Compute the effect of a claim from the records in a folder, which has the files that a report writes.

    Raises:
        ConfigError: if the claim does not fit the records.
    """
    if "comparison" in claim:
        return _of_report(folder, claim)
    first = _sample(claim["first"], folder)
    paired = claim.get("paired", False)
    other = None
    if isinstance(claim["second"], dict):
        second = _sample(claim["second"], folder)
        if _are_different_networks(claim):
            other = _other_test(first, second, paired=paired)
        found = _compared(first, second, paired=paired)
    else:
        # a number, with which every run is compared
        paired = True
        second = pd.Series([float(claim["second"])])
        found = statistics.difference_from([*first], second.item())
    if found.low is None or found.high is None or found.p is None:
        raise ConfigError(
            f"{claim['claim']} has samples without a deviation; expected several different values"
        )
    images_seen = _images_seen(_runs_of_sample(claim["first"], folder))
    plan = Plan(commits=_commits_of_samples(claim, folder))
    return Effect(
        found,
        paired,
        _source(claim, folder) == "real",
        plan,
        other,
        images_seen=images_seen,
        means=(first.mean(), second.mean()),
    )


def _compared(first: pd.Series, second: pd.Series, *, paired: bool) -> Difference:
    """Compare two samples; of pairs, only the seeds that both have."""
    if not paired:
        return statistics.unpaired_difference([*first], [*second])
    seeds = first.index.intersection(second.index)
    return statistics.paired_difference([*first[seeds]], [*second[seeds]])


def line_of(
    folder: Path, file: str, name: str, row: str = "", column: str = ""
) -> tuple[pd.DataFrame, pd.Series]:
    """Return all comparisons of a table, and the line that a claim names.

    Raises:
        ConfigError: if there is no such line with a p value, or more than one.
    """
    path = folder / f"{file}_comparisons.csv"
    if not path.is_file():
        raise ConfigError(
            f"{path} does not exist; `capsule-lab report table={file} out=…` writes it"
        )
    frame = read_csv(path)
    chosen = frame[frame["comparison"] == name]
    chosen = _labelled(chosen, "first", row)
    chosen = _labelled(chosen, "first_column", column)
    if len(chosen) != 1:
        raise ConfigError(
            f"{file}_comparisons.csv has {len(chosen)} lines of {name}, {row!r}, {column!r}; expected one"
        )
    line = chosen.iloc[0]
    if line["p"] == "":
        raise ConfigError(
            f"{file}_comparisons.csv has no p value of {name}, {row!r}, {column!r}: {line['remark']}"
        )
    return frame, line


def _labelled(frame: pd.DataFrame, key: str, label: str) -> pd.DataFrame:
    """Return the lines with a label, or those whose labels begin with it if there are none."""
    matches = frame[key] == label
    if not matches.any():
        matches = frame[key].astype(str).str.startswith(label)
    return frame[matches]


def _of_report(folder: Path, claim: dict[str, Any]) -> Effect:
    source = claim["comparison"]
    file = source["file"]
    frame, line = line_of(folder, **source)
    found = _difference(line)
    paired = "paired" in line["test"] or found.error_of_clusters > 0
    runs = _runs_of_line(folder, file, line, "first")
    first = _values(runs)
    second = _values(_runs_of_line(folder, file, line, "second"))
    means = first.mean(), second.mean()
    if line["test"] == "t-test with pooled deviation":
        # one of the two samples has none, so that Hedges' g has it, too
        unit = math.sqrt(1 / len(first) + 1 / len(second))
        common = Spread(found.error / unit, round(found.df))
        over_runs = statistics.unpaired_difference([*first], [*second], common=common)
    else:
        over_runs = _compared(first, second, paired=paired)
    plan = _plan(file, frame, line)
    other = None
    if "pairing" in claim:
        if plan.label != PLANNED:
            raise ConfigError(
                f"{claim['id']} has a reason for its pairing and no plan; expected a planned comparison"
            )
    elif line["first"] != line["second"] and "t-test" in line["test"]:
        other = _other_test(first, second, paired=paired)
    return Effect(
        found,
        paired,
        line["source"] == "real",
        plan,
        other,
        over_runs,
        _images_seen(runs),
        means,
    )


def runs_compared(
    claim: dict[str, Any], folder: Path = RESULTS
) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Return the runs of both samples; ``None`` if a claim compares with a number, or differences of columns."""
    if "comparison" in claim:
        source = claim["comparison"]
        _, line = line_of(folder, **source)
        first, second = (
            _runs_of_line(folder, source["file"], line, side) for side in ("first", "second")
        )
        return first, second
    samples = claim["first"], claim["second"]
    if any(not isinstance(sample, dict) or "minus" in sample for sample in samples):
        return None
    first, second = (_runs_of_sample(sample, folder) for sample in samples)
    return first, second


def _difference(line: pd.Series) -> Difference:
    counts = int(line["n_first"]), int(line["n_second"])
    first, second = counts
    error = _number(line["error"])
    pairs = "paired" in line["test"]
    error_of_single_runs = math.sqrt(1 / first if pairs else 1 / first + 1 / second)
    return Difference(
        _number(line["difference"]),
        _number(line["low"]),
        _number(line["high"]),
        _number(line["p"]),
        counts,
        line["test"],
        equivalent=line["equivalent"] or None,
        spread=error / error_of_single_runs,
        pairs=pairs,
        error=error,
        df=_number(line["df"]),
        error_of_clusters=float(line["error_of_clusters"]),
    )


def _number(cell: Any) -> float:
    return float("nan") if cell == "" else float(cell)


def _plan(file: str, frame: pd.DataFrame, line: pd.Series) -> Plan:
    plans = read_csv(RESULTS / "plans.csv")
    plans = plans[plans["table"] == file]
    plans = plans[plans["comparison"] == line["comparison"]]
    if plans.empty:
        raise ConfigError(
            f"results/plans.csv has no {line['comparison']} of {file}; "
            "`python -m capsule_studies.claims.plans` writes it"
        )
    known = plans.iloc[0]
    label = {"yes": PLANNED, "no": AFTER, "unknown": UNKNOWN}[known["planned"]]
    source = line["source"]
    name = "family" if line["family"] else "comparison"
    family = line[name]
    of_family = frame[frame[name] == family]
    members = of_family[of_family["source"] == source]
    # a test that was not made counts with p = 1, also if the report has no line of it
    family_p = members["p"].replace("", "1").astype(float).to_dict()
    missing = int(known["lines_of_family"]) - len(of_family)
    for number in range(missing):
        family_p[f"missing {number}"] = 1.0
    return Plan(
        label=label,
        margin=float(line["margin"]) if line["margin"] else None,
        seeds=int(known["seeds_planned"]),
        commits=tuple(known["commits_of_runs"].split()),
        missing=tuple(known["missing_commits"].split()),
        trained_before=known["trained_before_plan"] == "yes",
        family=f"{file}/{family}/{source}" if label == PLANNED else "",
        line=int(line.name),
        family_p=family_p,
    )


def _runs_of_line(folder: Path, file: str, line: pd.Series, side: str) -> pd.DataFrame:
    """Return the runs of the ``first`` or ``second`` row of a comparison."""
    runs = read_csv(folder / f"{file}_runs.csv")
    runs = runs[runs["status"] == "done"]
    runs = runs[runs["source"] == line["source"]]
    runs = runs[runs["row"] == line[side]]
    return runs[runs["column"] == line[f"{side}_column"]]


def _values(runs: pd.DataFrame, column: str = "value") -> pd.Series:
    """Return the values of runs by seed; raise a ``ConfigError`` if one is not finite, and so no measurement."""
    values = runs.set_index("seed")[column].astype(float)
    wrong = values[~np.isfinite(values)]
    if len(wrong):
        raise ConfigError(
            f"the run of seed {wrong.index[0]} has {column} {wrong.iloc[0]}; expected a finite number: name other runs"
        )
    return values


def _images_seen(runs: pd.DataFrame) -> int | None:
    """Return steps times batch size, if the records have both."""
    if "steps" not in runs or "command" not in runs:
        return None
    run = runs.iloc[0]
    batch = re.search(r"data\.batch_size=(\d+)", run["command"])
    return None if batch is None else int(run["steps"]) * int(batch[1])


def _other_test(first: pd.Series, second: pd.Series, *, paired: bool) -> Difference | None:
    """Return Welch's test in place of a paired one, or the reverse; ``None`` if fewer than two seeds are common."""
    if len(first.index.intersection(second.index)) < 2:
        return None
    found = _compared(first, second, paired=not paired)
    return found if found.error else None


def _commits_of_samples(claim: dict[str, Any], folder: Path) -> tuple[str, ...]:
    """Return the commits of the runs that a claim from samples compares."""
    commits: set[str] = set()
    for source in (claim["first"], claim["second"]):
        if isinstance(source, dict):
            runs = _runs_of_sample(source, folder)
            commits.update(runs.get("commit", []))
    return tuple(sorted(commits))


def _are_different_networks(claim: dict[str, Any]) -> bool:
    first, second = claim["first"], claim["second"]
    keys = ("file", "row", "network")
    return any(first.get(key) != second.get(key) for key in keys)


def _runs_of_sample(source: dict[str, str], folder: Path) -> pd.DataFrame:
    """Return the runs of a row of a file of runs."""
    frame = read_csv(folder / source["file"])
    for key in ("column", "row", "network"):
        if key in source:
            frame = _labelled(frame, key, source[key])
    if "status" in frame:
        frame = frame[frame["status"] == "done"]
    if frame.empty or frame["seed"].duplicated().any():
        raise ConfigError(f"{source} has {len(frame)} runs; expected one of each seed")
    return frame


def _sample(source: dict[str, str], folder: Path = RESULTS) -> pd.Series:
    """Return the values of a row of a file of runs by seed.

    ``value`` names the column of values; ``minus`` another column of the same runs, which is subtracted.
    """
    values = _values(_runs_of_sample(source, folder), source.get("value", "value"))
    if "minus" not in source:
        return values
    subtracted = {**source, "column": source["minus"]}
    del subtracted["minus"]
    return values - _sample(subtracted, folder)


def _source(claim: dict[str, Any], folder: Path) -> str:
    """Return whether the data of both samples are ``real`` or a ``standin``."""
    known: set[str] = set()
    for sample in (claim["first"], claim["second"]):
        if isinstance(sample, dict):
            runs = _runs_of_sample(sample, folder)
            known.update(runs.get("source", []))
    if known in ({"real"}, {"standin"}):
        return known.pop()
    if known <= {""} and "source" in claim:
        return str(claim["source"])
    raise ConfigError(
        f"{claim['id']}: its runs have the sources {sorted(known)}; expected one, or none and the key source, real or "
        "standin"
    )


def _p_of_less(test: Difference, smallest: float, direction: int) -> float:
    statistic = (direction * test.estimate - smallest) / test.error
    return float(student.cdf(statistic, test.df))


@functools.cache
def read_csv(file: Path) -> pd.DataFrame:
    """Return a file of results; empty cells are empty strings."""
    return pd.read_csv(file, keep_default_na=False)
