"""Output of a table's summary on the terminal, as Markdown, CSV, LaTeX and a self-contained HTML page."""

from __future__ import annotations

import base64
import io
import logging
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from capsule_lab.analysis.axes import show_dollar_signs
from capsule_lab.analysis.curves import curves_of_runs, read_curves
from capsule_lab.errors import one_line, printable
from capsule_lab.statistics import half_width
from capsule_lab.system.files import read_regular
from capsule_lab.tables import comparison_formats
from capsule_lab.tables.cells import FAILED, Cell
from capsule_lab.tables.comparisons import Compared
from capsule_lab.tables.progress import running
from capsule_lab.tables.schema import Table
from capsule_lab.tables.summary import (
    NOT_REACHED,
    Entry,
    Mean,
    Median,
    Run,
    best_runs,
    changed_files,
    decimals,
    have_same_images,
    intervals_are_over,
    runs_of,
    values_of,
)
from capsule_lab.tables.terminal_formats import Row as SheetRow
from capsule_lab.tables.terminal_formats import Sheet, filled_columns

log = logging.getLogger(__name__)

_IN_LATEX = str.maketrans(
    {
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
)
_MARKUP = re.compile(r"[\\`*_\[\]<>|&~]")  # of Markdown
_PNG = b"\x89PNG\r\n\x1a\n"  # the first bytes of the format
_LARGEST_FIGURE = 2**24  # ours: bytes; those of runs have 100 kB
_FORMULA = tuple("=+-@")  # text with such a beginning is a formula in spreadsheets
HEADINGS = [
    "", "published", "ours", "n", "difference", "standin", "n standin", "minutes", "parameters", "runs",
]  # fmt: skip
TEXTS = ("", "runs")
"""Columns that are aligned at the left."""


def cells_of(entry: Entry) -> list[str]:
    """Return one line of a table, in the order of ``HEADINGS``, not yet escaped for any format."""
    published, ours, standin = entry.published, entry.ours, entry.standin
    cells = [
        entry.row.label,
        str(published or ""),
        _with_size(ours, entry.partial_test(real=True)),
        ours.described_count if ours else "",
        "" if entry.difference is None else decimals(entry.difference, sign="+"),
        _with_size(standin, entry.partial_test(real=False)),
        standin.described_count if standin else "",
        "" if entry.minutes is None else f"{entry.minutes:.1f}",
        entry.shared("parameters"),
        entry.state,
    ]
    return [printable(cell) for cell in cells]


def _with_size(value: object, partial_test: str) -> str:
    """Format a statistic; mark it if its runs did not use the whole test set."""
    if not value:
        return ""
    return f"{value} (partial test: {partial_test})" if partial_test else str(value)


def on_terminal(table: Table, entries: Sequence[Entry]) -> list[Sheet]:
    """Return a sheet for each column of the paper's table, to be printed with rich."""
    sheets = []
    for label, part in by_column(entries).items():
        title = f"{printable(table.paper)}\n{printable(label)}"
        sheets.append(Sheet(title, HEADINGS, _rows(part), TEXTS))
    return sheets


def _rows(part: Sequence[Entry]) -> list[SheetRow]:
    rows = []
    for entry in part:
        rows.append(SheetRow(cells_of(entry), "red" if "failed" in entry.state else ""))
    return rows


def as_markdown(
    table: Table, entries: Sequence[Entry], command: str, answers: Sequence[Compared] = ()
) -> str:
    """Format for a README: a table per column, comparisons, notes and the command."""
    lines = [f"## {_markdown(table.paper)}", "", _code(command), ""]
    for label, part in by_column(entries).items():
        lines += [f"### {_markdown(label)}", ""]
        lines += _markdown_table(HEADINGS, map(cells_of, part))
    if answers:
        cells = map(comparison_formats.cells_of, answers)
        lines += ["### Comparisons", ""]
        lines += _markdown_table(comparison_formats.HEADINGS, cells)
        lines += [_markdown(comparison_formats.explanation()), ""]
    for label, note in notes(entries).items():
        lines.append(f"- {_markdown(label)}: {_markdown(note)}")
    for remark in [*remarks(entries), *failures(entries)]:
        lines.append(f"- {_markdown(remark)}")
    for data in dict.fromkeys(entry.data for entry in entries):
        if data:
            lines.append(f"- data: {_markdown(data)}")
    return "\n".join(lines).rstrip() + "\n"


def _markdown_table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table, and an empty one below it."""
    return [_line(headings), _line(["---"] * len(headings)), *map(_line, lines), ""]


def as_frame(entries: Sequence[Entry]) -> pd.DataFrame:
    """Return a data frame of numbers for a CSV, one line per entry."""
    records = []
    for entry in entries:
        published = entry.published
        ours = entry.ours
        standin = entry.standin
        records.append(
            {
                "column": entry.column.label,
                "row": entry.row.label,
                "name": entry.row.name,
                "published": published and published.mean,
                "published_std": published and published.std,
                "ours": ours and ours.center,
                "ours_std": ours and ours.std,
                "ours_n": ours.count if ours else 0,
                **_interval_over_folds(ours),
                "ours_smallest": ours.smallest if isinstance(ours, Median) else None,
                "ours_largest": ours.largest if isinstance(ours, Median) else None,
                "ours_reached": ours.reached if isinstance(ours, Median) else None,
                "difference": entry.difference,
                "standin": standin and standin.center,
                "standin_std": standin and standin.std,
                "standin_n": standin.count if standin else 0,
                "partial_test": entry.partial_test(real=True) or entry.partial_test(real=False),
                "minutes": entry.minutes,
                "parameters": entry.shared("parameters").replace(",", ""),
                "hardware": entry.shared("hardware"),
                "precision": entry.shared("precision"),
                "data": entry.data,
                "runs": entry.state,
                "note": entry.row.note,
            }
        )
    return pd.DataFrame.from_records(records)


def _interval_over_folds(ours: Mean | Median | None) -> dict[str, float]:
    """Return the ends of the interval of all folds together as columns; empty without folds."""
    if not isinstance(ours, Mean) or not ours.by_fold or ours.interval is None:
        return {}
    return {"ours_low": ours.interval.low, "ours_high": ours.interval.high}


def as_csv(frame: pd.DataFrame) -> str:
    """Format a frame as CSV; an apostrophe, which spreadsheets hide, precedes text that would be a formula."""
    return str(frame.map(_no_formula).to_csv(index=False, float_format="%.6g"))


def _no_formula(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text


def runs_frame(entries: Sequence[Entry]) -> pd.DataFrame:
    """Return a data frame with one line per run, finished or not, and its exact command."""
    records: list[dict[str, Any]] = []
    for entry in entries:
        place = {"column": entry.column.label, "row": entry.row.label}
        records += [place | _record_of(run) for run in entry.runs]
        for cell in entry.unfinished:
            status = entry.status_of(cell)
            facts = {"status": status, "command": cell.command}
            records.append(place | _repetition(cell) | facts)
    frame = pd.DataFrame.from_records(records)
    # unfinished runs have no steps, and a column with gaps would show 20.0
    return frame.astype({"steps": "Int64"}) if "steps" in frame else frame


def _repetition(cell: Cell) -> dict[str, Any]:
    """Return fold and seed as columns; without folds, the seed alone."""
    fold = {} if cell.fold is None else {"fold": cell.fold.index}
    return fold | {"seed": cell.seed}


def _record_of(run: Run) -> dict[str, Any]:
    return _repetition(run.cell) | {
        "status": run.cell.status,
        "value": run.value,
        "partial_test": run.partial_test,
        "source": run.source,
        **({"start": run.start} if run.start else {}),
        "minutes": round(run.minutes, 2),
        "steps": run.result["steps"],
        "hardware": run.result["hardware"],
        "precision": run.precision,
        "commit": run.result["commit"],
        "directory": run.directory.name,
        "command": run.cell.command,
    }


def as_latex(table: Table, entries: Sequence[Entry], answers: Sequence[Compared] = ()) -> str:
    """Format for a paper, with booktabs: means with half of their 95 % interval, and p values of comparisons.

    Columns without any entry are left out; the caption says what the numbers are and what they rest on.
    """
    tested = [answer for answer in answers if answer.corrected is not None]
    lines = []
    for entry in entries:
        p_values = []
        for answer in tested:
            if answer.first is entry:
                data = "" if answer.real else " (stand-in)"
                p_values.append(f"{answer.comparison.name}{data}: {answer.corrected:.2g}")
        lines.append(
            {
                "column": printable(entry.column.label),
                "row": printable(entry.row.label),
                "published": str(entry.published or ""),
                "ours": _with_half_width(entry, real=True),
                "n": entry.ours.described_count if entry.ours else "",
                "stand-in": _with_half_width(entry, real=False),
                "n stand-in": entry.standin.described_count if entry.standin else "",
                "p": "; ".join(p_values),
            }
        )
    frame = pd.DataFrame(lines)
    frame = frame.loc[:, (frame != "").any()]
    if frame["column"].nunique() == 1:
        frame = frame.drop(columns="column")
    texts = frame.columns.isin(["column", "row"]).sum()
    style = frame.style.hide(axis="index").format(escape="latex")
    text = style.format_index(escape="latex", axis="columns").to_latex(
        hrules=True,
        caption=_caption(table, entries, tested).translate(_IN_LATEX),
        label="tab:" + re.sub(r"[^\w.-]", "-", table.name),
        column_format="l" * texts + "r" * (frame.shape[1] - texts),
    )
    return str(text).replace("±", r"$\pm$")


def _with_half_width(entry: Entry, *, real: bool) -> str:
    """Return the mean and half of its interval, with two decimals, or a median as elsewhere."""
    ours = entry.ours if real else entry.standin
    partial_test = entry.partial_test(real=real)
    if not isinstance(ours, Mean):
        return _with_size(ours, partial_test)
    if ours.by_fold:
        return _with_size(ours, partial_test)
    half = half_width(values_of(entry.runs_on(real=real)))
    text = decimals(ours.center)
    if half is not None:
        text += f" ± {decimals(half)}"
    return _with_size(text, partial_test)


def _caption(table: Table, entries: Sequence[Entry], tested: Sequence[Compared]) -> str:
    """Return what the numbers are; ``tested`` are the comparisons with a p value."""
    runs = runs_of(entries)
    if not runs:
        return printable(table.paper)
    what = "Means ± half of the 95 % interval over n runs"
    if table.folds is not None:
        over = intervals_are_over(entries)
        what = f"Means over {table.folds} folds and 95 % intervals over all their {over}"
    if any(entry.column.statistic == "median" for entry in entries):
        what += "; medians (smallest to largest)"
    parts = [table.paper, what]
    if tested:
        tests = _listed(answer.difference.test for answer in tested)
        parts.append(f"p: {tests}, with Holm's correction within a family")
    facts: dict[str, list[str]] = {"data": [], "hardware": [], "precision": [], "commit": []}
    for run in runs:
        facts["data"].append(run.data)
        facts["hardware"].append(run.hardware)
        facts["precision"].append(run.precision)
        facts["commit"].append(str(run.result.get("commit")))
    parts += [f"{name}: {_listed(texts)}" for name, texts in facts.items()]
    return printable(". ".join(parts) + ".")


def _listed(texts: Iterable[str]) -> str:
    """Return the different texts that are not empty, separated by commas."""
    return ", ".join(dict.fromkeys(filter(None, texts)))


def as_page(
    table: Table,
    entries: Sequence[Entry],
    command: str,
    costs: Figure | None = None,
    attacks: Mapping[str, Figure] | None = None,
    answers: Sequence[Compared] = (),
    folder: Path | None = None,
) -> str:
    """Format as a self-contained HTML page: tables, curves of every run, figures of the best runs, commands.

    ``command`` creates the page; ``costs`` is from ``error_against_time``, ``attacks`` from ``figures_by_command``.
    With the ``folder`` of the page, the names of run directories are links, relative to it.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    runs = runs_frame(entries).drop(columns=["hardware", "precision"], errors="ignore")
    runs = runs.astype(object).fillna("").replace(math.inf, NOT_REACHED)
    runs = runs.loc[:, (runs != "").any()]
    drawn = {
        "Differences": comparison_formats.differences(answers),
        "Runs": comparison_formats.runs_as_dots(entries),
    }
    curves = {title: curves_of_runs(files) for title, files in _curves(entries).items()}
    links = {}
    for run in runs_of(entries):
        if folder is not None:
            links[run.directory.name] = _link(run.directory, folder)
    parts = {}
    for label, part in by_column(entries).items():
        parts[label] = _rows(part)
    compared_rows = comparison_formats.rows_of(answers)
    return environment.get_template("page.html").render(
        table=table,
        command=command,
        headings=HEADINGS,
        texts=TEXTS,
        parts=parts,
        filled_columns=filled_columns,
        entries=entries,
        running=running(entries),
        notes=notes(entries),
        remarks=remarks(entries),
        failures=failures(entries),
        costs=costs,
        answers=compared_rows,
        comparison_headings=comparison_formats.HEADINGS,
        comparison_texts=comparison_formats.TEXTS,
        explanation=comparison_formats.explanation_of(compared_rows),
        drawn=drawn,
        attacks=attacks or {},
        runs=runs,
        links=links,
        curves=curves,
        curves_of_runs=curves_of_runs,
        svg=_svg,
        best=[(run, _figures(run)) for run in best_runs(entries)],
        made=datetime.now(UTC).strftime("%Y-%m-%d"),
    )


def _link(directory: Path, folder: Path) -> str:
    """Return the address of a directory, relative to a page in ``folder``."""
    return quote(Path(os.path.relpath(directory, folder)).as_posix() + "/")


def by_column(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Group entries by the labels of their columns."""
    parts: dict[str, list[Entry]] = {}
    for entry in entries:
        parts.setdefault(entry.column.label, []).append(entry)
    return parts


def notes(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the footnotes of rows by label."""
    return {entry.row.label: entry.row.note for entry in entries if entry.row.note}


def remarks(entries: Sequence[Entry]) -> list[str]:
    """Return warnings about the runs: different hardware, several commits, uncommitted code, identical rows."""
    found = []
    for label, part in by_column(entries).items():
        if part[0].different_hardware:
            one, other = part[0].different_hardware
            found.append(
                f"{label}: no times, which are comparable only on the same hardware: {one.name} used {one.hardware}, "
                f"{other.name} used {other.hardware}"
            )
        commits = _commits(runs_of(part))
        if len(commits) > 1:
            used = ", ".join(f"{name} of {commit}" for commit, name in sorted(commits.items()))
            found.append(
                f"{label}: runs of {len(commits)} commits, so that differences may come from the code: {used}"
            )
        changed = changed_files(runs_of(part))
        if changed:
            one, other = changed
            found.append(
                f"{label}: the files of the data changed between {one.name} and {other.name}, so that means and "
                "differences mix other data; remove the runs on the earlier files, or give the new files another path"
            )
    found += _starts(entries)
    runs = {run.cell.fingerprint: run for run in runs_of(entries)}
    partial = [run for run in runs.values() if run.partial_test]
    if partial:
        found.append(
            f"partial test: {len(partial)} of {len(runs)} runs, such as {partial[0].name} with "
            f"{partial[0].partial_test}, did not use the whole test set; there is no difference from published values"
        )
    dirty = [run for run in runs.values() if any(map(_is_dirty, run.commits))]
    if dirty:
        commit = next(filter(_is_dirty, dirty[0].commits))
        found.append(
            f"uncommitted code: {len(dirty)} of {len(runs)} runs, such as {dirty[0].name}, used files that differ "
            f"from the commit, {commit}"
        )
    return found + _folds(entries) + _duplicates(entries)


def _starts(entries: Sequence[Entry]) -> list[str]:
    """Return the weights with which runs of each row began, and in which column they are counted."""
    found: dict[str, None] = {}
    for entry in entries:
        began: dict[str, list[Run]] = {}
        for run in entry.runs:
            began.setdefault(run.start, []).append(run)
        for start, of_start in began.items():
            if not start:
                continue
            line = f"{entry.row.label}: {len(of_start)} of {len(entry.runs)} runs {start}"
            if any(run.is_real_after_standin for run in of_start):
                line += "; they count as stand-in, although their own data are real"
            found[line] = None
    return [*found]


def _folds(entries: Sequence[Entry]) -> list[str]:
    """Return the error of every fold of each row, and what the intervals of such rows mean."""
    found = []
    for entry in entries:
        for real, mean in ((True, entry.ours), (False, entry.standin)):
            if isinstance(mean, Mean) and mean.by_fold:
                kind = "" if real else ", stand-in"
                folds = ", ".join(
                    f"{fold}: {decimals(value)}" for fold, value in mean.by_fold.items()
                )
                label = f"{entry.column.label}: folds of {entry.row.label}{kind}"
                runs = entry.runs_on(real=real)
                if not have_same_images(runs) or changed_files(runs):
                    folds += "; no interval, because runs of a fold were tested on different images"
                found.append(f"{label}: {folds}")
    if found:
        found.append(
            "the interval of a row covers other test pictures (other groups, if there are any), not other training "
            "pictures: folds share these, so that the deviation between folds is no measure of it (Bengio and "
            "Grandvalet 2004)"
        )
    return found


def _commits(runs: Iterable[Run]) -> dict[str, str]:
    """Return the name of a run for each commit, without the mark of uncommitted code."""
    found = {}
    for run in runs:
        for commit in run.commits:
            found[commit.removesuffix("-dirty")] = run.name
    return found


def _is_dirty(commit: str) -> bool:
    return commit.endswith("-dirty")


def _duplicates(entries: Sequence[Entry]) -> list[str]:
    """Return remarks on rows with other runs but the same test metrics as an earlier row for every seed."""
    found: dict[str, str] = {}
    for label, part in by_column(entries).items():
        first: dict[str, Entry] = {}
        for entry in part:
            tested = [run for run in entry.runs if run.result["test"]]
            if not tested:
                continue
            results = {run.cell.repetition: run.result["test"] for run in tested}
            same = first.setdefault(repr(sorted(results.items())), entry)
            if _directories(same).isdisjoint(_directories(entry)):
                names = f"{same.row.label}; {entry.row.label}"
                found.setdefault(names, f"{label}: identical test results for every seed: {names}")
    return [*found.values()]


def _directories(entry: Entry) -> set[Path]:
    return {run.directory for run in entry.runs}


def failures(entries: Sequence[Entry]) -> list[str]:
    """Return a line for each failed run, with reason and log, and one for all others of each status."""
    cells = {cell.fingerprint: cell for entry in entries for cell in entry.unfinished}
    lines = []
    others: dict[str, list[str]] = {}
    for cell in cells.values():
        if cell.status == FAILED:
            lines.append(f"{cell.name} failed: {cell.failure}")
        else:
            others.setdefault(cell.status, []).append(cell.name)
    for status, names in others.items():
        lines.append(f"{status}: {len(names)} runs, from {names[0]} to {names[-1]}")
    return lines


def _curves(entries: Sequence[Entry]) -> dict[str, dict[str, Path]]:
    """Return the files of curves of each trained row, by title of the figure and label of the run."""
    curves: dict[str, dict[str, Path]] = {}
    for entry in entries:
        if entry.row.of:
            continue
        title = f"{entry.row.label}: {entry.column.label}"
        for run in entry.runs:
            file = run.directory / "metrics.csv"
            if read_curves(file, run.result.get("curves")).empty:
                continue
            label = str(run.cell.repetition) + ("" if run.real else ", stand-in")
            curves.setdefault(title, {})[label] = file
    return curves


def _svg(figure: Figure) -> str:
    text = io.BytesIO()
    show_dollar_signs(figure)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "capsule_lab"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return _data("image/svg+xml", text.getvalue())


def _figures(run: Run) -> list[tuple[str, str]]:
    """Return names and contents of the figures in the run directory; others are left out with a warning."""
    figures = []
    for file in sorted((run.directory / "figures").glob("*.png")):
        try:
            content = read_regular(file, inside=run.directory, most=_LARGEST_FIGURE)
        except OSError as error:
            log.warning("%s is not shown: %s", file, error.strerror or one_line(error))
            continue
        if not content.startswith(_PNG):
            log.warning("%s is not shown: it is not a PNG", file)
            continue
        figures.append((file.stem.replace("_", " "), _data("image/png", content)))
    return figures


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_markdown, cells)) + " |"


def _markdown(text: str) -> str:
    """Escape ``text`` for Markdown, on one line, so that it cannot become HTML, a link or an image."""
    return _MARKUP.sub(r"\\\g<0>", printable(text))


def _code(text: str) -> str:
    """Format ``text`` as code, between more backticks than it contains."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    padding = " " if "`" in text else ""
    return f"{fence}{padding}{printable(text)}{padding}{fence}"
