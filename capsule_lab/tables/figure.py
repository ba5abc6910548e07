"""Figures of a table: error against training time, and the figures of commands that evaluate rows."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from capsule_lab.analysis.axes import add_heading
from capsule_lab.analysis.curves import legend_below, look
from capsule_lab.tables.schema import Table
from capsule_lab.tables.summary import Entry, Run

_PERCENT = (
    "error",
    "test_error",
    "label_error",
    "present_error",
    "accuracy",
    "success",
    "dead_capsules",
)
"""Metrics in percent, in any split."""


def error_against_time(entries: Sequence[Entry]) -> Figure | None:
    """Draw the mean of each trained row over its seeds, with its standard deviation, against training seconds.

    Seconds are processor time if all runs recorded it, else wall time. Rows whose names differ only in the number at
    the end, such as ``dynamic_1`` and ``dynamic_3``, are joined by a line. Each column has one panel for real data and
    one for stand-in data. Rows without runs, evaluations, and columns with medians or with runs on different hardware
    are left out; return ``None`` if no panel has two rows.
    """
    panels: dict[str, list[tuple[Entry, list[Run]]]] = {}
    for entry in entries:
        if entry.row.of or entry.column.statistic == "median" or entry.different_hardware:
            continue
        for real in (True, False):
            runs = [run for run in entry.runs if run.real is real]
            if runs:
                panels.setdefault(entry.column.label + ("" if real else ", stand-in"), []).append(
                    (entry, runs)
                )
    panels = {label: points for label, points in panels.items() if len(points) > 1}
    if not panels:
        return None
    families = _families([entry for points in panels.values() for entry, _ in points])
    figure = Figure(figsize=(max(8, 5.8 * len(panels)), 4.4), layout="constrained")  # inches
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (label, points) in zip(axes, panels.items(), strict=True):
        _draw(axis, points, families)
        metric = points[0][0].column.metric
        unit = " in %" if metric.rpartition("/")[2] in _PERCENT else ""
        axis.set(title=label, ylabel=metric.replace("/", " ") + unit)
    legend_below(figure)
    numbers = (
        ". Numbers beside points: the ends of row names" if any(axis.texts for axis in axes) else ""
    )
    add_heading(figure, f"Bars: standard deviation over seeds{numbers}")
    return figure


def figures_by_command(table: Table, entries: Sequence[Entry]) -> dict[str, Figure]:
    """Return, by name, the figures that the commands of evaluated rows declare."""
    figures: dict[str, Figure] = {}
    commands = dict.fromkeys(table.commands.of(entry.row) for entry in entries if entry.row.of)
    for command in commands:
        if command.measures and command.measures.figures:
            figures |= command.measures.figures(entries)
    return figures


def _draw(axis: Axes, points: Sequence[tuple[Entry, list[Run]]], families: dict[str, str]) -> None:
    times = [run.result.get("training_cpu_seconds") for _, runs in points for run in runs]
    clock = None if None in times else "training_cpu_seconds"
    for number, (family, name) in enumerate(families.items()):
        members = [(entry, runs) for entry, runs in points if _family(entry) == family]
        seconds = [
            statistics.fmean(run.result[clock or "training_seconds"] for run in runs)
            for _, runs in members
        ]
        errors = [statistics.fmean(run.value for run in runs) for _, runs in members]
        spreads = [
            statistics.stdev(run.value for run in runs) if len(runs) > 1 else 0.0
            for _, runs in members
        ]
        style = look(number) | ({} if len(members) > 1 else {"linestyle": ""})
        axis.errorbar(
            seconds, errors, spreads, label=name, capsize=2, linewidth=0.8, markersize=5, **style
        )
        if len(members) > 1:
            for (entry, _), x, y in zip(members, seconds, errors, strict=True):
                number_of_row = entry.row.name.rpartition("_")[2]
                axis.annotate(number_of_row, (x, y), (4, 3), textcoords="offset points", fontsize=7)
    kind = "seconds of processor time" if clock else "seconds"
    axis.set(xlabel=f"{kind}, training", xlim=(0, None))
    axis.grid(alpha=0.3)


def _families(entries: Sequence[Entry]) -> dict[str, str]:
    """Map names of rows without the number at the end to the common start of their labels, or to themselves."""
    labels: dict[str, list[str]] = {}
    for entry in entries:
        labels.setdefault(_family(entry), []).append(entry.row.label)
    starts = {  # "Heinsen 2019" of "Heinsen 2019, 1 iteration" and "Heinsen 2019, 12 iterations"
        family: re.sub(r"\d+$", "", os.path.commonprefix(texts)).rstrip(" ,:(")  # noqa: RUF071
        for family, texts in labels.items()
    }
    return {
        family: starts[family] or family if len({*texts}) > 1 else texts[0]
        for family, texts in labels.items()
    }


def _family(entry: Entry) -> str:
    return re.sub(r"_\d+$", "", entry.row.name)
