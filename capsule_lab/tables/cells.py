"""Cells of a table: a training run, or an evaluation of its weights, for each row, column, fold and seed."""

from __future__ import annotations

import math
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any

from omegaconf import DictConfig, OmegaConf

from capsule_lab import runs
from capsule_lab.config.composition import copied, to_container
from capsule_lab.config.declaration import Command
from capsule_lab.config.overrides import search_override
from capsule_lab.errors import TableError
from capsule_lab.launchers import Job, arguments_for
from capsule_lab.runs import lock
from capsule_lab.runs.summary import recorded_run
from capsule_lab.system import protocol
from capsule_lab.tables.evaluations import result_file
from capsule_lab.tables.schema import Column, Fold, Repetition, Row, metrics_of

DONE, RUNNING, PAUSED, FAILED, MISSING, WAITING = (
    "done",
    "running",
    "paused",
    "failed",
    "missing",
    "waiting",
)


def seconds_of(result: Mapping[str, Any]) -> float:
    """Return the seconds of a training, or of an evaluation if the result is that of one."""
    return float(result.get("evaluation_seconds", result["training_seconds"]))


class SeededConfig:
    """A configuration, as returned by ``compose``, that is composed once and used for any seed."""

    def __init__(self, config: DictConfig) -> None:
        self.config = config
        self._seeded = copied(config)
        self._first = self._resolved(0)
        self._keys = list(_differing(self._first, self._resolved(1)))

    def with_seed(self, seed: int) -> DictConfig:
        """Return a copy of the configuration with this seed."""
        config = copied(self.config)
        config.seed = seed
        return config

    def container(self, seed: int) -> dict[str, Any]:
        """Return ``to_container`` of the configuration; only values that depend on the seed are resolved again."""
        self._seeded.seed = seed
        container: dict[str, Any] = {**self._first}
        for path in self._keys:
            *parents, name = path
            node = container
            for key in parents:
                node[key] = {**node[key]}
                node = node[key]
            node[name] = OmegaConf.select(self._seeded, ".".join(path))
        return container

    def _resolved(self, seed: int) -> dict[str, Any]:
        self._seeded.seed = seed
        return to_container(self._seeded)


def _differing(
    one: Mapping[str, Any], other: Mapping[str, Any], *parents: str
) -> Iterator[tuple[str, ...]]:
    for key, value in one.items():
        if isinstance(value, dict):
            yield from _differing(value, other[key], *parents, key)
        elif value != other[key]:
            yield (*parents, key)


@dataclass(frozen=True)
class Cell(ABC):
    """One result in a table.

    Attributes:
        overrides: overrides of its command.
        fingerprint: hash that identifies its result, its lock and its record of a failure.
        waits_for: name of a row whose result this cell needs and which has none yet.
        by: the command that produces its result.
        fold: the fold on which it is tested; ``None`` in a table without folds.
        sources: the cells of other rows whose results it needs.
    """

    row: Row
    column: Column
    seed: int
    overrides: tuple[str, ...]
    fingerprint: str
    waits_for: str
    by: Command
    fold: Fold | None = field(default=None, kw_only=True)
    sources: tuple[Cell, ...] = field(default=(), kw_only=True, compare=False, repr=False)

    @property
    def repetition(self) -> Repetition:
        """Fold and seed."""
        return Repetition(self.fold, self.seed)

    @property
    def command(self) -> str:
        """The command that produces exactly this result, quoted for a shell."""
        return shlex.join(["capsule-lab", self.by.name, *self.overrides, *search_override()])

    @property
    @abstractmethod
    def job(self) -> Job:
        """The job for a launcher."""

    @property
    @abstractmethod
    def directories(self) -> list[Path]:
        """Run directories of all attempts, the latest first."""

    @abstractmethod
    def _read(self) -> tuple[Path, dict[str, Any]] | None:
        """Return the run directory and the result, if there is one."""

    @property
    def name(self) -> str:
        """Name for messages: row, column if it has its own runs, fold and seed."""
        column = self.column.name if self.column.overrides else ""
        return " ".join(filter(None, (self.row.name, column, str(self.repetition))))

    @cached_property
    def finished(self) -> tuple[Path, dict[str, Any]] | None:
        """The run directory and the result of the latest finished attempt."""
        return None if self.waits_for else self._read()

    @property
    def seconds(self) -> float | None:
        """Seconds of the training, or of the evaluation if this is one; ``None`` if it has not finished."""
        return None if self.finished is None else seconds_of(self.finished[1])

    @property
    def needed(self) -> dict[str, Cell]:
        """All cells whose results lead to its own, and the cell itself, by fingerprint."""
        found: dict[str, Cell] = {self.fingerprint: self}
        for source in self.sources:
            found |= source.needed
        return found

    @cached_property
    def status(self) -> str:
        """The status: done, running or queued, paused, failed or killed, missing, or waiting for another row."""
        if self.waits_for:
            return WAITING
        if self.finished:
            return DONE
        if lock.is_locked(self.fingerprint):
            return RUNNING
        if lock.read_record(self.fingerprint):
            return FAILED
        if self.pause:
            return PAUSED
        unfinished = any(
            runs.results.read_result(path, self.fingerprint) is None for path in self.directories
        )
        return FAILED if unfinished else MISSING

    def outcome(self) -> str:
        """Describe the result of a job that has just ended, by the test error if it has one."""
        read = self._read()
        if read is None:
            return "ended without a result"
        _, result = read
        error = result["test"].get("error")
        return "done" if error is None else f"{error:.2f} %"

    @cached_property
    def pause(self) -> dict[str, Any] | None:
        """The record of the latest attempt if it is paused, see ``runs.results.read_pause``."""
        return next(
            (runs.results.read_pause(directory) for directory in self.directories[:1]), None
        )

    @property
    def described(self) -> str:
        """The status with details: progress of a paused run, the row it waits for, or runs that do not count here."""
        if self.status == PAUSED and self.pause:
            return runs.results.describe_pause(self.pause)
        if self.status == MISSING:
            read = (
                (path.name, runs.results.read_result(path, self.fingerprint))
                for path in self.directories
            )
            others = [
                f"{name} used {run.get('precision')}, {run['provenance']['name']}"
                for name, run in read
                if run
            ]
            return f"{self.status} here ({'; '.join(others)})" if others else self.status
        return f"{self.status} for {self.waits_for}" if self.waits_for else self.status

    @property
    def log(self) -> str | None:
        """The log file of an unfinished attempt."""
        record = lock.read_record(self.fingerprint)
        log_files = [directory / "train.log" for directory in self.directories]
        return (record and record.log) or next(
            (str(path) for path in log_files if path.is_file()), None
        )

    @property
    def error(self) -> str:
        """The reason for the failure, if known."""
        record = lock.read_record(self.fingerprint)
        statuses = [
            status
            for directory in self.directories
            if (status := runs.results.read_status(directory))
        ]
        recorded = next((status["error"] for status in statuses if "error" in status), None)
        return (
            (record and record.error)
            or recorded
            or "it ended without an error message, for example after kill -9 or without enough memory"
        )

    @property
    def failure(self) -> str:
        """The reason for the failure, and the log file."""
        return (
            self.error
            if not self.log or self.log in self.error
            else f"{self.error} (log: {self.log})"
        )

    def value(self, metric: str) -> float | None:
        """Return a metric such as ``test/error``; ``None`` without a result, infinity if it was not reached.

        Raise a ``TableError`` if the metric was not measured.
        """
        if self.finished is None:
            return None
        directory, result = self.finished
        split, _, name = metric.partition("/")
        measured = result.get(split)
        # other parts of a record are no metrics, such as hardware or provenance/name
        values = measured if isinstance(measured, Mapping) else {}
        value = values.get(name)
        if name not in values or not isinstance(value, (int, float, NoneType)):
            splits = ("test", "val", "time_to_accuracy", "at_equal_error", *metrics_of(self.by))
            known = [f"{split}/{name}" for split in splits for name in result.get(split, {})]
            raise TableError(f"{directory} has no {metric}; expected one of {', '.join(known)}")
        if value is None and split != "time_to_accuracy":  # e.g. success, if no image was right
            return None
        return math.inf if value is None else float(value)  # see callbacks.TimeToAccuracy


@dataclass(frozen=True)
class TrainingCell(Cell):
    """One training run.

    Attributes:
        composed: its configuration for any seed.
        labels: more overrides, for loggers and for several processes; they do not change the result.
        any_precision: see ``runs.select_run.finished_run``.
    """

    composed: SeededConfig = field(compare=False, repr=False)
    labels: tuple[str, ...] = ()
    any_precision: bool = False

    @property
    def job(self) -> Job:
        """The job, which continues an earlier attempt, or does nothing if that has finished."""
        overrides = [*self.overrides, *self.labels, *search_override(), "train.resume=true"]
        arguments = arguments_for(self.by.name, overrides)
        return Job(
            self.name,
            arguments,
            self.config,
            self.fingerprint,
            outcome=self.outcome,
            record=self.latest_record,
        )

    def latest_record(self) -> Mapping[str, Any]:
        """Return the record of the latest run, finished or paused, as it is on disk now."""
        _, record = recorded_run(self.config)
        return record

    @cached_property
    def config(self) -> DictConfig:
        """The configuration with the seed of the cell."""
        return self.composed.with_seed(self.seed)

    @property
    def directories(self) -> list[Path]:
        return runs.directories.attempts(self.fingerprint)

    def _read(self) -> tuple[Path, dict[str, Any]] | None:
        if not self.directories:
            return None
        config = self.composed.config  # of any seed: data and precision do not depend on it
        return runs.select_run.finished_run(
            config, self.fingerprint, any_precision=self.any_precision
        )

    def value(self, metric: str) -> float | None:
        if self.finished is None or not metric.startswith("train/"):
            return super().value(metric)
        directory, result = self.finished
        from capsule_lab.analysis.curves import (
            LARGEST,
            read_curves,
        )  # imports matplotlib, for a second

        values = read_curves(directory / "metrics.csv", result.get("curves")).numbers(metric)
        if not values:
            raise TableError(
                f"{directory} has no {metric} in its metrics.csv; expected a metric such as train/error"
            )
        if not abs(values[-1]) < LARGEST:
            raise TableError(
                f"{directory} has {metric} {values[-1]} in its metrics.csv; expected a finite number"
            )
        return float(values[-1])


@dataclass(frozen=True)
class EvaluationCell(Cell):
    """One evaluation of the weights of a training cell, see ``capsule_lab.tables.evaluations``.

    Attributes:
        evaluate: overrides of the evaluation, as in the table.
    """

    training: TrainingCell
    evaluate: tuple[str, ...]

    @property
    def job(self) -> Job:
        """The job, which writes its result to the file that ``_read`` reads."""
        assert self.training.finished
        path = result_file(self.training.finished[0], self.fingerprint)
        arguments = arguments_for(self.by.name, [*self.overrides, *search_override()])
        environment = {protocol.RESULT: str(path)}
        return Job(
            self.name,
            arguments,
            self.training.config,
            self.fingerprint,
            environment,
            outcome=self.outcome,
        )

    @property
    def directories(self) -> list[Path]:
        return []

    def _read(self) -> tuple[Path, dict[str, Any]] | None:
        """Return the training run's directory and result, with the evaluation in place of the run's test."""
        if self.training.finished is None:
            return None
        directory, trained = self.training.finished
        path = result_file(directory, self.fingerprint)
        assert self.by.measures
        evaluated = runs.results.read_evaluation(path, self.by.measures.result)
        if evaluated is None:
            return None
        if trained["provenance"]["source"] != "real":  # then the evaluation counts as stand-in
            evaluated["provenance"] = trained["provenance"]
        of_its_test: dict[str, Any] = {
            "test": {},
            "val": {},
            "image_counts": {},
            "predictions": None,
        }
        return directory, {**trained, **of_its_test, **evaluated}
