"""From a table to its cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from omegaconf import DictConfig, OmegaConf

from capsule_lab import runs
from capsule_lab.config.check import check
from capsule_lab.config.compose import compose, quoted, user_message
from capsule_lab.errors import TableError
from capsule_lab.launchers.hydra_internals import override_keys
from capsule_lab.tables import evaluations
from capsule_lab.tables.cells import Cell, EvaluationCell, TrainingCell
from capsule_lab.tables.reader import check_overrides
from capsule_lab.tables.schema import NEXT_CHECKPOINT, Column, Row, Table

_Cells: TypeAlias = dict[tuple[str, str, int], Cell]  # by row, column, seed
_Composed: TypeAlias = dict[tuple[str, ...], DictConfig]  # by overrides: a tenth of a second each


def expand(table: Table, overrides: Sequence[str] = (), *, any_precision: bool = False) -> list[Cell]:
    """Every cell of a table, row by row.

    Args:
        table: what to train and evaluate.
        overrides: for every training run, over the table's.
        any_precision: see ``runs.standins.finished_run``.

    Raises:
        TableError: for overrides that do not fit together.
    """
    overrides = check_overrides("every run", overrides)
    cells: _Cells = {}
    composed: _Composed = {}  # columns and seeds that differ in nothing else share it
    for row in table.rows:
        for column in table.columns:
            new: Sequence[Cell] = []
            with _named_in_errors(row, column):
                if column.name in row.overrides:
                    new = _training_cells(table, row, column, overrides, cells, composed, any_precision)
                elif column.name in row.evaluate:
                    new = _evaluation_cells(table, row, column, cells)
            cells |= {(row.name, column.name, cell.seed): cell for cell in new}
    return list(cells.values())


def distinct(cells: Sequence[Cell]) -> list[Cell]:
    """One cell for each result: columns may show two quantities of one, rows may ask for the same."""
    first: dict[str, Cell] = {}
    for cell in cells:
        first.setdefault(cell.fingerprint, cell)
    return list(first.values())


def verify(cell: Cell) -> None:
    """Bind the cell's configuration to the signatures behind it.

    Raises:
        TableError: for an option that does not exist or a value that cannot be.
    """
    if isinstance(cell, EvaluationCell):
        with _named_in_errors(cell.row, cell.column, cell.row.by):
            evaluations.verify(cell.training.config, cell.row.by, cell.overrides)
    elif isinstance(cell, TrainingCell):
        with _named_in_errors(cell.row, cell.column):
            check(cell.config)


def merged(*lists: Sequence[str]) -> list[str]:
    """Overrides of which the last one for each key counts, where it stands."""
    overrides = [override for given in lists for override in given]
    last: dict[str, str] = {}
    for key, override in zip(override_keys(overrides), overrides, strict=True):
        last.pop(key, None)  # so that it stands behind what may contradict it
        last[key] = override
    return list(last.values())


def _training_cells(
    table: Table,
    row: Row,
    column: Column,
    overrides: Sequence[str],
    cells: _Cells,
    composed: _Composed,
    any_precision: bool,
) -> list[TrainingCell]:
    found = []
    for seed in table.seeds:
        taken, waits_for = _taken(row, column, seed, cells)
        given = tuple(merged(table.base, column.overrides, row.overrides[column.name], taken, overrides))
        if given not in composed:
            composed[given] = compose("train", given)
        config = OmegaConf.merge(composed[given], {"seed": seed})
        assert isinstance(config, DictConfig)
        fingerprint = runs.directories.config_hash(config)
        labels = tuple(_labels(table, row, column, config, fingerprint))
        own = (*given, f"seed={seed}")
        found.append(TrainingCell(row, column, seed, own, fingerprint, waits_for, config, labels, any_precision))
    return found


def _taken(row: Row, column: Column, seed: int, cells: _Cells) -> tuple[list[str], str]:
    """Overrides whose values are results of other rows, and the row that has none yet, if there is one."""
    taken, waits_for = [], ""
    for key, (other, metric) in row.takes.items():
        source = cells.get((other, column.name, seed))
        value = source.value(metric) if source else None
        if value is None:
            value, waits_for = 1.0, waits_for or other  # any number: only to compose the configuration
        taken.append(f"{key}={value!r}")
    return taken, waits_for


def _labels(table: Table, row: Row, column: Column, config: DictConfig, fingerprint: str) -> list[str]:
    """What loggers call the run, and its directory if it has several processes, each of which has to know it."""
    line = "/".join([row.name, *([column.name] if column.overrides else [])])
    names = {"group": table.name, "job_type": line, "name": line}
    loggers = [name for name, options in (config.get("logger") or {}).items() if "group" in (options or {})]
    labels = [f"logger.{logger}.{key}={value}" for logger in loggers for key, value in names.items()]
    if config.trainer.devices != 1 or config.trainer.num_nodes != 1:
        earlier = runs.directories.attempts(fingerprint)
        new = runs.directories.root() / f"{table.name}-{row.name}-{fingerprint}"
        directory = earlier[0] if earlier else new
        if earlier and runs.standins.holds_superseded(directory, config):
            directory = new.with_name(f"{new.name}-{len(earlier) + 1}")
        labels.append(f"train.directory={quoted(str(directory))}")
    return labels


def _evaluation_cells(table: Table, row: Row, column: Column, cells: _Cells) -> list[EvaluationCell]:
    found = []
    for seed, next_seed in zip(table.seeds, (*table.seeds[1:], table.seeds[0]), strict=True):
        of_next = {key for key, (_, metric) in row.takes.items() if metric == NEXT_CHECKPOINT}
        places = [(other, next_seed if key in of_next else seed) for key, (other, _) in row.takes.items()]
        sources = [cells.get((name, column.name, of)) for name, of in [(row.of, seed), *places]]
        trained = [cell for cell in sources if isinstance(cell, TrainingCell)]
        if len(trained) < len(sources) or (of_next and next_seed == seed):
            continue  # one of those rows has no runs in this column, or there is no other seed
        training, *others = trained
        taken = [f"{key}={cell.fingerprint}" for key, cell in zip(row.takes, others, strict=True)]
        evaluate = (*row.evaluate[column.name], *taken)
        weights = evaluations.weights_of(*training.finished) if training.finished else evaluations.UNKNOWN
        overrides = tuple(evaluations.command_overrides(training.config, row.by, evaluate, weights))
        fingerprint = evaluations.fingerprint(training.config, row.by, evaluate)
        waits_for = next((cell.row.name for cell in trained if not cell.finished), "")
        found.append(EvaluationCell(row, column, seed, overrides, fingerprint, waits_for, training, evaluate))
    return found


@contextmanager
def _named_in_errors(row: Row, column: Column, config_name: str = "train") -> Iterator[None]:
    """What is wrong with a configuration becomes a message that names the row."""
    try:
        yield
    except Exception as error:
        message = user_message(error, config_name)
        if message is None:
            raise
        where = f"row {row.name}{column.name and f', column {column.name}'}"
        raise TableError(f"{where}: {message}") from error
