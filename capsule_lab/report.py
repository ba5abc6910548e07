"""What a paper's table came to: ``python -m capsule_lab.report table=smoke``, from run directories alone."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from capsule_lab.command import command
from capsule_lab.tables import arguments

WIDTH = 160  # ours: of tables in files and pipes


def report(config: DictConfig, made_by: str) -> None:
    """Show the table, write it as Markdown, CSV, LaTeX and HTML.

    Args:
        config: of ``conf/report.yaml``.
        made_by: the command, as it was typed.
    """
    from capsule_lab import runs
    from capsule_lab.tables import formats
    from capsule_lab.tables.schema import chosen, read
    from capsule_lab.tables.summary import summarise

    table = chosen(read(config.table), rows=config.rows, columns=config.columns, seeds=config.seeds)
    entries = summarise(table, arguments.of_runs(config.overrides))
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    for shown in formats.on_terminal(table, entries):
        console.print(shown)
    for failure in formats.failures(entries):
        console.print(failure, markup=False, soft_wrap=True)
    folder = Path(str(config.out)) if config.out else runs.directories.root() / "reports"
    for name, text in {
        f"{table.name}.md": formats.as_markdown(table, entries, made_by),
        f"{table.name}.csv": formats.as_frame(entries).to_csv(index=False, float_format="%.6g"),
        f"{table.name}_runs.csv": formats.runs_frame(entries).to_csv(index=False, float_format="%.6g"),
        f"{table.name}.tex": formats.as_latex(table, entries),
        f"{table.name}.html": formats.as_page(table, entries, made_by),
    }.items():
        runs.files.write_text(folder / name, text)
        console.print(f"written to {folder / name}", soft_wrap=True)


def main() -> None:
    """Hydra's command, to which the words for training runs go as one list."""
    made_by = shlex.join(["python", "-m", "capsule_lab.report", *sys.argv[1:]])

    def run(config: DictConfig) -> None:
        report(config, made_by)

    sys.argv[1:] = arguments.for_hydra(sys.argv[1:], (*arguments.OWN, "out"))
    command("report")(run)()


if __name__ == "__main__":
    main()
