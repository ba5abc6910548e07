"""Run a table: launch cells without a result, then cells that need the results of other cells."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.markup import escape

from capsule_lab.errors import TableError
from capsule_lab.launchers import Job
from capsule_lab.runs import lock
from capsule_lab.tables.cells import (
    DONE,
    FAILED,
    MISSING,
    PAUSED,
    RUNNING,
    WAITING,
    Cell,
    TrainingCell,
)
from capsule_lab.tables.expand import distinct, expand, verify
from capsule_lab.tables.schema import Table

log = logging.getLogger(__name__)

Launch = Callable[[Sequence[Job], float], Mapping[str, str | None]]
"""Method of a launcher that runs jobs until a deadline and returns, by fingerprint, errors of the started jobs."""

_STYLES = {
    DONE: "green",
    RUNNING: "cyan",
    PAUSED: "blue",
    FAILED: "red",
    MISSING: "yellow",
    WAITING: "dim",
}
_TO_LAUNCH = (PAUSED, FAILED, MISSING)


def run_table(
    table: Table, overrides: Sequence[str], launch: Launch, deadline: float = math.inf
) -> None:
    """Launch every unfinished cell; cells that wait for another row start as soon as it has a result.

    Paused runs continue first; the others follow in the order of the table. ``launch`` returns when all started jobs
    have ended, and starts none after the deadline, as of ``time.time``: the next command runs the other cells. Raise a
    ``TableError`` before anything is launched, if overrides cannot work; at the end, if a run failed, or if runs were
    paused and none has made a step.
    """
    cells = distinct(expand(table, overrides))
    # read now, because a cell reads its record of a pause only when asked for it, and jobs write new ones
    progress_before = _progress(cells)
    log.info("%s: %s", table.name, _counted(cells))
    for cell in _one_of_each(_with_status(cells, *_TO_LAUNCH, WAITING)):
        verify(cell)
    tried: set[str] = set()
    while time.time() < deadline:
        to_launch = _with_status(cells, *_TO_LAUNCH)
        remaining = [cell for cell in to_launch if cell.fingerprint not in tried]
        if not remaining:
            break
        remaining.sort(key=lambda cell: cell.status != PAUSED)
        failures = launch([cell.job for cell in remaining], deadline)
        tried |= failures.keys()
        cells = distinct(expand(table, overrides))
        _record_failures(cells, failures)
    log.info("%s: %s", table.name, _counted(cells))
    stopped = time.time() >= deadline
    if stopped:
        _raise_if_failed(table, cells, [cell for cell in cells if cell.fingerprint in tried])
    else:
        _raise_if_failed(table, cells, cells)
    if stopped or _with_status(cells, PAUSED):
        _raise_if_nothing_done(table, progress_before, cells)
        log.info("%s: %s", table.name, _left(cells))


def show_plan(table: Table, overrides: Sequence[str]) -> None:
    """Print the status and the command of every cell; first build its network, but without weights, as a check."""
    from capsule_lab.config.build import build_without_weights

    cells = distinct(expand(table, overrides))
    console = Console(highlight=False)
    for cell in _one_of_each(cells):
        verify(cell)
        if isinstance(cell, TrainingCell):
            build_without_weights(cell.config)
    for cell in cells:
        status = f"[{_STYLES[cell.status]}]{cell.described}[/]"
        console.print(f"{status}  {escape(cell.name)}", soft_wrap=True)
        console.print(f"    {cell.command}", markup=False, soft_wrap=True)
        if cell.status == FAILED:
            console.print(f"    {cell.failure}", markup=False, soft_wrap=True)
    console.print(f"{table.name}: {_counted(cells)}", markup=False)


def _with_status(cells: Sequence[Cell], *statuses: str) -> list[Cell]:
    return [cell for cell in cells if cell.status in statuses]


def _record_failures(cells: Sequence[Cell], failures: Mapping[str, str | None]) -> None:
    """Record the errors of jobs that could not do so: they were killed, or rejected before their run started."""
    for cell in cells:
        error = failures.get(cell.fingerprint)
        if error and not cell.finished:
            lock.record_failure(cell.fingerprint, error)
            vars(cell).pop("status", None)


def _one_of_each(cells: Sequence[Cell]) -> list[Cell]:
    """Return one cell per row and column, because seeds do not affect whether a configuration works."""
    return list({(cell.row.name, cell.column.name): cell for cell in cells}.values())


def _raise_if_failed(table: Table, cells: Sequence[Cell], tried: Sequence[Cell]) -> None:
    failed = _with_status(tried, FAILED)
    if failed:
        listed = "; ".join(f"{cell.name}: {cell.failure}" for cell in failed)
        raise TableError(
            f"{len(failed)} of {len(cells)} runs of {table.name} failed; the same command repeats them: {listed}"
        )


def _raise_if_nothing_done(
    table: Table, progress_before: Sequence[tuple[bool, int]], cells: Sequence[Cell]
) -> None:
    """Raise an error if no run made progress, because repeating the command would never end."""
    is_complete = len(_with_status(cells, DONE)) == len(cells)
    if not is_complete and progress_before == _progress(cells):
        raise TableError(
            f"no run of {table.name} made a step or was tested before the time was over, which includes starting up; "
            "expected a larger budget=… or trainer.max_time=…"
        )


def _progress(cells: Sequence[Cell]) -> list[tuple[bool, int]]:
    """Return whether each cell is done, and the number of steps of a paused run."""
    found = []
    for cell in cells:
        steps = cell.pause["steps"] if cell.pause else 0
        found.append((cell.status == DONE, steps))
    return found


def _left(cells: Sequence[Cell]) -> str:
    """Describe the remaining runs when the time is over."""
    counts = Counter(cell.status for cell in cells)
    complete = f"{counts[DONE]} of {len(cells)} runs complete"
    if counts[DONE] == len(cells):
        return complete
    not_started = counts[MISSING] + counts[WAITING]
    left = f"{counts[PAUSED]} paused, {not_started} not started"
    for status in (RUNNING, FAILED):
        if counts[status]:
            left += f", {counts[status]} {status}"
    return f"{complete}, {left}; the same command continues"


def _counted(cells: Sequence[Cell]) -> str:
    counts = Counter(cell.status for cell in cells)
    return ", ".join(f"{counts[status]} {status}" for status in _STYLES if counts[status])
