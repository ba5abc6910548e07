"""Output of a table's comparisons: cells for all formats, a data frame, and two figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table as RichTable
from rich.text import Text

from capsule_lab.analysis.axes import LINE, SIZE, add_heading, wrapped
from capsule_lab.errors import printable
from capsule_lab.tables import statistics
from capsule_lab.tables.comparisons import Compared
from capsule_lab.tables.summary import Entry, Run

HEADINGS = [
    "", "column", "difference", "95 % interval", "p", "p (Holm)", "g", "n", "detectable", "n needed", "equal within",
    "planned", "test",
]  # fmt: skip
EXPLANATION = (
    "Difference: first row minus second. p (Holm): corrected for the comparisons of the family in this report. g: "
    "Hedges' g. detectable: the smallest difference that n runs find with a power of 80 %. n needed: runs that find "
    "the observed difference with this power. planned: the comparison was in the table before the first of its runs."
)
_PANEL = 3.2  # ours: inches for the labels of rows
_PAPER = 5.5  # inches: text width of NeurIPS


def cells_of(compared: Compared) -> list[str]:
    """Return one line, in the order of ``HEADINGS``, not yet escaped for any format."""
    found = compared.difference
    first, second = found.counts
    label = compared.first.column.label if compared.first.column == compared.second.column else ""
    planned = {True: "yes", False: "after the fact", None: "unknown"}[compared.planned]
    margin = compared.comparison.margin
    cells = [
        compared.name + ("" if compared.real else " (stand-in)"),
        label,
        _signed(found.estimate),
        ""
        if found.low is None or found.high is None
        else f"{_signed(found.low)} to {_signed(found.high)}",
        _number(found.p),
        _number(compared.corrected),
        _number(found.g),
        f"{first}" if first == second else f"{first}, {second}",
        _number(found.detectable),
        "" if found.needed is None else f"{found.needed}",
        "" if found.equivalent is None else f"{margin:g}: {found.equivalent}",
        planned,
        "; ".join(filter(None, [found.test, compared.remark])),
    ]
    return [printable(cell) for cell in cells]


def _signed(value: float) -> str:
    return f"{value:+.2f}" if abs(value) < 100 else f"{value:+,.0f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def on_terminal(compared: Sequence[Compared]) -> RichTable:
    """Return a table with one line per comparison."""
    rich = RichTable(
        title=Text("Comparisons", style="table.title"), title_justify="left", caption=EXPLANATION
    )
    for heading in HEADINGS:
        rich.add_column(
            heading,
            justify="left" if heading in ("", "column", "test") else "right",
            overflow="fold",
        )
    for line in compared:
        rich.add_row(*map(Text, cells_of(line)), style="bold" if line.is_significant else None)
    return rich


def as_frame(compared: Sequence[Compared]) -> pd.DataFrame:
    """Return a data frame of numbers for a CSV, one line per comparison."""
    records: list[dict[str, Any]] = []
    for line in compared:
        found = line.difference
        records.append(
            {
                "comparison": line.comparison.name,
                "family": line.comparison.family,
                "first": line.first.row.label,
                "first_column": line.first.column.label,
                "second": line.second.row.label,
                "second_column": line.second.column.label,
                "source": "real" if line.real else "standin",
                "difference": found.estimate,
                "low": found.low,
                "high": found.high,
                "error": found.error,
                "df": found.df,
                "error_of_clusters": found.error_of_clusters,
                "p": found.p,
                "p_holm": line.corrected,
                "hedges_g": found.g,
                "n_first": found.counts[0],
                "n_second": found.counts[1],
                "detectable": found.detectable,
                "n_needed": found.needed,
                "margin": line.comparison.margin,
                "equivalent": found.equivalent,
                "planned": {True: "yes", False: "no", None: "unknown"}[line.planned],
                "test": found.test,
                "remark": line.remark,
            }
        )
    return pd.DataFrame.from_records(records).astype({"n_needed": "Int64"} if records else {})


def runs_as_dots(entries: Sequence[Entry]) -> Figure | None:
    """Draw the value of every run, and mean and 95 % interval of every row; published values are pale diamonds.

    Each column has one panel for real data and one for stand-in data; columns with medians are left out. Runs of a
    seed are joined between neighbouring rows.
    """
    panels: dict[str, list[tuple[Entry, list[Run]]]] = {}
    for entry in entries:
        for real in (True, False):
            found = [run for run in entry.runs if run.real is real]
            if found and entry.column.statistic == "mean":
                panels.setdefault(entry.column.label + ("" if real else ", stand-in"), []).append(
                    (entry, found)
                )
    if not panels:
        return None
    figure, axes = _panels(
        {title: [entry.row.label for entry, _ in points] for title, points in panels.items()}
    )
    for axis, points in zip(axes, panels.values(), strict=True):
        for place, (entry, found) in enumerate(points):
            values = [run.value for run in found]
            axis.plot(
                values, [place] * len(values), "o", color="C0", markersize=3, alpha=0.6, zorder=3
            )
            half, mean = statistics.half_width(values), sum(values) / len(values)
            axis.errorbar(
                mean, place, xerr=half, fmt="|", color="black", capsize=2, linewidth=1, zorder=4
            )
            if entry.published is not None and found[0].real:
                axis.plot(entry.published.mean, place, "D", color="0.75", markersize=5, zorder=2)
            if place:
                before = {run.cell.seed: run.value for run in points[place - 1][1]}
                for run in (run for run in found if run.cell.seed in before):
                    axis.plot(
                        [before[run.cell.seed], run.value],
                        [place - 1, place],
                        color="C0",
                        alpha=0.2,
                        linewidth=0.6,
                    )
        _label_rows(axis, [entry.row.label for entry, _ in points])
    add_heading(
        figure,
        "Dots: runs, joined by seed. Bars: mean and 95 % interval over runs. Diamonds: published values",
    )
    return figure


def differences(compared: Sequence[Compared]) -> Figure | None:
    """Draw the difference of every comparison with its 95 % interval and margin, one panel for each family."""
    panels: dict[str, list[Compared]] = {}
    for line in compared:
        if line.difference.low is not None:
            name = line.comparison.family or line.comparison.name
            panels.setdefault(
                name.replace("_", " ") + ("" if line.real else ", stand-in"), []
            ).append(line)
    if not panels:
        return None
    figure, axes = _panels(
        {title: [line.name for line in lines] for title, lines in panels.items()}
    )
    for axis, lines in zip(axes, panels.values(), strict=True):
        axis.axvline(0, color="0.4", linewidth=0.8)
        for place, line in enumerate(lines):
            found = line.difference
            assert found.low is not None
            assert found.high is not None
            half = [[found.estimate - found.low], [found.high - found.estimate]]
            colour = "C3" if line.is_significant else "black"
            axis.errorbar(
                found.estimate,
                place,
                xerr=half,
                fmt="o",
                color=colour,
                markersize=3,
                capsize=2,
                linewidth=1,
            )
            if (margin := line.comparison.margin) is not None:
                axis.fill_betweenx(
                    [place - 0.4, place + 0.4], -margin, margin, color="0.9", zorder=0
                )
        several = len({line.first.column.label for line in lines}) > 1
        names = [
            line.name
            + (
                f", {line.first.column.label}"
                if several and line.first.row != line.second.row
                else ""
            )
            for line in lines
        ]
        _label_rows(axis, names)
        axis.set_xlabel("difference, first minus second", fontsize=SIZE)
    add_heading(
        figure,
        "Bars: 95 % intervals. Red: p below 5 % after Holm's correction within the panel. Grey: the margin within "
        "which rows count as equal",
    )
    return figure


def _panels(labels: Mapping[str, Sequence[str]]) -> tuple[Figure, list[Axes]]:
    """Return a figure with a panel for each title, one below another, as high as the labels of its rows need."""
    lines = [
        max(wrapped(printable(label), _PANEL).count("\n") + 1 for label in rows)
        for rows in labels.values()
    ]
    heights = [
        0.8 + (0.1 + LINE * most) * len(rows)
        for most, rows in zip(lines, labels.values(), strict=True)
    ]
    figure = Figure(figsize=(_PAPER, sum(heights)), layout="constrained")
    axes = list(figure.subplots(len(labels), 1, squeeze=False, height_ratios=heights)[:, 0])
    for axis, title in zip(axes, labels, strict=True):
        axis.set_title(wrapped(printable(title), _PAPER), fontsize=SIZE, loc="left")
    return figure, axes


def _label_rows(axis: Axes, labels: Sequence[str]) -> None:
    axis.set_yticks(
        range(len(labels)),
        [wrapped(printable(label), _PANEL) for label in labels],
        fontsize=SIZE - 1.5,
    )
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.tick_params(axis="x", labelsize=SIZE - 1)
    axis.grid(axis="x", alpha=0.3)
