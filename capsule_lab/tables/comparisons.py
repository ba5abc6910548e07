"""The comparisons of a table: its questions, answered with the runs that have finished."""

from __future__ import annotations

import functools
import itertools
import math
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from capsule_lab import statistics
from capsule_lab.config import plain_yaml
from capsule_lab.errors import ConfigError, TableError
from capsule_lab.runs.predictions import Predictions, concatenated, percent_wrong
from capsule_lab.statistics import Difference, Spread
from capsule_lab.tables.cells import Cell
from capsule_lab.tables.schema import Comparison, Fold, Repetition, Table
from capsule_lab.tables.summary import (
    Entry,
    Run,
    changed_files,
    commits_of,
    have_same_images,
    means_by_fold,
    values_of,
)


class Sample(NamedTuple):
    """Values whose deviation a t-test uses: those of a row, or the differences of pairs.

    Attributes:
        place: row and column, of pairs those of both rows. Comparisons that share a row share its sample.
        values: one for each run, or for each pair of runs.
        run: one of the runs, which knows the number of test images.
    """

    place: tuple[str, ...]
    values: list[float]
    run: Run

    @property
    def is_below_an_image(self) -> bool:
        """Whether the deviation is smaller than one test image, so that it is not an estimate."""
        if len(self.values) < 2:
            return False
        predictions = self.run.predictions
        one_image = 100 / len(predictions.label) if predictions else 0.0
        return float(np.std(self.values, ddof=1)) <= one_image


class Family(NamedTuple):
    """The comparisons that share a Holm correction: those of a family, or, without one, all pairs of a comparison.

    Attributes:
        is_named: whether ``name`` is that of a family, and not of a comparison.
        real: whether the runs are on real data; those on stand-in data are corrected apart.
    """

    is_named: bool
    name: str
    real: bool


@dataclass(frozen=True)
class Pair:
    """Two rows that a comparison asks about, on real or on stand-in data."""

    comparison: Comparison
    first: Entry
    second: Entry
    real: bool

    @property
    def name(self) -> str:
        """Labels of both rows, with those of their columns if these differ."""
        return self.by("label")

    def by(self, key: Literal["label", "name"]) -> str:
        """Return ``name``, or the same with the short names of rows and columns."""
        row = getattr(self.first.row, key)
        column = getattr(self.first.column, key)
        other_row = getattr(self.second.row, key)
        other_column = getattr(self.second.column, key)
        if self.first.column == self.second.column:
            return f"{row} against {other_row}"
        if self.first.row == self.second.row:
            return f"{row}: {column} against {other_column}"
        return f"{row}, {column} against {other_row}, {other_column}"

    @property
    def family(self) -> Family:
        """What it is corrected with."""
        family = self.comparison.family
        return Family(bool(family), family or self.comparison.name, self.real)

    @property
    def is_paired(self) -> bool:
        """Whether runs with the same seed, or fold and seed, are compared with each other."""
        return self.comparison.pairing != "none"

    @property
    def folds(self) -> int | None:
        """The number of folds; ``None`` without folds."""
        fold = self.first.runs[0].cell.fold
        return None if fold is None else fold.folds

    @property
    def runs(self) -> tuple[list[Run], list[Run]]:
        """The runs of both rows; of pairs, only folds and seeds that both have, in the same order."""
        first = _by_repetition(self.first, self.real)
        second = _by_repetition(self.second, self.real)
        if not self.is_paired:
            return [*first.values()], [*second.values()]
        both = sorted(first.keys() & second.keys())
        return [first[each] for each in both], [second[each] for each in both]

    @property
    def values(self) -> tuple[list[float], list[float]]:
        """The values of ``runs``; with folds, the mean of each fold over seeds."""
        first, second = self.runs
        if self.folds is not None:
            first_means = means_by_fold(first)
            second_means = means_by_fold(second)
            return [*first_means.values()], [*second_means.values()]
        return values_of(first), values_of(second)

    @property
    def runs_without_a_pair(self) -> int:
        """Number of seeds, or folds and seeds, that only one of the rows has."""
        first = _by_repetition(self.first, self.real)
        second = _by_repetition(self.second, self.real)
        return len(first.keys() ^ second.keys())


@dataclass(frozen=True)
class Compared(Pair):
    """One row compared with another one, on real or on stand-in data.

    Attributes:
        difference: that of ``first`` minus ``second``.
        corrected: p value after Holm's correction for the comparisons of the family in this report.
        planned: whether the comparison was in the table in the commit of every run, or evaluation; ``None`` if a commit
            is unknown, or a run used uncommitted code.
        remark: what differs from the comparison that the table asks for; may be empty.
    """

    difference: Difference
    corrected: float | None = None
    planned: bool | None = None
    remark: str = ""

    @property
    def is_significant(self) -> bool:
        """Whether the corrected p value is below 5 %."""
        return self.corrected is not None and self.corrected < statistics.LEVEL


def compared(table: Table, entries: Sequence[Entry]) -> list[Compared]:
    """Answer the comparisons of a table for which both rows have runs.

    If the deviation of a sample is smaller than one test image, it is not an estimate; the pooled deviation of the
    samples in the same family and column takes its place. Raise a ``TableError`` if networks with ``unit: images`` or
    ``clusters``, not of folds, were tested on different images.
    """
    pairs = [*_pairs(table, entries)]
    answers = []
    for pair in pairs:
        alike = [other for other in pairs if _may_be_pooled(pair, other)]
        answer = _answered(pair, alike)
        planned = _planned(table, pair)
        remarks = [answer.remark]
        if planned:
            remarks.append(_trained_before(table, pair))
        remark = "; ".join(filter(None, remarks))
        answers.append(replace(answer, planned=planned, remark=remark))
    return _corrected(answers)


def plan(answers: Sequence[Compared], difference: float, power: float) -> list[str]:
    """Say for each comparison how many seeds find a difference, and how long they take.

    Deviation and duration are those of the runs that have finished. Raise a ``ConfigError`` if the difference is not
    above 0, or the power not between 0.05 and 1; a ``TableError`` if there are too few runs to know a deviation, or
    runs are folds.
    """
    if not difference > 0 or not statistics.LEVEL < power < 1:
        raise ConfigError(
            f"difference={difference:g} and power={power:g} cannot be planned; expected a difference above 0, and a "
            "power above 0.05 and below 1"
        )
    if any(answer.folds is not None for answer in answers):
        raise TableError(
            "comparisons over folds cannot be planned, because more folds of the same images are not more data; "
            "expected a table without folds, or a report without difference="
        )
    known = [answer for answer in answers if answer.difference.spread is not None]
    if not known:
        raise TableError(
            "no comparison of this table has a known deviation over seeds; expected comparisons: in the table with "
            "unit: seeds, and two finished seeds of both rows as a pilot"
        )
    lines = [_needed_seeds(answer, difference, power) for answer in known]
    for answer in answers:
        if answer.comparison.unit != "seeds" and answer.difference.spread is None:
            lines.append(
                f"{answer.name}: not planned, because {answer.comparison.unit} limit it as well as seeds"
            )
    return lines


def _needed_seeds(answer: Compared, difference: float, power: float) -> str:
    """Return the line of a plan for a comparison whose deviation is known."""
    found = answer.difference
    assert found.spread is not None
    of_pairs = " of pairs" if found.pairs else ""
    known = f"deviation {found.spread:.3g}{of_pairs} in {min(found.counts)} seeds"
    known += f", with {power:.0%} power"
    seeds = statistics.runs_for(difference, found.spread, pairs=found.pairs, power=power)
    many = "more than 10,000" if seeds is None else f"{seeds}"
    hours = _hours_of_a_seed(answer)
    if seeds is not None and hours is not None:
        known += f"; {seeds * hours:.1f} hours for both rows"
    return f"{answer.name}: {many} seeds find a difference of {difference:g} ({known})"


def _hours_of_a_seed(pair: Pair) -> float | None:
    """Return the hours of all runs and evaluations that both rows need for a seed; what they share counts once.

    ``None`` if runs of the column used different hardware, or no seed has both rows.
    """
    if pair.first.different_hardware or pair.second.different_hardware:
        return None
    first = _by_repetition(pair.first, pair.real)
    second = _by_repetition(pair.second, pair.real)
    both = first.keys() & second.keys()
    if not both:
        return None
    needed: dict[str, Cell] = {}
    for repetition in both:
        needed |= first[repetition].cell.needed
        needed |= second[repetition].cell.needed
    seconds = sum(cell.seconds or 0.0 for cell in needed.values())
    return seconds / len(both) / 3600


def _pairs(table: Table, entries: Sequence[Entry]) -> Iterator[Pair]:
    """Yield every pair of rows that the table compares and that have runs."""
    by_place = {(entry.row.name, entry.column.name): entry for entry in entries}
    for comparison in table.comparisons:
        columns = comparison.columns or [each.name for each in table.columns]
        rows = comparison.rows or [each.name for each in table.rows]
        for column, row in itertools.product(columns, rows):
            other_row = comparison.against or row
            other_column = comparison.against_column or column
            first = by_place.get((row, column))
            second = by_place.get((other_row, other_column))
            if first is None or second is None or first is second:
                continue
            for real in (True, False):
                pair = Pair(comparison, first, second, real)
                if all(pair.runs):
                    yield pair


def _by_repetition(entry: Entry, real: bool) -> dict[Repetition, Run]:
    """Return the runs with a finite value by fold and seed."""
    runs = entry.runs_on(real=real)
    return {run.cell.repetition: run for run in runs if math.isfinite(run.value)}


def _may_be_pooled(pair: Pair, other: Pair) -> bool:
    """Return whether two comparisons may share a deviation; without a family, each has its own."""
    if not pair.comparison.family:
        return other is pair
    return (
        other.comparison.family == pair.comparison.family
        and other.comparison.pairing == pair.comparison.pairing
        and other.first.column == pair.first.column
        and other.real is pair.real
    )


def _answered(pair: Pair, alike: Sequence[Pair]) -> Compared:
    """Compare two rows; ``alike`` are the comparisons with which they may share a deviation."""
    remarks = []
    if pair.is_paired and pair.runs_without_a_pair:
        unpaired = "seeds" if pair.folds is None else "runs"
        remarks.append(f"{pair.runs_without_a_pair} {unpaired} without a pair")
    difference = None
    unit = pair.comparison.unit
    if unit != "seeds":
        obstacle = _obstacle_to_images(pair)
        if obstacle:
            remarks.append(f"over seeds alone: {obstacle}")
        else:
            difference = _over_images(pair)
    if difference is None:
        common = _deviation_of_family(pair, alike)
        difference = _over_seeds(pair, common)
        if common is not None:
            remarks.append(f"deviations below one test image: pooled over the family ({common})")
    remarks += _left_out(pair)
    changed = changed_files([*pair.runs[0], *pair.runs[1]])
    if changed:
        one, other = changed
        remarks.append(
            f"no p value: the files of the data changed between {one.name} and {other.name}"
        )
        difference = replace(
            difference,
            low=None,
            high=None,
            p=None,
            g=None,
            g_error=None,
            equivalent=None,
            spread=None,
        )
    elif difference.p is None:
        remarks.append(_why_no_p(pair, difference))
    return Compared(
        pair.comparison,
        pair.first,
        pair.second,
        pair.real,
        difference,
        remark="; ".join(remarks),
    )


def _left_out(pair: Pair) -> list[str]:
    """Return which runs are not compared, or should not be: without a value, or with times on other hardware."""
    remarks = []
    for entry in (pair.first, pair.second):
        runs = entry.runs_on(real=pair.real)
        left_out = sum(not math.isfinite(run.value) for run in runs)
        if left_out:
            remarks.append(
                f"{left_out} of {len(runs)} runs of {entry.row.label} are left out: not reached, so longer than all"
            )
    if pair.first.is_time and pair.first.different_hardware:
        remarks.append("times on different hardware, which cannot be compared")
    return remarks


def _why_no_p(pair: Pair, difference: Difference) -> str:
    """Return why a t-test has no p value: it has no deviation."""
    if min(difference.counts) < 2:
        return (
            "no p value: it needs two pairs"
            if pair.is_paired
            else "no p value: it needs two runs a row"
        )
    return (
        "no p value: all differences are equal"
        if pair.is_paired
        else "no p value: all runs of a row are equal"
    )


def _deviation_of_family(pair: Pair, alike: Sequence[Pair]) -> Spread | None:
    """Return the deviation to use in place of that of a sample below one test image: pooled over the family.

    Each sample counts once, also if several comparisons share it. ``None`` if the samples have estimates of their own,
    or if there is nothing to pool, because no sample of the family has two different values.
    """
    if not any(sample.is_below_an_image for sample in _samples(pair)):
        return None
    values = {}
    for other in alike:
        for sample in _samples(other):
            values[sample.place] = sample.values
    return statistics.pooled([*values.values()])


def _samples(pair: Pair) -> list[Sample]:
    """Return the samples whose deviations the test of this pair uses."""
    first, second = pair.runs
    values, other_values = pair.values
    place = (pair.first.row.name, pair.first.column.name)
    other_place = (pair.second.row.name, pair.second.column.name)
    if pair.is_paired:
        differences = [one - other for one, other in zip(values, other_values, strict=True)]
        return [Sample((*place, *other_place), differences, first[0])]
    return [Sample(place, values, first[0]), Sample(other_place, other_values, second[0])]


def _over_seeds(pair: Pair, common: Spread | None) -> Difference:
    """Compare over runs, with the deviation ``common`` in place of that of the samples if it is given."""
    margin = pair.comparison.margin
    if not pair.is_paired:
        return statistics.unpaired_difference(*pair.values, margin=margin, common=common)
    # each image is tested on in one fold, and not in the others
    overlap = 0.0 if pair.folds is None else 1 / (pair.folds - 1)
    return statistics.paired_difference(
        *pair.values,
        margin=margin,
        common=common,
        overlap=overlap,
    )


def _obstacle_to_images(pair: Pair) -> str:
    """Return why a pair cannot be compared over its test images; empty if it can.

    Raise a ``TableError`` if networks, not of folds, were tested on different images.
    """
    first_runs, second_runs = pair.runs
    every = [*first_runs, *second_runs]
    unit = pair.comparison.unit
    if pair.first.column.metric != pair.second.column.metric:
        return "the columns have different metrics"
    if any(run.predictions is None for run in every):
        return f"not all runs have predictions with {unit}"
    if unit == "clusters" and any(each.cluster is None for each in _predictions(first_runs)):
        return f"not all runs have predictions with {unit}"
    if len(_folds_of_seeds(every)) > 1:
        return "not all seeds have the same folds"
    if not changed_files(every) and have_same_images(every):
        return ""
    if pair.folds is None:
        raise TableError(
            f"{pair.name} has runs with different test images; expected the same images in every run with unit: "
            f"{unit}; use unit: seeds"
        )
    return "runs were tested on different images"


def _folds_of_seeds(runs: Iterable[Run]) -> set[frozenset[Fold | None]]:
    """Return the sets of folds that the seeds have."""
    folds: defaultdict[int, set[Fold | None]] = defaultdict(set)
    for run in runs:
        folds[run.cell.seed].add(run.cell.fold)
    return {frozenset(of_seed) for of_seed in folds.values()}


def _over_images(pair: Pair) -> Difference:
    """Compare over runs and test images, or over these two networks if there is one run each.

    With folds, the predictions of a seed for the images of all folds count as those of one network.
    """
    first, second = map(_predictions, pair.runs)
    unit = pair.comparison.unit
    if unit == "images" and len(first) == len(second) == 1:
        found = statistics.mcnemar(first[0].wrong, second[0].wrong)
        if pair.folds is None:
            return found
        return replace(found, test=f"{found.test} of each fold")
    clusters: npt.NDArray[Any] | None = np.arange(len(first[0].label))
    if unit == "clusters":
        clusters = first[0].cluster
    assert clusters is not None
    return statistics.crossed_difference(
        percent_wrong(first),
        percent_wrong(second),
        clusters,
        paired=pair.is_paired,
        margin=pair.comparison.margin,
    )


def _predictions(runs: Sequence[Run]) -> list[Predictions]:
    """Return the predictions of each seed that has some; with folds, those of its folds one after another."""
    of_seeds: defaultdict[int, list[Predictions]] = defaultdict(list)
    for run in runs:
        if run.predictions is not None:
            of_seeds[run.cell.seed].append(run.predictions)
    return [concatenated(of_seed) for of_seed in of_seeds.values()]


def _corrected(answers: Sequence[Compared]) -> list[Compared]:
    """Add the p values after Holm's correction within each family."""
    families: defaultdict[Family, list[int]] = defaultdict(list)
    for index, each in enumerate(answers):
        if each.difference.p is not None:
            families[each.family].append(index)
    corrected = [*answers]
    for members in families.values():
        p_values = [answers[index].difference.p or 0.0 for index in members]
        for index, p in zip(members, statistics.holm(p_values), strict=True):
            corrected[index] = replace(answers[index], corrected=p)
    return corrected


def _planned(table: Table, pair: Pair) -> bool | None:
    """Return whether the comparison was in the table in the commit of every run.

    ``None`` if a commit is unknown, or if a run used code that differs from its commit. Evaluations can be planned
    although their networks were trained before, see ``_trained_before``.
    """
    first, second = pair.runs
    return _stood(table, pair.comparison, [run.result for run in (*first, *second)])


def _trained_before(table: Table, pair: Pair) -> str:
    """Return a remark if other runs that the rows need, such as the networks that they evaluate, are not planned."""
    first, second = pair.runs
    results = []
    for run in (*first, *second):
        for cell in run.cell.needed.values():
            if cell is not run.cell and cell.finished is not None:
                results.append(cell.finished[1])
    stood = _stood(table, pair.comparison, results)
    if stood is None:
        return "unknown whether networks were trained before the plan"
    return "" if stood else "networks trained before the plan"


def _stood(
    table: Table, comparison: Comparison, results: Iterable[Mapping[str, Any]]
) -> bool | None:
    """Return whether the comparison was in the table in all commits of some results; see ``_planned``."""
    commits = {commit for result in results for commit in commits_of(result)}
    stood = []
    for commit in commits:
        was_there = _was_in_commit(commit, table.file, comparison)
        stood.append(None if was_there and commit.endswith("-dirty") else was_there)
    if False in stood:
        return False
    return None if None in stood else True


@functools.cache
def _was_in_commit(commit: str, file: Path, comparison: Comparison) -> bool | None:
    """Return whether the table in ``file`` had this comparison in a commit; ``None`` if the commit is unknown."""
    content = _at_commit(commit, file)
    if content is None:
        return None
    try:
        given = (plain_yaml.parse(content) or {}).get("comparisons") or []
        then = [Comparison.model_validate(each) for each in given]
    except (ValueError, AttributeError, TypeError):  # of pydantic, too
        return False
    return comparison in then


@functools.cache
def _at_commit(commit: str, file: Path) -> str | None:
    """Return a file in a commit, as in ``git describe``; empty if it was not there, ``None`` without the commit."""
    found = re.search(r"[0-9a-f]{7,40}(?=(-dirty)?$)", commit)
    if found is None:
        return None
    folder = file.resolve().parent
    try:
        if _git(folder, "cat-file", "-e", f"{found[0]}^{{commit}}").returncode:
            return None
        shown = _git(folder, "show", f"{found[0]}:./{file.name}")
    except OSError:
        return None  # no git on this machine
    return shown.stdout if shown.returncode == 0 else ""


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
