"""Run a table: cells without a result go to a launcher, then those that needed results of other cells."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from capsule_lab.build import build_without_weights
from capsule_lab.errors import TableError
from capsule_lab.launchers.hydra_internals import error_of
from capsule_lab.runs import lock
from capsule_lab.tables.cells import DONE, FAILED, MISSING, RUNNING, WAITING, Cell, TrainingCell
from capsule_lab.tables.expand import distinct, expand, verify
from capsule_lab.tables.schema import Table

log = logging.getLogger(__name__)

Launch = Callable[[Sequence[Sequence[str]], int], Sequence[Any]]
"""``launch`` of Hydra's launchers: overrides of every job, and the number of the first."""

_STYLES = {DONE: "green", RUNNING: "cyan", FAILED: "red", MISSING: "yellow", WAITING: "dim"}


def run_table(table: Table, overrides: Sequence[str], launch: Launch, more: Sequence[str] = ()) -> None:
    """Launch every cell that is not complete, those that wait for another row as soon as it has a result.

    Args:
        table: what to train and evaluate.
        overrides: for every training run, over the table's.
        launch: runs jobs, and returns when all have ended.
        more: overrides of every job that do not change its result.

    Raises:
        TableError: before anything is launched for overrides that cannot work, and at the end if a run failed.
    """
    cells = distinct(expand(table, overrides))
    log.info("%s: %s", table.name, _counted(cells))
    for cell in _one_of_each([cell for cell in cells if cell.status in (FAILED, MISSING, WAITING)]):
        verify(cell)
    tried: set[str] = set()
    while left := [cell for cell in cells if cell.status in (FAILED, MISSING) and cell.fingerprint not in tried]:
        ended = launch([[*cell.job, *more] for cell in left], len(tried))
        for cell, job in zip(left, ended, strict=True):
            if (error := error_of(job)) is not None:
                lock.record_failure(cell.fingerprint, str(error))
        tried |= {cell.fingerprint for cell in left}
        cells = distinct(expand(table, overrides))
    log.info("%s: %s", table.name, _counted(cells))
    _raise_if_failed(table, cells)


def show_plan(table: Table, overrides: Sequence[str]) -> None:
    """Print the status and the command of every cell, after building its network as in a run, but without weights."""
    cells = distinct(expand(table, overrides))
    console = Console(highlight=False)
    for cell in _one_of_each(cells):
        verify(cell)
        if isinstance(cell, TrainingCell):
            build_without_weights(cell.config)
    for cell in cells:
        waiting = f" for {cell.waits_for}" if cell.waits_for else ""
        console.print(f"[{_STYLES[cell.status]}]{cell.status}{waiting}[/]  {escape(cell.name)}", soft_wrap=True)
        console.print(f"    {cell.command}", markup=False, soft_wrap=True)
        if cell.status == FAILED:
            console.print(f"    {cell.failure}", markup=False, soft_wrap=True)
    console.print(f"{table.name}: {_counted(cells)}", markup=False)


def _one_of_each(cells: Sequence[Cell]) -> list[Cell]:
    """Seeds change nothing about whether a configuration can work."""
    return list({(cell.row.name, cell.column.name): cell for cell in cells}.values())


def _raise_if_failed(table: Table, cells: Sequence[Cell]) -> None:
    failed = [cell for cell in cells if cell.status == FAILED]
    if failed:
        listed = "; ".join(f"{cell.name}: {cell.failure}" for cell in failed)
        raise TableError(
            f"{len(failed)} of {len(cells)} runs of {table.name} failed, the same command tries them again: {listed}"
        )


def _counted(cells: Sequence[Cell]) -> str:
    found = Counter(cell.status for cell in cells)
    return ", ".join(f"{found[status]} {status}" for status in _STYLES if found[status])
