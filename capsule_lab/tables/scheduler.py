"""Sweep a table: what is left of it goes to a launcher, and again while a result makes more of it possible."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hydra.core.utils import JobStatus
from rich.console import Console

from capsule_lab.build import build_without_weights
from capsule_lab.errors import TableError
from capsule_lab.runs import lock
from capsule_lab.tables.cells import DONE, FAILED, MISSING, RUNNING, WAITING, Cell, distinct, expand, verify
from capsule_lab.tables.schema import Table, chosen, read

log = logging.getLogger(__name__)

Launch = Callable[[Sequence[Sequence[str]], int], Sequence[Any]]
"""``launch`` of Hydra's launchers: overrides of every job, and the number of the first."""

_STYLES = {DONE: "green", RUNNING: "cyan", FAILED: "red", MISSING: "yellow", WAITING: "dim"}


def chosen_table(name: str | None, selection: Mapping[str, Any]) -> Table:
    """The rows, columns and seeds of a table that were asked for.

    Raises:
        TableError: if there is no such table, row or column.
    """
    return chosen(read(name), **selection)


def train_all(table: Table, words: Sequence[str], launch: Launch, more: Sequence[str] = ()) -> None:
    """Launch every cell that is not complete, those that wait for another row as soon as they can be.

    Args:
        table: what to train.
        words: overrides for every cell, over the table's.
        launch: runs jobs, and returns when all have ended.
        more: overrides that decide nothing about a result.

    Raises:
        TableError: when all has been tried, if a run failed.
    """
    tried: set[str] = set()
    while True:
        cells = distinct(expand(table, words))
        if not tried:
            log.info("%s: %s", table.name, _counted(cells))
        left = [cell for cell in cells if cell.status in (FAILED, MISSING) and cell.fingerprint not in tried]
        if not left:
            break
        for cell in _one_of_each(left):
            verify(cell)  # before anything is launched
        ended = launch([[*cell.job, *more] for cell in left], len(tried))
        for cell, job in zip(left, ended, strict=True):
            if job.status is JobStatus.FAILED:
                lock.record_failure(cell.fingerprint, str(job._return_value))
        tried |= {cell.fingerprint for cell in left}
    _tell(table, cells)


def show_plan(table: Table, words: Sequence[str]) -> None:
    """The status and the command of every cell, whose network is built, but for its weights, as in a real run."""
    cells = distinct(expand(table, words))
    console = Console(highlight=False)
    for cell in _one_of_each(cells):
        build_without_weights(verify(cell))
    for cell in cells:
        waiting = f" for {cell.waits_for}" if cell.waits_for else ""
        console.print(f"[{_STYLES[cell.status]}]{cell.status}{waiting}[/]  {cell.name}", soft_wrap=True)
        console.print(f"    {cell.command}", markup=False, soft_wrap=True)
        if cell.status == FAILED:
            console.print(f"    {cell.failure}", markup=False, soft_wrap=True)
    console.print(f"{table.name}: {_counted(cells)}")


def _one_of_each(cells: Sequence[Cell]) -> list[Cell]:
    """Seeds change nothing about whether a configuration can work."""
    return list({(cell.row.name, cell.column.name): cell for cell in cells}.values())


def _tell(table: Table, cells: Sequence[Cell]) -> None:
    log.info("%s: %s", table.name, _counted(cells))
    failed = [cell for cell in cells if cell.status == FAILED]
    if failed:
        listed = "; ".join(f"{cell.name}: {cell.failure}" for cell in failed)
        raise TableError(
            f"{len(failed)} of {len(cells)} runs of {table.name} failed, the same command tries them again: {listed}"
        )


def _counted(cells: Sequence[Cell]) -> str:
    found = Counter(cell.status for cell in cells)
    return ", ".join(f"{found[status]} {status}" for status in _STYLES if found[status])
