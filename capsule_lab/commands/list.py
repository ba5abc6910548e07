"""List the runs: ``capsule-lab list``."""

from __future__ import annotations

import os
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from capsule_lab import runs
from capsule_lab.commands.declare import command
from capsule_lab.commands.tables import in_tables
from capsule_lab.config import presets
from capsule_lab.config.declaration import Count, Options, Place
from capsule_lab.errors import printable
from capsule_lab.runs import lock
from capsule_lab.system.terminal import aligned, cut, differences

HEADINGS = ("run", "state", "test error", "val error", "data", "last written")
_LEAST = 20  # ours: characters for overrides beside the columns; with fewer, they are on a line of their own


class ListOptions(Options):
    """Options of ``list``."""

    contains: Any = ""
    """Only runs whose directory or overrides contain this text; with = in it, contains="'seed=3'"."""
    last: Count = 50  # ours: a screen or two
    """Maximum number of runs."""


@command("list", ListOptions, first="contains")
def main(options: ListOptions) -> None:
    """Print a row for each run directory, the most recent last."""
    console = Console(highlight=False)
    matching = _matching(str(options.contains))[-options.last :]
    if not matching:
        text = f"no matching runs in {runs.directories.root()}"
        console.print(text, soft_wrap=True, markup=False)
        return
    best = _best(matching)
    cells = {}
    for run in matching:
        is_best = run.directory in best
        cells[run.directory] = _row(run, is_best=is_best)
    groups = _groups(matching)
    has_width = console.is_terminal or "COLUMNS" in os.environ
    lines = _lines(groups, cells, console.width if has_width else None)
    if any(" *" in row[HEADINGS.index("val error")] for row in cells.values()):
        lines.append("* lowest validation error of runs with the same data")
    lines += _differences([run.overrides for run in matching])
    console.print("\n".join(map(printable, lines)), soft_wrap=True, markup=False)


def _differences(overrides: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each option of these runs that differs from its paper."""
    lines: dict[str, None] = {}
    for each in overrides:
        lines |= dict.fromkeys(presets.differences_of_overrides(each))
    return [*lines]


class _Listed(NamedTuple):
    """A run directory with its overrides and its metrics, which are empty until it ends."""

    directory: Path
    overrides: list[str]
    metrics: Mapping[str, Any]


def _matching(text: str) -> list[_Listed]:
    """Return the runs whose directory or overrides contain the text, the most recent last."""
    found = []
    for file in sorted(runs.directories.root().glob("*/config.yaml"), key=_written):
        directory = file.parent
        overrides = runs.directories.read_overrides(directory)
        if text in f"{directory.name} {shlex.join(overrides)}":
            metrics = runs.results.read_metrics(directory) or {}
            found.append(_Listed(directory, overrides, metrics))
    return found


class _Group(NamedTuple):
    """Runs of one table, or of none.

    Attributes:
        title: the table, and the overrides that all of these runs have besides those of the table.
        runs: the run directories with the text of their other overrides, after the name of the row.
    """

    title: str
    runs: dict[Path, str]


def _groups(listed: Sequence[_Listed]) -> list[_Group]:
    """Group runs by their table; the group with the most recent run is the last."""
    places = [Place(run.overrides) for run in listed]
    places = in_tables(places)
    members: dict[str, list[tuple[_Listed, Place]]] = {}
    for run, place in zip(listed, places, strict=True):
        name = f"runs of table {place.table}" if place.table else "other runs"
        members[name] = [*members.pop(name, []), (run, place)]
    if [*members] == ["other runs"]:
        members = {"all runs": members["other runs"]}
    groups = []
    for name, group in members.items():
        shared, differing = differences([place.own for _, place in group])
        texts = {}
        for (run, place), own in zip(group, differing, strict=True):
            text = shlex.join(own)
            if place.row:
                text = f"{place.row}: {text}"
            texts[run.directory] = text
        title = name
        if shared:
            title += f" have {shlex.join(shared)}"
        groups.append(_Group(title, texts))
    return groups


def _lines(
    groups: Sequence[_Group], cells: Mapping[Path, list[str]], width: int | None
) -> list[str]:
    """Return the lines of the table: all columns, then the overrides, cut to the width of the terminal."""
    heading, *rows = aligned([HEADINGS, *cells.values()])
    row_of = dict(zip(cells, rows, strict=True))
    longest = max(map(len, [heading, *rows]))
    start = longest + len("  ")
    beside = width is None or width - start >= _LEAST
    lines = [heading]
    if beside:
        lines = [f"{heading:{start}}overrides"]
    for group in groups:
        if group.title != "all runs":
            lines.append(group.title)
        for directory, overrides in group.runs.items():
            row = row_of[directory]
            if beside:
                line = f"{row:{start}}{overrides}"
                lines.append(cut(line.rstrip(), width))
            else:
                lines.append(row)
                if overrides:
                    lines.append(cut(f"  {overrides}", width))
    return lines


def _best(listed: Sequence[_Listed]) -> set[Path]:
    """Return the runs with the lowest validation error of their data, where there are several to choose from."""
    errors: dict[tuple[str, str], dict[Path, float]] = defaultdict(dict)
    for directory, _, metrics in listed:
        if "error" in metrics.get("val", {}):
            data = (runs.results.source_of(metrics), metrics["provenance"]["name"])
            errors[data][directory] = metrics["val"]["error"]
    return {min(group, key=group.__getitem__) for group in errors.values() if len(group) > 1}


def _row(run: _Listed, *, is_best: bool) -> list[str]:
    directory, _, metrics = run
    tested = metrics or runs.results.read_pause(directory) or {}
    test_error = _error(tested.get("test", {}))
    limits = runs.results.limits_of_test(tested)
    if test_error and limits:
        test_error += f" ({limits})"
    val_error = _error(metrics.get("val", {}))
    if is_best:
        val_error += " *"
    source = metrics.get("provenance", {}).get("source", "")
    start = runs.results.describe_start(metrics)
    if start:
        source += f", {start}"
    written = datetime.fromtimestamp(_written(directory / "config.yaml"))
    is_today = written.date() == datetime.now().date()
    state = metrics.get("status") or _unfinished(directory)
    return [
        directory.name,
        state,
        test_error,
        val_error,
        source,
        written.strftime("%H:%M" if is_today else "%Y-%m-%d"),
    ]


def _error(metrics: Mapping[str, float]) -> str:
    """Return the error, or the loss of a network without classes, as text."""
    if "error" in metrics:
        return f"{metrics['error']:.2f} %"
    return f"loss {metrics['loss']:.4g}" if "loss" in metrics else ""


def _unfinished(directory: Path) -> str:
    beat = runs.results.read_heartbeat(directory)
    done = "" if beat is None else f" {100 * beat.steps // max(beat.planned_steps, 1)} %"
    if lock.is_alive(directory, beat):
        if beat is None or not lock.is_recent(beat):
            return "running"
        if beat.seconds_left is None:
            return f"running{done}"
        return f"running{done}, ends {_clock(beat.time + beat.seconds_left)}"
    paused = runs.results.read_pause(directory)
    if paused:
        return runs.results.describe_pause(paused)
    ended = runs.results.read_status(directory)
    if ended:
        return str(ended["status"])
    return f"killed at{done}, {_clock(beat.time)}" if beat else "not finished"


def _clock(seconds: float) -> str:
    """Return the time of a day, with the date if it is not today."""
    try:
        time = datetime.fromtimestamp(seconds)
    except (OverflowError, ValueError, OSError):  # of a file that was changed
        return "at an unknown time"
    is_today = time.date() == datetime.now().date()
    return time.strftime("%H:%M" if is_today else "%Y-%m-%d %H:%M")


def _written(config: Path) -> float:
    """Return when the log or the configuration of a run was last written, in seconds since 1970."""
    files = (config, config.with_name("train.log"))
    return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)


if __name__ == "__main__":
    main()
