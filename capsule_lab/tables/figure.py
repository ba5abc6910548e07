"""Figures of a table: error against training time, and the figures of commands that evaluate rows."""

from __future__ import annotations

import itertools
import os
import re
import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from capsule_lab.analysis.axes import add_heading
from capsule_lab.analysis.curves import legend_below, look
from capsule_lab.tables.schema import Table
from capsule_lab.tables.summary import Entry, Point, panels

_PERCENT = (
    "error",
    "test_error",
    "label_error",
    "balanced_error",
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
    points_of = panels(filter(_has_training_time, entries))
    for title, points in [*points_of.items()]:
        if len(points) < 2:
            del points_of[title]
    if not points_of:
        return None
    families = _families([*itertools.chain(*points_of.values())])
    size = (max(8, 5.8 * len(points_of)), 4.4)  # inches
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, len(points_of), squeeze=False)[0]
    for axis, (title, points) in zip(axes, points_of.items(), strict=True):
        _draw(axis, points, families)
        metric = points[0].entry.column.metric
        unit = " in %" if metric.rpartition("/")[2] in _PERCENT else ""
        axis.set(title=title, ylabel=metric.replace("/", " ") + unit)
    legend_below(figure)
    all_runs = [run for points in points_of.values() for point in points for run in point.runs]
    repetition = "seeds" if all_runs[0].cell.fold is None else "folds and seeds"
    heading = f"Bars: standard deviation over {repetition}"
    if any(axis.texts for axis in axes):
        heading += ". Numbers beside points: the ends of row names"
    add_heading(figure, heading)
    return figure


def _has_training_time(entry: Entry) -> bool:
    is_trained = not entry.row.of
    return is_trained and entry.column.statistic == "mean" and not entry.different_hardware


def figures_by_command(table: Table, entries: Sequence[Entry]) -> dict[str, Figure]:
    """Return, by name, the figures that the commands of evaluated rows declare."""
    figures: dict[str, Figure] = {}
    commands = dict.fromkeys(table.commands.of(entry.row) for entry in entries if entry.row.of)
    for command in commands:
        if command.measures and command.measures.figures:
            figures |= command.measures.figures(entries)
    return figures


def _draw(axis: Axes, points: Sequence[Point], families: dict[str, str]) -> None:
    clock = _clock(points)
    for number, (family, name) in enumerate(families.items()):
        members = [point for point in points if _family(point) == family]
        seconds = []
        errors = []
        deviations = []
        for point in members:
            seconds.append(statistics.fmean(run.result[clock] for run in point.runs))
            errors.append(statistics.fmean(point.values))
            deviations.append(statistics.stdev(point.values) if len(point.values) > 1 else 0.0)
        style = look(number)
        if len(members) < 2:
            style["linestyle"] = ""
        axis.errorbar(
            seconds,
            errors,
            deviations,
            label=name,
            capsize=2,
            linewidth=0.8,
            markersize=5,
            **style,
        )
        if len(members) > 1:
            for point, x, y in zip(members, seconds, errors, strict=True):
                number_of_row = point.entry.row.name.rpartition("_")[2]
                axis.annotate(number_of_row, (x, y), (4, 3), textcoords="offset points", fontsize=7)
    kind = "seconds of processor time" if clock == "training_cpu_seconds" else "seconds"
    farthest = 1.05 * axis.dataLim.xmax  # ours: the share beside it is that of matplotlib's margins
    axis.set(xlabel=f"{kind}, training", xlim=(0, farthest))
    axis.grid(alpha=0.3)


def _clock(points: Sequence[Point]) -> str:
    """Return the key of the time that all runs recorded: processor time if possible."""
    for point in points:
        for run in point.runs:
            if run.result.get("training_cpu_seconds") is None:
                return "training_seconds"
    return "training_cpu_seconds"


def _families(points: Sequence[Point]) -> dict[str, str]:
    """Map names of rows without the number at the end to the common start of their labels, or to themselves."""
    labels_of: dict[str, list[str]] = {}
    for point in points:
        labels_of.setdefault(_family(point), []).append(point.entry.row.label)
    return {family: _common_label(labels) or family for family, labels in labels_of.items()}


def _common_label(labels: Sequence[str]) -> str:
    """Return ``Heinsen 2019`` of "Heinsen 2019, 1 iteration" and "Heinsen 2019, 12 iterations"."""
    if len(set(labels)) == 1:
        return labels[0]
    start = os.path.commonprefix(labels)  # noqa: RUF071
    return re.sub(r"\d+$", "", start).rstrip(" ,:(")


def _family(point: Point) -> str:
    return re.sub(r"_\d+$", "", point.entry.row.name)
