"""Results of a table, read only from run directories: mean and spread over seeds or folds, and published values."""

from __future__ import annotations

import json
import logging
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from capsule_lab import runs
from capsule_lab.config.composition import to_container
from capsule_lab.errors import RunError, TableError
from capsule_lab.runs.predictions import Predictions, concatenated
from capsule_lab.statistics import Interval, interval_of_error
from capsule_lab.tables.cells import DONE, Cell, EvaluationCell, TrainingCell, seconds_of
from capsule_lab.tables.expand import Composed, expand
from capsule_lab.tables.schema import Column, Fold, Overrides, Published, Row, Table

log = logging.getLogger(__name__)

_OWN_FILES = ("capsule_lab.data.ArraysDataModule", "capsule_lab.data.PictureFolder")
_OF_OWN_FILES = (
    *("_target_", "path", "labels", "groups", "images"),
    # the hash of pictures in a folder is of their pixels
    *("size", "channels", "fit", "background", "bad"),
)
"""Options of own pictures on which the hashes of their files depend."""


def commits_of(result: Mapping[str, Any]) -> list[str]:
    """Return the commits in a record: a run that continued with other code has several."""
    return str(result.get("commit") or "unknown").split("; ")


@dataclass(frozen=True)
class Run:
    """One result of an entry, on real or stand-in data."""

    cell: Cell
    value: float
    directory: Path
    result: dict[str, Any]

    @property
    def source(self) -> str:
        """Source of its data and of those of its initial weights, see ``runs.results.source_of``."""
        return runs.results.source_of(self.result)

    @property
    def real(self) -> bool:
        """Whether it was trained and tested on real data, and its initial weights, too."""
        return self.source == "real"

    @property
    def is_real_after_standin(self) -> bool:
        """Whether its data are real, and the weights with which it began are those of a stand-in."""
        return not self.real and self.result["provenance"]["source"] == "real"

    @property
    def start(self) -> str:
        """The weights with which its training began; empty if they were random."""
        return runs.results.describe_start(self.result)

    @property
    def data(self) -> str:
        """Name of its training data, and the weights with which it began, if they were not random."""
        name = str(self.result["provenance"]["name"])
        return f"{name}, {self.start}" if self.start else name

    @property
    def partial_test(self) -> str:
        """How much of the test set was used, if not all of it: see ``runs.results.partial_test``."""
        return runs.results.partial_test(self.result)

    @property
    def minutes(self) -> float:
        """Minutes of training, or of the evaluation if the row shows one."""
        return seconds_of(self.result) / 60

    @property
    def hardware(self) -> str:
        """Hardware of training, or of the evaluation if the row shows one; empty if unknown."""
        return str(self.result.get("hardware") or "")

    @property
    def precision(self) -> str:
        """Precision of training, and that of the evaluation if it differs; empty if unknown."""
        own = str(self.result.get("precision") or "")
        if not isinstance(self.cell, EvaluationCell) or self.cell.training.finished is None:
            return own
        _, training = self.cell.training.finished
        trained = str(training.get("precision") or "")
        return own if own == trained else f"{trained}, evaluated in {own}"

    @property
    def drawn_by(self) -> int | None:
        """The seed that drew the test images, if ``data.eval_images`` leaves some out; else ``None``."""
        if not self.partial_test:
            return None
        cell = self.cell.training if isinstance(self.cell, EvaluationCell) else self.cell
        assert isinstance(cell, TrainingCell)
        seed: int | None = cell.config.data.get("seed")
        return seed

    @property
    def hashes(self) -> str:
        """Hashes of the files of own pictures, which may change between two runs; empty if unknown."""
        provenance = self.result["provenance"]
        keys = ("sha256", "labels_sha256", "groups_sha256")
        return ", ".join(str(provenance[key]) for key in keys if key in provenance)

    @cached_property
    def data_options(self) -> str:
        """The options of its data on which files and their hashes depend, as text."""
        cell = self.cell.training if isinstance(self.cell, EvaluationCell) else self.cell
        assert isinstance(cell, TrainingCell)
        options = to_container(cell.config.data)
        if options["_target_"] in _OWN_FILES:
            options = {key: value for key, value in options.items() if key in _OF_OWN_FILES}
        for key in ("seed", "fold"):
            options.pop(key, None)
        evaluate = self.cell.evaluate if isinstance(self.cell, EvaluationCell) else ()
        return json.dumps([self.source, options, *evaluate])

    @property
    def commits(self) -> list[str]:
        """Commits of its code, and of the training if the row shows an evaluation; ``-dirty``: with other changes."""
        found = commits_of(self.result)
        if isinstance(self.cell, EvaluationCell) and self.cell.training.finished is not None:
            found += commits_of(self.cell.training.finished[1])
        return list(dict.fromkeys(found))

    @cached_property
    def predictions(self) -> Predictions | None:
        """The predictions behind ``test/error`` or ``test/<part>/error``.

        ``None`` for other metrics, without a file and, with a warning, for a file that cannot be used.
        """
        metric = self.cell.column.metric
        if not metric.startswith("test/") or not metric.endswith("/error"):
            return None
        try:
            found = runs.predictions.read(self.directory, self.result)
        except RunError as error:  # the run is still shown, without what needs its predictions
            log.warning("%s: %s", self.name, error)
            return None
        part = metric.removeprefix("test/").removesuffix("error").rstrip("/")
        if not part or found is None:
            return found
        names = [name.partition("/")[0] for name in self.result["test"] if "/" in name]
        parts = [*dict.fromkeys(names)]
        return found.of_part(parts.index(part)) if part in parts else None

    @property
    def name(self) -> str:
        """Name for messages: the cell and the run directory."""
        return f"{self.cell.name} ({self.directory.name})"


@dataclass(frozen=True)
class Mean:
    """Mean (``center``) and sample standard deviation over seeds; of one run, the 95 % interval of its error.

    With folds, ``by_fold`` is the mean over the seeds of each fold, mean and deviation are those over folds, and
    ``interval`` is that of the error of all images together, each of which is in one fold.
    """

    center: float
    std: float | None
    count: int
    interval: Interval | None = None
    by_fold: Mapping[int, float] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.interval is not None:
            low, high, over = self.interval
            runs = "" if self.by_fold else "one run; "
            return (
                f"{decimals(self.center)} ({runs}{decimals(low)} to {decimals(high)} over {over})"
            )
        if self.std is None:
            return decimals(self.center)
        spread = decimals(self.std) if _is_small(self.center) else f"{self.std:.3f}"
        return f"{decimals(self.center)} ± {spread}"

    @property
    def described_count(self) -> str:
        """The number of runs."""
        return str(self.count)


@dataclass(frozen=True)
class Median:
    """Median (``center``), smallest and largest value over seeds; infinity: not reached; ``reached``: the others."""

    center: float
    smallest: float
    largest: float
    count: int
    reached: int
    std: None = None

    def __str__(self) -> str:
        if not self.reached:
            return NOT_REACHED
        center = as_reached(self.center)
        smallest = as_reached(self.smallest)
        largest = as_reached(self.largest)
        return f"{center} ({smallest} to {largest})"

    @property
    def described_count(self) -> str:
        """The number of runs that reached the value, and of all runs: ``4 of 5``."""
        return f"{self.reached} of {self.count}"


class Point(NamedTuple):
    """The runs of an entry on one kind of data, for a figure."""

    entry: Entry
    runs: list[Run]

    @property
    def values(self) -> list[float]:
        """The values of the runs."""
        return values_of(self.runs)


NOT_REACHED = "not reached"


def as_reached(value: float) -> str:
    """Format a number for a table, without decimals from 100 on."""
    if math.isinf(value):
        return NOT_REACHED
    return f"{value:,.0f}" if value >= 100 else decimals(value)


def decimals(value: float, *, sign: str = "") -> str:
    """Format a number with two decimals; below 0.1, of which they would hide the size, with two significant digits.

    Args:
        sign: ``+`` shows the sign of positive numbers, too.
    """
    return f"{value:{sign}.2g}" if _is_small(value) else f"{value:{sign}.2f}"


def _is_small(value: float) -> bool:
    return 0 < abs(value) < 0.1


@dataclass(frozen=True)
class Entry:
    """One row in one column: its runs, and the published value.

    Attributes:
        unfinished: requested cells without a result, or without the metric of the column.
        asked: number of requested cells.
        different_hardware: two runs of the column on different hardware; the column then shows no times.
    """

    row: Row
    column: Column
    published: Published | None
    runs: tuple[Run, ...]
    unfinished: tuple[Cell, ...]
    asked: int
    different_hardware: tuple[Run, Run] | None = None

    @property
    def is_time(self) -> bool:
        """Whether the metric is a time."""
        return self.column.metric.endswith("seconds")

    def runs_on(self, *, real: bool) -> list[Run]:
        """Return the runs on real or on stand-in data."""
        return [run for run in self.runs if run.real is real]

    @property
    def ours(self) -> Mean | Median | None:
        """Statistic over runs on real data."""
        return self._statistic(self.runs_on(real=True))

    @property
    def standin(self) -> Mean | Median | None:
        """Statistic over runs on stand-in data, which are not comparable with published values."""
        return self._statistic(self.runs_on(real=False))

    def _statistic(self, runs: Sequence[Run]) -> Mean | Median | None:
        if not runs or (self.is_time and self.different_hardware):
            return None
        return _median(runs) if self.column.statistic == "median" else _mean(runs)

    @property
    def difference(self) -> float | None:
        """Our value minus the published value, which is of the whole test set; ``None`` if it was not reached."""
        ours = self.ours
        if not ours or not self.published or self.partial_test(real=True):
            return None
        if not math.isfinite(ours.center):  # not reached
            return None
        return ours.center - self.published.mean

    def partial_test(self, *, real: bool) -> str:
        """Return the size of a test that did not use the whole test set, of runs on real or on stand-in data."""
        for run in self.runs_on(real=real):
            if run.partial_test:
                return run.partial_test
        return ""

    @property
    def state(self) -> str:
        """How many of the requested runs have finished, and the status of the others."""
        if not self.row.has_runs:
            return "reported"
        counts = Counter(map(self.status_of, self.unfinished))
        parts = [f"{self.asked - len(self.unfinished)} of {self.asked}"]
        parts += [f"{count} {status}" for status, count in counts.items()]
        if self.failed:
            parts.append(f"failed checks: {', '.join(self.failed)}")
        return ", ".join(parts)

    def status_of(self, cell: Cell) -> str:
        """Return the status of an unfinished cell; one that is done has no value of the column's metric."""
        return f"without {self.column.metric}" if cell.status == DONE else cell.status

    @property
    def failed(self) -> list[str]:
        """Names of the checks of ``capsule_studies.attacks.checks`` that fail in any run."""
        names = []
        for run in self.runs:
            checks = run.result.get("checks", ())
            names += [check["name"] for check in checks if check["passed"] is False]
        return list(dict.fromkeys(names))

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs whose cost is shown: those on real data if there are any, because others may be far shorter."""
        return tuple(self.runs_on(real=True)) or self.runs

    def shared(self, key: str) -> str:
        """Return ``parameters``, ``hardware`` or another value of the ``counted`` runs; all values if they differ."""
        return "; ".join(dict.fromkeys(_as_text(run.result.get(key)) for run in self.counted))

    @property
    def data(self) -> str:
        """Names of the training data of the runs, see ``Run.data``."""
        return "; ".join(dict.fromkeys(run.data for run in self.runs))

    @property
    def minutes(self) -> float | None:
        """Mean minutes of the ``counted`` runs; ``None`` if runs of the column used different hardware."""
        if not self.runs or self.different_hardware:
            return None
        return statistics.fmean(run.minutes for run in self.counted)


def summarise(table: Table, overrides: Sequence[str] = ()) -> list[Entry]:
    """Return an entry for each row and column with runs or published values.

    Runs of the same configuration on stand-in data are added even if they are not requested. Raise a ``TableError`` if
    runs of a column on the same kind of data used different precisions.
    """
    composed: Composed = {}
    asked = expand(table, overrides, any_precision=True, composed=composed)
    standins = expand(table, overrides, any_precision=True, standin=True, composed=composed)
    asked_at = _by_place(asked)
    others_at = _by_place(_without(standins, asked))
    entries = []
    for column in table.columns:
        of_column = []
        for row in _shown(table, column, asked_at):
            place = (column.name, row.name)
            published = row.published.get(column.name)
            if asked_at[place] or published:
                entry = _entry(row, column, published, asked_at[place], others_at[place])
                of_column.append(entry)
        runs = runs_of(of_column)
        _check_precision(column, runs)
        different_hardware = _differing(runs, lambda run: run.hardware)
        entries += [replace(each, different_hardware=different_hardware) for each in of_column]
    if not entries:
        raise TableError(
            f"no row of {table.name} has runs or published values in these columns and seeds; expected others in "
            "rows=…, columns=… or seeds=…"
        )
    return entries


def _shown(
    table: Table, column: Column, cells_at: Mapping[tuple[str, str], Sequence[Cell]]
) -> list[Row]:
    """Return the rows of a column, without evaluations that measure something else.

    A question of ``analyse`` has metrics of its own, so a table of two questions has columns for each. An evaluation
    is left out if its runs have finished, and only evaluations with other overrides have the metric.
    """
    rows = [row for row in table.rows if table.commands.show(row, column)]
    finished: defaultdict[str, set[Overrides]] = defaultdict(set)
    measuring: set[Overrides] = set()
    for row in rows:
        for cell in cells_at[column.name, row.name]:
            if cell.finished and isinstance(cell, EvaluationCell):
                finished[row.name].add(cell.evaluate)
                if _measures(cell, column):
                    measuring.add(cell.evaluate)
    others = [name for name, evaluations in finished.items() if not evaluations & measuring]
    return [row for row in rows if not measuring or row.name not in others]


def _measures(cell: Cell, column: Column) -> bool:
    try:
        cell.value(column.metric)
    except TableError:
        return False
    return True


def _by_place(cells: Iterable[Cell]) -> defaultdict[tuple[str, str], list[Cell]]:
    """Group cells by the names of column and row."""
    found: defaultdict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        found[cell.column.name, cell.row.name].append(cell)
    return found


def _entry(
    row: Row,
    column: Column,
    published: Published | None,
    asked: Sequence[Cell],
    others: Sequence[Cell],
) -> Entry:
    """Return the entry of a row: ``asked`` are its requested cells, ``others`` those on stand-in data.

    The others are left out if runs on real data that began with weights of a stand-in have the place of stand-in data.
    """
    found = [_run(cell, column) for cell in asked]
    if not any(run is not None and run.is_real_after_standin for run in found):
        # a requested run may have used the stand-in, too
        counted = {run.cell.repetition for run in found if run is not None and not run.real}
        found += [_run(cell, column) for cell in others if cell.repetition not in counted]
    runs = tuple(run for run in found if run is not None)
    unfinished = tuple(_without(asked, [run.cell for run in runs]))
    return Entry(row, column, published, runs, unfinished, len(asked))


def _without(cells: Sequence[Cell], others: Sequence[Cell]) -> list[Cell]:
    """Return the cells whose configuration is not among the others."""
    known = {cell.fingerprint for cell in others}
    return [cell for cell in cells if cell.fingerprint not in known]


def runs_of(entries: Iterable[Entry]) -> list[Run]:
    """Return the runs of entries."""
    return [run for entry in entries for run in entry.runs]


def _check_precision(column: Column, runs: Sequence[Run]) -> None:
    different = _differing(runs, lambda run: run.precision)
    if different is not None:
        one, other = different
        raise TableError(
            f"column {column.label}: {one.name} has precision {one.precision}, but {other.name} {other.precision}; "
            "expected the same in a column: train all runs with one trainer.precision=…, or select runs of one "
            "precision with rows=…, columns=… or seeds=…"
        )


def _differing(runs: Sequence[Run], quantity: Callable[[Run], str]) -> tuple[Run, Run] | None:
    """Return two runs on the same kind of data that differ in ``quantity``, or ``None``; unknown values are skipped."""
    for real in (True, False):
        first: dict[str, Run] = {}
        for run in runs:
            if run.real is real and quantity(run):
                first.setdefault(quantity(run), run)
        if len(first) > 1:
            one, other, *_ = first.values()
            return one, other
    return None


def panels(entries: Iterable[Entry]) -> dict[str, list[Point]]:
    """Group the runs of entries by the title of their panel: one for each column, on real and on stand-in data."""
    found: dict[str, list[Point]] = {}
    for entry in entries:
        for real in (True, False):
            runs = entry.runs_on(real=real)
            if runs:
                title = entry.column.label + ("" if real else ", stand-in")
                found.setdefault(title, []).append(Point(entry, runs))
    return found


def values_of(runs: Iterable[Run]) -> list[float]:
    """Return the values of runs."""
    return [run.value for run in runs]


def best_runs(entries: Sequence[Entry]) -> list[Run]:
    """Return the run with the lowest error in each column, on real data if there is any.

    Of columns with the same runs only the first counts, because the metric of the others may be better if higher.
    """
    best = []
    first: dict[Overrides, Column] = {}
    for entry in entries:
        if not entry.row.by:
            first.setdefault(entry.column.overrides, entry.column)
    for column in first.values():
        runs = runs_of(entry for entry in entries if entry.column == column)
        if runs:
            best.append(min(runs, key=lambda run: (not run.real, run.value)))
    return list({run.directory: run for run in best}.values())


def _run(cell: Cell, column: Column) -> Run | None:
    try:
        value = cell.value(column.metric)
    except TableError as error:  # for example a run without test; the other runs are still shown
        log.warning("%s: %s", cell.name, error)
        return None
    if value is None or cell.finished is None:
        return None
    return Run(cell, value, *cell.finished)


def _mean(runs: Sequence[Run]) -> Mean:
    if runs[0].cell.fold is not None:
        return _over_folds(runs)
    values = values_of(runs)
    if len(values) > 1:
        return Mean(statistics.fmean(values), statistics.stdev(values), len(values))
    interval = None
    predictions = runs[0].predictions
    if predictions is not None:
        interval = interval_of_error(predictions.wrong, predictions.cluster)
    return Mean(values[0], None, 1, interval)


def _over_folds(runs: Sequence[Run]) -> Mean:
    by_fold = means_by_fold(runs)
    values = [*by_fold.values()]
    return Mean(
        center=statistics.fmean(values),
        std=statistics.stdev(values) if len(values) > 1 else None,
        count=len(runs),
        interval=_interval_over_folds(runs),
        by_fold=by_fold,
    )


def means_by_fold(runs: Iterable[Run]) -> dict[int, float]:
    """Return the mean over the runs of each fold, in the order of the folds."""
    values: defaultdict[int, list[float]] = defaultdict(list)
    for run in runs:
        assert run.cell.fold is not None
        values[run.cell.fold.index].append(run.value)
    return {fold: statistics.fmean(values[fold]) for fold in sorted(values)}


def have_same_images(runs: Sequence[Run]) -> bool:
    """Return whether runs were tested on the same images, those of each fold if there are any, as far as is known.

    Labels alone do not tell: pictures that are listed by class have the labels of others of the same classes. The runs
    may be of several rows, which may prepare the same pictures differently; see ``changed_files`` for runs of the same
    options.
    """
    labels: dict[Fold | None, Any] = {}
    for run in runs:
        if run.predictions is not None:
            label = run.predictions.label
            if not np.array_equal(label, labels.setdefault(run.cell.fold, label)):
                return False
    return len({run.drawn_by for run in runs}) <= 1


def changed_files(runs: Iterable[Run]) -> tuple[Run, Run] | None:
    """Return two runs with the same options of data whose files, such as own pictures, differ; ``None`` without any.

    The hash of a configuration covers the path of a file and not its content, so that both count as runs of the table.
    """
    first: dict[str, Run] = {}
    for run in runs:
        other = first.setdefault(run.data_options, run) if run.hashes else run
        if other.hashes != run.hashes:
            return other, run
    return None


def intervals_are_over(entries: Iterable[Entry]) -> str:
    """Return what the intervals of rows are over: test images, groups or, if rows differ, both."""
    found = {}
    for entry in entries:
        for mean in (entry.ours, entry.standin):
            if isinstance(mean, Mean) and mean.interval is not None:
                found[mean.interval.over] = True
    return " or ".join(found) or "test images"


def _interval_over_folds(runs: Sequence[Run]) -> Interval | None:
    """Return the interval of the error of all images; ``None`` if a run has no predictions, or seeds other images.

    An image that several seeds tested counts once, with the share of networks that get it wrong.
    """
    if not have_same_images(runs) or changed_files(runs):
        return None
    of_folds: defaultdict[int, list[Predictions]] = defaultdict(list)
    for run in runs:
        if run.predictions is None or run.cell.fold is None:
            return None
        of_folds[run.cell.fold.index].append(run.predictions)
    shares = []
    firsts = []
    for of_fold in of_folds.values():
        of_seeds = [predictions.wrong for predictions in of_fold]
        shares.append(np.mean(of_seeds, axis=0))
        firsts.append(of_fold[0])
    wrong = np.concatenate(shares)
    return interval_of_error(wrong, concatenated(firsts).cluster)


def _median(runs: Sequence[Run]) -> Median:
    values = values_of(runs)
    reached = sum(map(math.isfinite, values))
    return Median(statistics.median(values), min(values), max(values), len(values), reached)


def _as_text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
