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
HEAD = [
    "| kind | case | sizes | form | precision | ms | % of the roofline | images/s | GB | note |",
    "|---" * 10 + "|",
]

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
        raise ConfigError(
            "the file names no commit; expected commit=<hash of the code that was measured>"
        )
    environment = {
        "date": report["date"],
        "card": report["hardware"].removeprefix("1 x "),
        "torch": report["versions"]["torch"],
        "triton": report.get("triton", ""),
        "commit": commit,
    }
    measured = [row for row in report["rows"] if "error" not in row]
    return [environment | _measured(row) for row in measured]


def _measured(row: dict[str, Any]) -> Row:
    milliseconds = 1e3 * row["seconds_median"]
    gigabytes = row["peak_memory_bytes"] / 1e9
    images = ""
    if "images_per_second" in row:
        images = f"{row['images_per_second']:.0f}"
    return {
        "kind": "step" if row["kind"] == "model" else row["kind"],
        "case": row["name"],
        "sizes": row["sizes"],
        "form": row["form"],
        "precision": row["precision"],
        "ms": f"{milliseconds:.4g}",
        "roofline_percent": f"{row['roofline_percent']:.3g}",
        "images_per_second": images,
        "memory_gb": f"{gigabytes:.3g}",
        "note": "",
    }


def merged(rows: Iterable[Row]) -> list[Row]:
    """Return the last row of each case in each environment, at the place of the first."""
    last: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in (*ENVIRONMENT, *CASE))
        last[key] = row
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
    lines = [""]
    for environment, group in groupby(rows, key=_environment):
        card, torch, triton, commit, date = environment
        lines += [f"**{card}**, torch {torch}, Triton {triton}, commit {commit}, {date}", "", *HEAD]
        lines += map(_line, group)
        lines.append("")
    text = "\n".join(lines)
    return TABLE.sub(lambda match: f"{match[1]}{text}\n{match[2]}", page)


def _environment(row: Row) -> list[str]:
    return [row[name] for name in (*ENVIRONMENT, "date")]


def _line(row: Row) -> str:
    shown = row | {"case": f"`{row['case']}`"}
    cells = [shown[name] for name in (*CASE, *MEASURED, "note")]
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str]) -> None:
    """Add files of ``benchmarks.gpu``, if there are any, and write the page."""
    commit = None
    paths = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key == "commit":
            commit = value
        else:
            paths.append(Path(argument))
    rows = read()
    for path in paths:
        report = json.loads(path.read_text(encoding="utf-8"))
        rows += rows_of(report, commit)
    rows = merged(rows)
    page = PAGE.read_text(encoding="utf-8")
    files.write_text(FILE, csv_text(rows))
    files.write_text(PAGE, with_tables(page, rows))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ConfigError as error:
        sys.exit(f"benchmarks.by_card: {error}")
