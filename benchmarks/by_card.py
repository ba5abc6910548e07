"""What was measured on GPUs, by card: ``python -m benchmarks.by_card gpu.json commit=<hash>``.

Adds the rows of files of ``benchmarks.gpu`` to ``results/gpu/kernels_and_steps.csv``, and writes the tables of
``docs/gpu.md`` from it. A measurement replaces an earlier one of the same case with the same card, versions and commit.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from capsule_lab.errors import ConfigError
from capsule_lab.runs import files

ROOT = Path(__file__).parents[1]
FILE, PAGE = ROOT / "results" / "gpu" / "kernels_and_steps.csv", ROOT / "docs" / "gpu.md"
ENVIRONMENT = ("card", "torch", "triton", "commit")
CASE = ("kind", "case", "sizes", "form", "precision")
MEASURED = ("ms", "roofline_percent", "images_per_second", "memory_gb")
COLUMNS = ("date", *ENVIRONMENT, *CASE, *MEASURED, "note")
TABLE = re.compile(r"(<!-- measured by card: .* -->\n).*?(<!-- end -->)", re.DOTALL)
HEAD = (
    "| kind | case | sizes | form | precision | ms | % of the roofline | images/s | GB | note |\n" + "|---" * 10 + "|\n"
)

Row = dict[str, str]


def rows_of(report: dict[str, Any], commit: str | None = None) -> list[Row]:
    """Return the rows of a file of ``benchmarks.gpu``, without cases that failed.

    Args:
        report: the content of the file.
        commit: replaces the commit of the file, which is unknown where there was no git.

    Raises:
        ConfigError: if the commit is unknown.
    """
    commit = commit or report["commit"]
    if commit is None:
        raise ConfigError("the file names no commit; expected commit=<hash of the code that was measured>")
    versions = report["versions"]
    environment = {
        "date": report["date"],
        "card": report["hardware"].removeprefix("1 x "),
        "torch": versions["torch"],
        "triton": report.get("triton", ""),
        "commit": commit,
    }
    return [environment | _measured(row) for row in report["rows"] if "error" not in row]


def _measured(row: dict[str, Any]) -> Row:
    images = row.get("images_per_second")
    return {
        "kind": "step" if row["kind"] == "model" else row["kind"],
        "case": row["name"],
        "sizes": row["sizes"],
        "form": row["form"],
        "precision": row["precision"],
        "ms": f"{1e3 * row['seconds_median']:.4g}",
        "roofline_percent": f"{row['roofline_percent']:.3g}",
        "images_per_second": "" if images is None else f"{images:.0f}",
        "memory_gb": f"{row['peak_memory_bytes'] / 1e9:.3g}",
        "note": "",
    }


def merged(rows: Iterable[Row]) -> list[Row]:
    """Return the last row of each case in each environment, at the place of the first."""
    last = {tuple(row[name] for name in (*ENVIRONMENT, *CASE)): row for row in rows}
    return list(last.values())


def read() -> list[Row]:
    """Return the rows of the file."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def csv_text(rows: Iterable[Row]) -> str:
    """Return rows as CSV."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def with_tables(page: str, rows: Iterable[Row]) -> str:
    """Return the page with a table of each card, its versions and its commit."""
    tables = []
    for (card, torch, triton, commit), group in groupby(rows, key=lambda row: [row[name] for name in ENVIRONMENT]):
        of_group = list(group)
        head = f"**{card}**, torch {torch}, Triton {triton}, commit {commit}, {of_group[0]['date']}\n\n{HEAD}"
        lines = [_line(row) for row in of_group]
        tables.append(head + "\n".join(lines) + "\n")
    text = "\n".join(tables)
    return TABLE.sub(lambda match: f"{match[1]}\n{text}\n{match[2]}", page)


def _line(row: Row) -> str:
    cells = row | {"case": f"`{row['case']}`"}
    return f"| {' | '.join(cells[name] for name in (*CASE, *MEASURED, 'note'))} |"


def main(arguments: Sequence[str]) -> None:
    """Add files of ``benchmarks.gpu``, if there are any, and write the page."""
    commits = [argument.removeprefix("commit=") for argument in arguments if argument.startswith("commit=")]
    rows = read()
    for path in (Path(argument) for argument in arguments if not argument.startswith("commit=")):
        rows += rows_of(json.loads(path.read_text(encoding="utf-8")), *commits)
    rows = merged(rows)
    files.write_text(FILE, csv_text(rows))
    files.write_text(PAGE, with_tables(PAGE.read_text(encoding="utf-8"), rows))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ConfigError as error:
        sys.exit(f"benchmarks.by_card: {error}")
