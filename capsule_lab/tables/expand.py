"""Expansion of a table into its cells."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.progress import track

from capsule_lab import runs
from capsule_lab.config.check_options import check_options
from capsule_lab.config.compose import compose
from capsule_lab.config.composition import copied
from capsule_lab.config.declaration import Command
from capsule_lab.config.folders import groups
from capsule_lab.config.messages import user_message
from capsule_lab.config.overrides import names_for_loggers, quoted
from capsule_lab.errors import ConfigError, TableError
from capsule_lab.tables import evaluations
from capsule_lab.tables.cells import Cell, EvaluationCell, SeededConfig, TrainingCell
from capsule_lab.tables.reader import check_overrides
from capsule_lab.tables.schema import NEXT_CHECKPOINT, Column, Repetition, Row, Table

STANDIN = "data.source=standin"
"""Override of the runs on stand-in data, which a report adds to the requested runs."""

_Cells: TypeAlias = dict[tuple[str, str, Repetition], Cell]  # by row and column
Composed: TypeAlias = dict[tuple[str, ...], SeededConfig]
"""Composed configurations by overrides, which several expansions of a table can share."""


def expand(
    table: Table,
    overrides: Sequence[str] = (),
    *,
    any_precision: bool = False,
    standin: bool = False,
    composed: Composed | None = None,
) -> list[Cell]:
    """Return every cell of a table, row by row; raise a ``TableError`` if overrides do not fit together.

    Args:
        overrides: for every training run; they take precedence over those of the table.
        any_precision: see ``runs.select_run.finished_run``.
        standin: whether all runs are on stand-in data, regardless of the overrides.
        composed: configurations that are already composed; new ones are added.
    """
    overrides = check_overrides("every run", overrides, table.folds)
    options = _Options(
        table, overrides, any_precision, standin, {} if composed is None else composed
    )
    cells: _Cells = {}
    progress = Console(stderr=True)
    for row in track(
        table.rows, "planning", console=progress, transient=True, disable=not progress.is_terminal
    ):
        for column in table.columns:
            new: Sequence[Cell] = []
            with _named_in_errors(row, column, table.commands.training):
                if column.name in row.overrides:
                    new = _training_cells(options, row, column, cells)
                elif column.name in row.evaluate:
                    new = _evaluation_cells(table, row, column, cells)
            cells |= {(row.name, column.name, cell.repetition): cell for cell in new}
    return list(cells.values())


def distinct(cells: Sequence[Cell]) -> list[Cell]:
    """Return one cell per result: several columns or rows may show the same result."""
    first: dict[str, Cell] = {}
    for cell in cells:
        first.setdefault(cell.fingerprint, cell)
    return list(first.values())


def verify(cell: Cell) -> None:
    """Check the cell's configuration; raise a ``TableError`` for an unknown option or an invalid value."""
    if isinstance(cell, EvaluationCell):
        with _named_in_errors(cell.row, cell.column, cell.by):
            evaluations.verify(cell.training.config, cell.by, cell.overrides)
    elif isinstance(cell, TrainingCell):
        with _named_in_errors(cell.row, cell.column, cell.by):
            cell.by.check(cell.config)


def merged(*lists: Sequence[str]) -> list[str]:
    """Merge overrides: only the last one for each key remains, in its place."""
    last: dict[str, str] = {}
    for override in (override for overrides in lists for override in overrides):
        key = _key(override)
        last.pop(key, None)  # so that it follows overrides that may contradict it
        last[key] = override
    return list(last.values())


@functools.cache
def _key(override: str) -> str:
    """Return the key: ``a.b`` for ``+a.b=1`` and ``~a.b``; everything before ``=`` for ``group@package=option``."""
    (parsed,) = OverridesParser.create().parse_overrides([override])
    return str(parsed.get_key_element()).lstrip("+~")


class _Options(NamedTuple):
    """Arguments of ``expand``."""

    table: Table
    overrides: Sequence[str]
    any_precision: bool
    standin: bool
    composed: Composed


def _training_cells(
    options: _Options, row: Row, column: Column, cells: _Cells
) -> list[TrainingCell]:
    table, overrides, any_precision, standin, composed = options
    cells_of_row = []
    for repetition in table.repetitions:
        fold, seed = repetition
        taken = _taken(row, column, repetition, cells)
        of_row = row.overrides[column.name]
        of_fold = [] if fold is None else fold.overrides
        chosen = tuple(
            merged(table.base, column.overrides, of_row, taken.overrides, overrides, of_fold)
        )
        config = _composed(table.commands.training, chosen, composed)
        if standin and "source" in config.config.data:
            chosen = tuple(merged(chosen, [STANDIN]))
            config = _composed(table.commands.training, chosen, composed)
        fingerprint = runs.directories.config_hash(config.container(seed))
        labels = tuple(_labels(table, row, column, config, seed, fingerprint))
        seeded = (*chosen, f"seed={seed}")
        cells_of_row.append(
            TrainingCell(
                row,
                column,
                seed,
                seeded,
                fingerprint,
                taken.waits_for,
                table.commands.training,
                config,
                labels,
                any_precision,
                fold=fold,
                sources=taken.sources,
            )
        )
    return cells_of_row


def _composed(training: Command, overrides: tuple[str, ...], composed: Composed) -> SeededConfig:
    """Compose a configuration; overrides that differ only in values of keys share a composition."""
    if overrides not in composed:
        config = _with_values(training, overrides, composed) or compose(training, overrides)
        composed[overrides] = SeededConfig(config)
    return composed[overrides]


def _with_values(
    training: Command, overrides: tuple[str, ...], composed: Composed
) -> DictConfig | None:
    """Set the values in a composition of the chosen groups; return ``None`` if Hydra must compose all of it."""
    values = [
        entry
        for entry in overrides
        if _key(entry) not in groups() and not entry.startswith(("hydra", "+", "~"))
    ]
    chosen = tuple(override for override in overrides if override not in values)
    if not values or any(override.startswith(("+", "~")) for override in chosen):
        return None
    try:
        config = copied(_composed(training, chosen, composed).config)
        for override in OverridesParser.create().parse_overrides(values):
            OmegaConf.update(config, override.key_or_group, override.value())
        check_options(config, training)
    except (ConfigError, HydraException, OmegaConfBaseException):
        return None  # composing all of it gives the error message
    return config


class _Taken(NamedTuple):
    """What a training takes from other rows.

    Attributes:
        overrides: keys with the results of other rows.
        waits_for: the first row without a result, or ``""``.
        sources: the cells of the other rows.
    """

    overrides: list[str]
    waits_for: str
    sources: tuple[Cell, ...]


def _taken(row: Row, column: Column, repetition: Repetition, cells: _Cells) -> _Taken:
    overrides, waits_for = [], ""
    sources = []
    for key, (other, metric) in row.takes.items():
        source = cells.get((other, column.name, repetition))
        value = None
        if source is not None:
            sources.append(source)
            value = source.value(metric)
        if value is None:
            value, waits_for = (
                1.0,
                waits_for or other,
            )  # any number, needed only to compose the configuration
        overrides.append(f"{key}={value!r}")
    return _Taken(overrides, waits_for, tuple(sources))


def _labels(
    table: Table, row: Row, column: Column, config: SeededConfig, seed: int, fingerprint: str
) -> list[str]:
    """Return overrides with the names of the run for loggers; for several processes, also with its directory."""
    line = "/".join([row.name, *([column.name] if column.overrides else [])])
    names = {"group": table.name, "job_type": line, "name": line}
    labels = names_for_loggers(config.config, names)
    if (config.config.trainer.devices, config.config.trainer.num_nodes) != (1, 1):
        earlier = runs.directories.attempts(fingerprint)
        new = runs.directories.root() / f"{table.name}-{row.name}-{fingerprint}"
        directory = earlier[0] if earlier else new
        if earlier and runs.select_run.is_outdated(directory, config.with_seed(seed)):
            directory = new.with_name(f"{new.name}-{len(earlier) + 1}")
        labels.append(f"train.directory={quoted(str(directory))}")
    return labels


def _evaluation_cells(
    table: Table, row: Row, column: Column, cells: _Cells
) -> list[EvaluationCell]:
    cells_of_row = []
    following = dict(zip(table.seeds, (*table.seeds[1:], table.seeds[0]), strict=True))
    for repetition in table.repetitions:
        fold, seed = repetition
        next_seed = following[seed]
        of_next = {key for key, (_, metric) in row.takes.items() if metric == NEXT_CHECKPOINT}
        places = [(row.of, repetition)]
        for key, (other, _) in row.takes.items():
            places.append((other, Repetition(fold, next_seed) if key in of_next else repetition))
        sources = [cells.get((name, column.name, source)) for name, source in places]
        trained = [cell for cell in sources if isinstance(cell, TrainingCell)]
        if len(trained) < len(sources) or (of_next and next_seed == seed):
            continue  # a source row has no runs in this column, or there is only one seed
        training, *others = trained
        taken = [f"{key}={cell.fingerprint}" for key, cell in zip(row.takes, others, strict=True)]
        evaluate = (*row.evaluate[column.name], *taken)
        weights, *weights_of_others = map(_weights, trained)
        of_others = dict(zip((cell.fingerprint for cell in others), weights_of_others, strict=True))
        container = training.composed.container(training.seed)
        command = table.commands.of(row)
        overrides = tuple(
            evaluations.command_overrides(container, command, evaluate, weights, of_others)
        )
        fingerprint = evaluations.fingerprint(container, command, evaluate)
        waits_for = next((cell.row.name for cell in trained if not cell.finished), "")
        cells_of_row.append(
            EvaluationCell(
                row,
                column,
                seed,
                overrides,
                fingerprint,
                waits_for,
                command,
                training,
                evaluate,
                fold=fold,
                sources=tuple(trained),
            )
        )
    return cells_of_row


def _weights(cell: TrainingCell) -> str:
    """Return the file of the weights of the attempt that the table counts."""
    return evaluations.weights_of(*cell.finished) if cell.finished else evaluations.UNKNOWN


@contextmanager
def _named_in_errors(row: Row, column: Column, command: Command) -> Iterator[None]:
    """Add row and column to the message of a configuration error."""
    try:
        yield
    except Exception as error:
        message = user_message(error, command)
        if message is None:
            raise
        where = f"row {row.name}{column.name and f', column {column.name}'}"
        raise TableError(f"{where}: {message}") from error
