"""The comparisons of a table: its questions, answered with the runs that have finished."""

from __future__ import annotations

import functools
import math
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from capsule_lab.config import plain_yaml
from capsule_lab.errors import ConfigError, TableError
from capsule_lab.runs.predictions import Predictions
from capsule_lab.tables import statistics
from capsule_lab.tables.schema import Comparison, Table
from capsule_lab.tables.statistics import Difference
from capsule_lab.tables.summary import Entry, Run


@dataclass(frozen=True)
class Compared:
    """One row compared with another one, on real or on stand-in data.

    Attributes:
        first, second: the difference is that of ``first`` minus ``second``.
        corrected: p value after Holm's correction for the comparisons of the family in this report.
        planned: whether the comparison was in the table in the commit of every run; ``None`` if a commit is unknown.
        remark: what differs from the comparison that the table asks for; may be empty.
    """

    comparison: Comparison
    first: Entry
    second: Entry
    real: bool
    difference: Difference
    corrected: float | None = None
    planned: bool | None = None
    remark: str = ""

    @property
    def name(self) -> str:
        """Names of both rows, with their columns if these differ."""
        sides = [self.first.row.label, self.second.row.label]
        if self.first.column != self.second.column:
            sides = [f"{each.row.label}, {each.column.label}" for each in (self.first, self.second)]
            if self.first.row == self.second.row:
                sides = [
                    f"{self.first.row.label}: {self.first.column.label}",
                    self.second.column.label,
                ]
        return " against ".join(sides)

    @property
    def is_significant(self) -> bool:
        """Whether the corrected p value is below 5 %."""
        return self.corrected is not None and self.corrected < statistics.LEVEL


def compared(table: Table, entries: Sequence[Entry]) -> list[Compared]:
    """Answer the comparisons of a table for which both rows have runs.

    If the deviation of a sample is smaller than one test image, it is no estimate; the pooled deviation of the
    samples in the same family and column takes its place. Raise a ``TableError`` if networks with ``unit: images`` or
    ``clusters`` were tested on different images.
    """
    pairs = [*_pairs(table, entries)]
    found = []
    for pair in pairs:
        family = pair.comparison.family
        alike = [
            other for other in pairs
            if (other.comparison.family, other.comparison.pairing, other.first.column, other.real)
            == (family, pair.comparison.pairing, pair.first.column, pair.real)
        ]  # fmt: skip
        answer = _answered(pair, alike if family else [pair])
        found.append(replace(answer, planned=_planned(table, pair)))
    return _corrected(found)


def plan(answers: Sequence[Compared], difference: float, power: float) -> list[str]:
    """Say for each comparison how many seeds find a difference, and how long they take.

    Deviation and duration are those of the runs that have finished. Raise a ``ConfigError`` if the difference is not
    above 0, or the power not between 0.05 and 1; a ``TableError`` if there are too few runs to know a deviation.
    """
    if not difference > 0 or not statistics.LEVEL < power < 1:
        raise ConfigError(
            f"difference={difference:g} and power={power:g} cannot be planned; expected a difference above 0, and a "
            "power above 0.05 and below 1"
        )
    lines = []
    for answer in answers:
        found, minutes = (
            answer.difference,
            [entry.minutes for entry in (answer.first, answer.second)],
        )
        if found.spread is None:
            continue
        seeds = statistics.runs_for(difference, found.spread, pairs=found.pairs, power=power)
        many = "more than 10,000 seeds find" if seeds is None else f"{seeds} seeds find"
        known = f"deviation {found.spread:.3g} {'of pairs ' if found.pairs else ''}in {min(found.counts)} seeds"
        known += f", with {power:.0%} power"
        if seeds is not None and None not in minutes:
            known += (
                f"; {seeds * sum(map(float, filter(None, minutes))) / 60:.1f} hours for both rows"
            )
        lines.append(f"{answer.name}: {many} a difference of {difference:g} ({known})")
    if not lines:
        raise TableError(
            "no comparison of this table has a known deviation; expected comparisons: in the table, and two finished "
            "seeds of both rows as a pilot"
        )
    return lines


def _pairs(table: Table, entries: Sequence[Entry]) -> Iterator[Compared]:
    """Yield every pair of rows that the table compares, without its answer."""
    by_place = {(entry.row.name, entry.column.name): entry for entry in entries}
    unknown = Difference(math.nan, None, None, None, (0, 0), "")
    for comparison in table.comparisons:
        for column in comparison.columns or [each.name for each in table.columns]:
            for row in comparison.rows or [each.name for each in table.rows]:
                first = by_place.get((row, column))
                second = by_place.get(
                    (comparison.against or row, comparison.against_column or column)
                )
                if first is None or second is None or first is second:
                    continue
                for real in (True, False):
                    pair = Compared(comparison, first, second, real, unknown)
                    if all(_runs(entry, real) for entry in (first, second)) and min(
                        map(len, _samples(pair))
                    ):
                        yield pair


def _runs(entry: Entry, real: bool) -> dict[int, Run]:
    """Return the runs with a finite value by seed."""
    return {
        run.cell.seed: run for run in entry.runs if run.real is real and math.isfinite(run.value)
    }


def _compared_runs(pair: Compared) -> tuple[list[Run], list[Run]]:
    """Return the runs of both rows; of pairs, only seeds that both have, in the same order."""
    first, second = (_runs(entry, pair.real) for entry in (pair.first, pair.second))
    if pair.comparison.pairing == "none":
        return [*first.values()], [*second.values()]
    both = sorted(first.keys() & second.keys())
    return [first[seed] for seed in both], [second[seed] for seed in both]


def _samples(pair: Compared) -> list[list[float]]:
    return [[run.value for run in each] for each in _compared_runs(pair)]


def _answered(pair: Compared, alike: Sequence[Compared]) -> Compared:
    paired = pair.comparison.pairing == "seed"
    first, second = _compared_runs(pair)
    seeds = {
        run.cell.seed
        for entry in (pair.first, pair.second)
        for run in _runs(entry, pair.real).values()
    }
    remarks = (
        [f"{len(seeds) - len(first)} seeds without a pair"]
        if paired and len(seeds) > len(first)
        else []
    )
    difference = None
    if pair.comparison.unit != "seeds":
        tested = [[run.predictions for run in each] for each in (first, second)]
        difference = _over_images(pair, [*filter(None, tested[0])], [*filter(None, tested[1])])
        complete = all(each is not None for predictions in tested for each in predictions)
        if difference is None or not complete:
            difference = None
            remarks.append(
                f"over seeds alone: not all runs have predictions with {pair.comparison.unit}"
            )
    if difference is None:
        values = [run.value for run in first], [run.value for run in second]
        compare = statistics.paired_difference if paired else statistics.unpaired_difference
        common = None
        if any(_is_below_an_image(*sample) for sample in _spreads(pair).values()):
            samples = {
                place: sample for other in alike for place, (sample, _) in _spreads(other).items()
            }
            common = statistics.pooled([*samples.values()])
        difference = compare(*values, margin=pair.comparison.margin, common=common)
        if common is not None:
            remarks.append(f"deviations below one test image: pooled over the family ({common})")
    return replace(pair, difference=difference, remark="; ".join(remarks))


def _spreads(pair: Compared) -> dict[tuple[str, ...], tuple[list[float], Run]]:
    """Return the samples whose deviations a test uses, each with one of its runs, by row and column.

    A row that several comparisons share is one sample; of pairs, the sample is the differences.
    """
    first, second = _compared_runs(pair)
    values = _samples(pair)
    places = [(entry.row.name, entry.column.name) for entry in (pair.first, pair.second)]
    if pair.comparison.pairing == "seed":
        return {
            (*places[0], *places[1]): (
                [one - other for one, other in zip(*values, strict=True)],
                first[0],
            )
        }
    return {places[0]: (values[0], first[0]), places[1]: (values[1], second[0])}


def _is_below_an_image(sample: Sequence[float], run: Run) -> bool:
    if len(sample) < 2:
        return False
    return float(np.std(sample, ddof=1)) <= (
        100 / len(run.predictions.label) if run.predictions else 0.0
    )


def _over_images(
    pair: Compared, first: list[Predictions], second: list[Predictions]
) -> Difference | None:
    """Compare over runs and test images, or over these two networks if there is one run each."""
    if not (first and second) or pair.first.column.metric != pair.second.column.metric:
        return None
    labels = first[0].label
    if any(not np.array_equal(each.label, labels) for each in (*first, *second)):
        raise TableError(
            f"{pair.name} has runs with different test images; expected the same images in every run with unit: "
            f"{pair.comparison.unit}; use unit: seeds"
        )
    clusters: npt.NDArray[Any] = np.arange(len(labels))
    if pair.comparison.unit == "clusters":
        if first[0].cluster is None:
            return None
        clusters = first[0].cluster
    elif len(first) == len(second) == 1:
        return statistics.mcnemar(first[0].wrong, second[0].wrong)
    one, other = (
        np.stack([each.wrong for each in predictions]) * np.float64(100)
        for predictions in (first, second)
    )
    paired = pair.comparison.pairing == "seed"
    return statistics.resampled_difference(
        one, other, clusters, paired=paired, margin=pair.comparison.margin
    )


def _corrected(found: Sequence[Compared]) -> list[Compared]:
    """Add the p values after Holm's correction within each family; a comparison without a family is alone."""
    families: dict[tuple[str, bool], list[int]] = {}
    for index, each in enumerate(found):
        if each.difference.p is not None:
            families.setdefault((each.comparison.family or f"{index}", each.real), []).append(index)
    corrected = [*found]
    for members in families.values():
        for index, p in zip(
            members, statistics.holm([found[i].difference.p or 0.0 for i in members]), strict=True
        ):
            corrected[index] = replace(found[index], corrected=p)
    return corrected


def _planned(table: Table, pair: Compared) -> bool | None:
    commits = {
        run.result.get("commit") for run in (run for side in _compared_runs(pair) for run in side)
    }
    every = {
        part for commit in commits for part in str(commit).split("; ")
    }  # of a run that continued with other code
    stood = [_was_in_commit(commit, table.file, pair.comparison) for commit in every]
    return None if None in stood else all(stood)


@functools.cache
def _was_in_commit(commit: str, file: Path, comparison: Comparison) -> bool | None:
    """Return whether the table in ``file`` had this comparison in a commit; ``None`` if the commit is unknown."""
    content = _at_commit(commit, file)
    if content is None:
        return None
    try:
        given = (plain_yaml.parse(content) or {}).get("comparisons") or []
        return comparison in [Comparison.model_validate(each) for each in given]
    except (ValueError, AttributeError, TypeError):  # of pydantic, too
        return False


@functools.cache
def _at_commit(commit: str, file: Path) -> str | None:
    """Return a file in a commit, as in ``git describe``; empty if it was not there, ``None`` without the commit."""
    if not (found := re.search(r"[0-9a-f]{7,40}(?=(-dirty)?$)", commit)):
        return None
    git: Callable[..., subprocess.CompletedProcess[str]] = functools.partial(
        subprocess.run, cwd=file.resolve().parent, capture_output=True, text=True, check=False
    )
    try:
        if git(["git", "cat-file", "-e", f"{found[0]}^{{commit}}"]).returncode:
            return None
        shown = git(["git", "show", f"{found[0]}:./{file.name}"])
    except OSError:
        return None  # no git on this machine
    return shown.stdout if shown.returncode == 0 else ""
