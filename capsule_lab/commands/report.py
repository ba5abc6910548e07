"""Compare results in run directories with a paper's table: ``capsule-lab report table=…``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from capsule_lab.commands.declare import command
from capsule_lab.commands.tables import TableOptions, selected_table
from capsule_lab.config.check_options import check_effect
from capsule_lab.errors import printable
from capsule_lab.system.extras import require
from capsule_lab.tables.arguments import for_hydra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from capsule_lab.tables.comparisons import Compared
    from capsule_lab.tables.schema import Table
    from capsule_lab.tables.summary import Entry

WIDTH = 160  # ours: characters in a line, in files and pipes


class ReportOptions(TableOptions):
    """Options of ``report``."""

    out: str | None = None
    """A folder for <table>.md, .csv, .tex, .html, .png; default: reports beside the runs."""
    difference: float | None = None
    """Plan the comparisons of the table for a difference of this size, in the unit of the column."""
    power: float = 0.8  # Cohen 1988
    """With this probability of finding it."""


@command(
    "report",
    ReportOptions,
    first="table",
    for_hydra=partial(for_hydra, options=ReportOptions),
)
def main(options: ReportOptions) -> None:
    """Print the table, and write it as Markdown, CSV, LaTeX and HTML, with its figures."""
    require("report", "report", "jinja2", "pandas", "scipy")
    from capsule_lab import runs
    from capsule_lab.tables.comparisons import compared, plan
    from capsule_lab.tables.summary import summarise

    if options.difference is None:
        check_effect(options, "without difference=", ["power"])
    table = selected_table(options)
    entries = summarise(table, options.overrides)
    answers = compared(table, entries)
    planned: list[str] = []
    if options.difference is not None:
        planned = plan(answers, options.difference, options.power)
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    _print(console, table, entries, answers, planned)
    folder = Path(options.out) if options.out else runs.directories.root() / "reports"
    command_line = _command_line(options)
    for path in _write(folder, table, entries, answers, command_line):
        console.print(f"written to {path}", markup=False, soft_wrap=True)


def _print(
    console: Console,
    table: Table,
    entries: Sequence[Entry],
    answers: Sequence[Compared],
    planned: Sequence[str],
) -> None:
    from capsule_lab.tables import comparison_formats, formats
    from capsule_lab.tables.progress import running

    for shown in formats.on_terminal(table, entries):
        console.print(shown)
    if answers:
        console.print(comparison_formats.on_terminal(answers))
    for run in running(entries):
        line = f"{run.cell.name}  {run.bar}  {run.text}"
        console.print(printable(line), markup=False, soft_wrap=True)
    for line in formats.remarks(entries):
        console.print(printable(line), markup=False)
    for line in [*formats.failures(entries), *planned]:
        console.print(printable(line), markup=False, soft_wrap=True)


def _write(
    folder: Path,
    table: Table,
    entries: Sequence[Entry],
    answers: Sequence[Compared],
    command_line: str,
) -> Iterator[str]:
    """Write all files; yield what was written."""
    from capsule_lab import runs
    from capsule_lab.tables import comparison_formats, formats
    from capsule_lab.tables.figure import error_against_time, figures_by_command

    costs = error_against_time(entries)
    figures = figures_by_command(table, entries)
    texts = {
        ".md": formats.as_markdown(table, entries, command_line, answers),
        ".csv": formats.as_csv(formats.as_frame(entries)),
        "_runs.csv": formats.as_csv(formats.runs_frame(entries)),
        ".tex": formats.as_latex(table, entries, answers),
        ".html": formats.as_page(
            table, entries, command_line, costs, figures, answers, folder.absolute()
        ),
    }
    if answers:
        texts["_comparisons.csv"] = formats.as_csv(comparison_formats.as_frame(answers))
    for ending, text in texts.items():
        path = folder / f"{table.name}{ending}"
        runs.files.write_text(path, text)
        yield str(path)
    drawn: dict[str, Figure | None] = {
        "": costs,
        "_runs": comparison_formats.runs_as_dots(entries),
        "_differences": comparison_formats.differences(answers),
    }
    drawn |= {f"_{name}": figure for name, figure in figures.items()}
    for ending, figure in drawn.items():
        if figure is not None:
            for kind in ("png", "pdf", "svg"):
                runs.files.save_figure(figure, folder / f"{table.name}{ending}.{kind}")
            yield f"{folder / table.name}{ending}.png, .pdf and .svg"


def _command_line(options: ReportOptions) -> str:
    """Return the command that makes this report."""
    words = ["capsule-lab", "report"]
    for key, option in main.own_options.items():
        value = getattr(options, key)
        if key != "overrides" and value != option.default:
            text = f"[{','.join(map(str, value))}]" if isinstance(value, list) else value
            words.append(f"{key}={text}")
    return shlex.join([*words, *options.overrides])


if __name__ == "__main__":
    main()
