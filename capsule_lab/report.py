"""Compare results in run directories with a paper's table: ``python -m capsule_lab.report``."""

from __future__ import annotations

import os
import shlex
import sys
from functools import partial
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from capsule_lab.command import command
from capsule_lab.config.compose import check_effect
from capsule_lab.errors import printable
from capsule_lab.tables.arguments import FOR_REPORT, for_hydra

WIDTH = 160  # ours: characters in a line, in files and pipes


def report(config: DictConfig, command_line: str) -> None:
    """Print the table, and write it as Markdown, CSV, LaTeX and HTML, with its figures.

    Args:
        config: options of ``conf/report.yaml``.
        command_line: the command as the user typed it.
    """
    from capsule_lab import runs
    from capsule_lab.tables import comparison_formats, formats
    from capsule_lab.tables.comparisons import compared, plan
    from capsule_lab.tables.figure import error_against_time, figures_by_command
    from capsule_lab.tables.reader import read, select
    from capsule_lab.tables.summary import summarise

    if config.difference is None:
        check_effect(config, "report", "without difference=", ["power"])
    table = select(
        read(config.table, config.overrides),
        rows=config.rows,
        columns=config.columns,
        seeds=config.seeds,
    )
    entries = summarise(table, list(config.overrides))
    answers = compared(table, entries)
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    for shown in formats.on_terminal(table, entries):
        console.print(shown)
    if answers:
        console.print(comparison_formats.on_terminal(answers))
    for line in [*formats.remarks(entries), *formats.failures(entries)]:
        console.print(printable(line), markup=False, soft_wrap=True)
    for line in (
        plan(answers, config.difference, config.power) if config.difference is not None else ()
    ):
        console.print(printable(line), markup=False, soft_wrap=True)
    folder = Path(str(config.out)) if config.out else runs.directories.root() / "reports"
    costs = error_against_time(entries)
    figures = figures_by_command(entries)
    for name, text in {
        f"{table.name}.md": formats.as_markdown(table, entries, command_line, answers),
        f"{table.name}.csv": formats.as_csv(formats.as_frame(entries)),
        f"{table.name}_runs.csv": formats.as_csv(formats.runs_frame(entries)),
        f"{table.name}.tex": formats.as_latex(table, entries, answers),
        f"{table.name}.html": formats.as_page(
            table, entries, command_line, costs, figures, answers
        ),
        **(
            {f"{table.name}_comparisons.csv": formats.as_csv(comparison_formats.as_frame(answers))}
            if answers
            else {}
        ),
    }.items():
        runs.files.write_text(folder / name, text)
        console.print(f"written to {folder / name}", markup=False, soft_wrap=True)
    drawn = {
        "": costs,
        "_runs": comparison_formats.runs_as_dots(entries),
        "_differences": comparison_formats.differences(answers),
        **{f"_{key}": figure for key, figure in figures.items()},
    }
    for ending, figure in drawn.items():
        if figure is not None:
            for kind in ("png", "pdf", "svg"):
                runs.files.save_figure(figure, folder / f"{table.name}{ending}.{kind}")
            console.print(
                f"written to {folder / table.name}{ending}.png, .pdf and .svg",
                markup=False,
                soft_wrap=True,
            )


def main() -> None:
    """Run the Hydra command, which receives the overrides of training runs as one list."""
    command_line = shlex.join(["python", "-m", "capsule_lab.report", *sys.argv[1:]])

    def run(config: DictConfig) -> None:
        report(config, command_line)

    command("report", partial(for_hydra, command_keys=FOR_REPORT))(run)()


if __name__ == "__main__":
    main()
