"""Output of a table's comparisons: cells for all formats, a data frame, and two figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from capsule_lab import statistics
from capsule_lab.analysis.axes import LETTER, LINE, SIZE, add_heading, wrapped
from capsule_lab.errors import printable
from capsule_lab.tables.comparisons import Compared, Family
from capsule_lab.tables.summary import Entry, Mean, Point, decimals, intervals_are_over, panels
from capsule_lab.tables.terminal_formats import Row, Sheet, filled_columns

HEADINGS = [
    "", "column", "difference", "95 % interval", "p", "p (Holm)", "g", "n", "detectable", "n needed", "equal within",
    "planned", "test",
]  # fmt: skip
TEXTS = ("", "column", "test")
"""Columns that are aligned at the left."""
_EXPLANATIONS = {
    "difference": "first row minus second",
    "p (Holm)": "corrected for the comparisons of the family in this report, or the pairs of a comparison without one",
    "g": "Hedges' g",
    "detectable": "the smallest difference that n runs find with a power of 80 %",
    "n needed": "runs that find the observed difference with a power of 80 %",
    "planned": "the comparison was in the table before the first of its runs or evaluations",
}
_PLANNED = {True: "yes", False: "after the fact", None: "unknown"}
_PANEL = 3.2  # ours: inches for the labels of rows
_PAPER = 5.5  # inches: text width of NeurIPS
_LABEL_SIZE = SIZE - 1.5  # ours: font size of the labels of rows, in points


def cells_of(compared: Compared) -> list[str]:
    """Return one line, in the order of ``HEADINGS``, not yet escaped for any format."""
    found = compared.difference
    first, second = found.counts
    is_one_column = compared.first.column == compared.second.column
    interval = ""
    if found.low is not None and found.high is not None:
        interval = f"{_signed(found.low)} to {_signed(found.high)}"
    equivalent = ""
    if found.equivalent is not None:
        equivalent = f"{compared.comparison.margin:g}: {found.equivalent}"
    cells = [
        compared.name + ("" if compared.real else " (stand-in)"),
        compared.first.column.label if is_one_column else "",
        _signed(found.estimate),
        interval,
        _number(found.p),
        _number(compared.corrected),
        _number(found.g),
        f"{first}" if first == second else f"{first}, {second}",
        _number(found.detectable),
        "" if found.needed is None else f"{found.needed}",
        equivalent,
        _PLANNED[compared.planned],
        "; ".join(filter(None, [found.test, compared.remark])),
    ]
    return [printable(cell) for cell in cells]


def _signed(value: float) -> str:
    return decimals(value, sign="+") if abs(value) < 100 else f"{value:+,.0f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def explanation(headings: Iterable[str] = HEADINGS) -> str:
    """Return what columns mean."""
    shown = [f"{name}: {_EXPLANATIONS[name]}." for name in headings if name in _EXPLANATIONS]
    return " ".join(shown)


def explanation_of(rows: Sequence[Row]) -> str:
    """Return what the columns mean that have a value in any of these rows."""
    return explanation(HEADINGS[column] for column in filled_columns(rows))


def on_terminal(compared: Sequence[Compared]) -> Sheet:
    """Return a sheet with a row for each comparison, named by the comparison and the names of its rows."""
    rows = []
    for line, row in zip(compared, rows_of(compared), strict=True):
        label = f"{line.comparison.name}: {line.by('name')}"
        if not line.real:
            label += " (stand-in)"
        _, *cells = row.cells
        rows.append(Row([label, *cells], row.style))
    return Sheet("Comparisons", HEADINGS, rows, TEXTS, caption=explanation_of(rows))


def rows_of(compared: Sequence[Compared]) -> list[Row]:
    """Return a row for each comparison; significant differences are bold."""
    rows = []
    for line in compared:
        rows.append(Row(cells_of(line), "bold" if line.is_significant else ""))
    return rows


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
    points_of = panels(entry for entry in entries if entry.column.statistic == "mean")
    if not points_of:
        return None
    labels = [_row_labels(points) for points in points_of.values()]
    figure, axes = _panels([*points_of], labels)
    for axis, points in zip(axes, points_of.values(), strict=True):
        for place, point in enumerate(points):
            _draw_runs(axis, place, point)
            if place > 0:
                _join_seeds(axis, place, points[place - 1], point)
        _label_rows(axis, _row_labels(points))
    first, *_ = points_of.values()
    over = "runs" if first[0].runs[0].cell.fold is None else intervals_are_over(entries)
    heading = f"Dots: runs, joined by seed. Bars: mean and 95 % interval over {over}."
    shown = [point.entry for points in points_of.values() for point in points]
    if any(entry.published for entry in shown):
        heading += " Diamonds: published values."
    add_heading(figure, heading)
    return figure


def _row_labels(points: Sequence[Point]) -> list[str]:
    return [point.entry.row.label for point in points]


def _draw_runs(axis: Axes, place: int, point: Point) -> None:
    """Draw the runs of a row at the height ``place``, with their mean and the published value."""
    values = point.values
    places = [place] * len(values)
    axis.plot(values, places, "o", color="C0", markersize=3, alpha=0.6, zorder=3)
    center, low, high = _interval(point)
    axis.errorbar(
        center,
        place,
        xerr=[[center - low], [high - center]],
        fmt="|",
        color="black",
        capsize=2,
        linewidth=1,
        zorder=4,
    )
    published = point.entry.published
    if published is not None and point.runs[0].real:
        axis.plot(published.mean, place, "D", color="0.75", markersize=5, zorder=2)


def _interval(point: Point) -> tuple[float, float, float]:
    """Return the mean of a row and the ends of its interval: over runs; over images or groups if runs are folds."""
    first, *_ = point.runs
    of_row = point.entry.ours if first.real else point.entry.standin
    if isinstance(of_row, Mean) and of_row.by_fold:
        center = of_row.center
        interval = of_row.interval
        return (
            (center, center, center) if interval is None else (center, interval.low, interval.high)
        )
    values = point.values
    center = sum(values) / len(values)
    half = statistics.half_width(values) or 0.0
    return center, center - half, center + half


def _join_seeds(axis: Axes, place: int, above: Point, point: Point) -> None:
    """Draw a line between the runs of a seed in this row and in the one above."""
    before = {run.cell.repetition: run.value for run in above.runs}
    for run in point.runs:
        if run.cell.repetition in before:
            values = [before[run.cell.repetition], run.value]
            axis.plot(values, [place - 1, place], color="C0", alpha=0.2, linewidth=0.6)


def differences(compared: Sequence[Compared]) -> Figure | None:
    """Draw the difference of every comparison with its 95 % interval and margin, one panel for each family."""
    lines_of: dict[Family, list[Compared]] = {}
    for line in compared:
        if line.difference.low is not None:
            lines_of.setdefault(line.family, []).append(line)
    if not lines_of:
        return None
    titles = []
    for family in lines_of:
        titles.append(family.name.replace("_", " ") + ("" if family.real else ", stand-in"))
    labels = [[line.name for line in lines] for lines in lines_of.values()]
    figure, axes = _panels(titles, labels)
    for axis, lines in zip(axes, lines_of.values(), strict=True):
        axis.axvline(0, color="0.4", linewidth=0.8)
        for place, line in enumerate(lines):
            _draw_difference(axis, place, line)
        _label_rows(axis, _names_with_columns(lines))
        axis.set_xlabel("difference, first minus second", fontsize=SIZE)
    add_heading(
        figure,
        "Bars: 95 % intervals. Red: p below 5 % after Holm's correction within the panel. Grey: the margin within "
        "which rows count as equal",
    )
    return figure


def _draw_difference(axis: Axes, place: int, line: Compared) -> None:
    """Draw a difference at the height ``place``, with its interval and margin."""
    found = line.difference
    assert found.low is not None
    assert found.high is not None
    axis.errorbar(
        found.estimate,
        place,
        xerr=[[found.estimate - found.low], [found.high - found.estimate]],
        fmt="o",
        color="C3" if line.is_significant else "black",
        markersize=3,
        capsize=2,
        linewidth=1,
    )
    margin = line.comparison.margin
    if margin is not None:
        heights = [place - 0.4, place + 0.4]
        axis.fill_betweenx(heights, -margin, margin, color="0.9", zorder=0)


def _names_with_columns(lines: Sequence[Compared]) -> list[str]:
    """Return the names of comparisons, with the column if the panel has several."""
    columns = {line.first.column.label for line in lines}
    names = []
    for line in lines:
        name = line.name
        # a row that is compared with itself has its columns in the name
        if len(columns) > 1 and line.first.row != line.second.row:
            name += f", {line.first.column.label}"
        names.append(name)
    return names


def _panels(titles: Sequence[str], labels: Sequence[Sequence[str]]) -> tuple[Figure, list[Axes]]:
    """Return a figure with a panel for each title, one below another, as high as the labels of its rows need."""
    lines_of_panels = [[_wrapped_label(label).splitlines() for label in rows] for rows in labels]
    most_letters = max(len(line) for rows in lines_of_panels for lines in rows for line in lines)
    # a title begins where the labels end
    title_width = _PAPER - most_letters * LETTER * _LABEL_SIZE / SIZE
    wrapped_titles = [wrapped(printable(title), title_width) for title in titles]
    heights = []
    for title, rows in zip(wrapped_titles, lines_of_panels, strict=True):
        most_lines = max(map(len, rows))
        above = 0.64 + LINE * len(title.splitlines())
        heights.append(above + (0.1 + LINE * most_lines) * len(rows))
    figure = Figure(figsize=(_PAPER, sum(heights)), layout="constrained")
    axes = figure.subplots(len(labels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, title in zip(axes, wrapped_titles, strict=True):
        axis.set_title(title, fontsize=SIZE, loc="left")
    return figure, list(axes)


def _wrapped_label(label: str) -> str:
    return wrapped(printable(label), _PANEL)


def _label_rows(axis: Axes, labels: Sequence[str]) -> None:
    axis.set_yticks(range(len(labels)), map(_wrapped_label, labels), fontsize=_LABEL_SIZE)
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.tick_params(axis="x", labelsize=SIZE - 1)
    axis.grid(axis="x", alpha=0.3)
