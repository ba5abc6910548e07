"""Cells of a table: one training run for each row, column and seed, and how far each of them is."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from capsule_lab import runs
from capsule_lab.check import check
from capsule_lab.config import compose, user_message
from capsule_lab.errors import TableError
from capsule_lab.runs import lock
from capsule_lab.tables.schema import Column, Row, Table, for_runs

DONE, RUNNING, FAILED, MISSING, WAITING = "done", "running", "failed", "missing", "waiting"
STAND_IN = "data.source=standin"


@dataclass(frozen=True)
class Cell:
    """One training run that a table asks for.

    Attributes:
        overrides: of ``python -m capsule_lab.train``.
        fingerprint: the hash of its configuration, by which its runs are found.
        waits_for: a row whose result this one needs and does not have yet.
        labels: more overrides, for dashboards and for runs of several processes; they decide nothing.
    """

    row: Row
    column: Column
    seed: int
    overrides: tuple[str, ...]
    fingerprint: str
    waits_for: str = ""
    labels: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For people: row, column if it has runs of its own, seed."""
        column = self.column.name if self.column.overrides else ""
        return " ".join(filter(None, (self.row.name, column, f"seed {self.seed}")))

    @property
    def command(self) -> str:
        """What makes this very run, as one would type it."""
        return shlex.join(["python", "-m", "capsule_lab.train", *self.overrides])

    @property
    def job(self) -> tuple[str, ...]:
        """The overrides for a sweep, which goes on where an earlier attempt stopped, and not beyond the end."""
        return (*self.overrides, *self.labels, "train.resume=true")

    @cached_property
    def finished(self) -> tuple[Path, dict[str, Any]] | None:
        """The directory and the results of the latest run that came to its end."""
        if self.waits_for:
            return None
        results = ((directory, runs.results.read_result(directory, self.fingerprint)) for directory in self.directories)
        return next(((directory, result) for directory, result in results if result is not None), None)

    @property
    def directories(self) -> list[Path]:
        """All its runs, the latest first."""
        return runs.directories.attempts(self.fingerprint)

    @cached_property
    def status(self) -> str:
        """How far it is: done, running (also: to go on), failed (also: killed), missing, or waiting for another row."""
        if self.waits_for:
            return WAITING
        if self.finished:
            return DONE
        if lock.is_locked(self.fingerprint):
            return RUNNING
        return FAILED if self.directories or lock.read_record(self.fingerprint) else MISSING

    @property
    def log(self) -> str | None:
        """Where to read what an unfinished run said."""
        record = lock.read_record(self.fingerprint)
        own = [directory / "train.log" for directory in self.directories]
        return (record and record.log) or next((str(path) for path in own if path.is_file()), None)

    @property
    def error(self) -> str:
        """Why it failed, as far as it is known."""
        record = lock.read_record(self.fingerprint)
        return (record and record.error) or "it ended without a word, as after kill -9 or for lack of memory"

    @property
    def failure(self) -> str:
        """Why it failed, and where to read on."""
        return self.error if not self.log or self.log in self.error else f"{self.error} (log: {self.log})"

    def value(self, metric: str) -> float | None:
        """A quantity such as ``test/error`` of the finished run; ``None`` if there is none.

        Raises:
            TableError: if the run did not measure it.
        """
        if self.finished is None:
            return None
        directory, result = self.finished
        split, _, name = metric.partition("/")
        if split == "train":
            return _last_in_training(directory, metric)
        if name not in result.get(split, {}):
            raise TableError(f"{directory} has no {metric}; expected one of {_metrics(result)}")
        return float(result[split][name])


def expand(table: Table, words: Sequence[str] = ()) -> list[Cell]:
    """Every cell of a table, row by row.

    Args:
        table: what to train.
        words: overrides for every cell, which win over the table's.

    Raises:
        TableError: for overrides that do not fit together.
    """
    words = for_runs("every run", words)
    cells: dict[tuple[str, str, int], Cell] = {}
    for row in table.rows:
        for column in (column for column in table.columns if column.name in row.overrides):
            for cell in _seeds(table, row, column, words, cells):
                cells[row.name, column.name, cell.seed] = cell
    return list(cells.values())


def distinct(cells: Sequence[Cell]) -> list[Cell]:
    """One cell for each run: columns may show two quantities of one."""
    return list({cell.fingerprint: cell for cell in reversed(cells)}.values())[::-1]


def verify(cell: Cell) -> DictConfig:
    """Compose the cell's configuration and bind it to the signatures behind it.

    Raises:
        TableError: for an option that does not exist or a value that cannot be.
    """
    try:
        config = compose("train", cell.overrides)
        check(config)
    except Exception as error:
        raise _refused(cell.row, cell.column, error) from error
    return config


def merged(*lists: Sequence[str]) -> list[str]:
    """Overrides of which the last one for each key counts, where it stands."""
    words = [word for words in lists for word in words]
    keys = [override.get_key_element().lstrip("+~") for override in OverridesParser.create().parse_overrides(words)]
    last: dict[str, str] = {}
    for key, word in zip(keys, words, strict=True):
        last.pop(key, None)  # so that it stands behind what may contradict it
        last[key] = word
    return list(last.values())


def _seeds(
    table: Table, row: Row, column: Column, words: Sequence[str], cells: dict[tuple[str, str, int], Cell]
) -> Iterator[Cell]:
    config: DictConfig | None = None
    for seed in table.seeds:
        taken, waits_for = [], ""
        for key, (other, metric) in row.takes.items():
            source = cells.get((other, column.name, seed))
            value = source.value(metric) if source else None
            waits_for = waits_for or ("" if value is not None else other)
            taken.append(f"{key}={1.0 if value is None else value!r}")  # 1.0 only stands there while it is not known
        try:
            overrides = merged(table.base, column.overrides, row.overrides[column.name], taken, words, [f"seed={seed}"])
            if config is None or taken:
                config = compose("train", overrides)
        except Exception as error:
            raise _refused(row, column, error) from error
        config.seed = seed  # composing takes longer than all the rest
        line = "/".join([row.name, *([column.name] if column.overrides else [])])
        named = {"group": table.name, "job_type": line, "name": f"{line}/{seed}"}
        loggers = [name for name, options in (config.get("logger") or {}).items() if "group" in options]
        labels = [f"logger.{logger}.{key}={value}" for logger in loggers for key, value in named.items()]
        fingerprint = runs.directories.config_hash(config)
        if config.trainer.devices != 1 or config.trainer.num_nodes != 1:  # all processes have to know where
            new = runs.directories.root() / f"{table.name}-{row.name}-{fingerprint}"
            directory = next(iter(runs.directories.attempts(fingerprint)), new)
            labels.append(f"train.directory={json.dumps(str(directory), ensure_ascii=False)}")
        yield Cell(row, column, seed, tuple(overrides), fingerprint, waits_for, tuple(labels))


def _refused(row: Row, column: Column, error: Exception) -> Exception:
    sentence = user_message(error)
    where = f"row {row.name}{column.name and f', column {column.name}'}"
    return TableError(f"{where}: {sentence}") if sentence else error


def _last_in_training(directory: Path, metric: str) -> float:
    column = pd.read_csv(directory / "metrics.csv").get(metric)
    if column is None:
        raise TableError(f"{directory} has no {metric} in its metrics.csv; expected such as train/error")
    return float(column.dropna().iloc[-1])


def _metrics(result: dict[str, Any]) -> str:
    return ", ".join(f"{split}/{name}" for split in ("test", "validation") for name in result.get(split, {}))
