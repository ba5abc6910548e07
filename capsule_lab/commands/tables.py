"""What the commands of a paper's table have in common: their options, and the reading of the table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from capsule_lab.commands import load, measuring
from capsule_lab.config.declaration import Options
from capsule_lab.tables import reader
from capsule_lab.tables.schema import Commands, Table


class TableOptions(Options):
    """Options of the commands of a table."""

    table: Any = None
    """A file in sweeps/, or the path of another .yaml file."""
    rows: Any = None
    """Only these; default: all."""
    columns: Any = None
    """Only these; default: all."""
    seeds: Any = None
    """Default: the seeds of the table."""
    overrides: list[str] = Field([])
    """All other key=value: overrides of every run. Give the same ones to sweep and report."""


def read_table(table: str | Path | None, overrides: Sequence[str] = ()) -> Table:
    """Read a table whose rows are trained and measured by the commands of this installation; see ``reader.read``."""
    return reader.read(table, Commands(load("train"), measuring()), overrides)


def selected_table(options: TableOptions) -> Table:
    """Read the table, with only the rows, columns and seeds that the options name."""
    table = read_table(options.table, options.overrides)
    return reader.select(table, rows=options.rows, columns=options.columns, seeds=options.seeds)
