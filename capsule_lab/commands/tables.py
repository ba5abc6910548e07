"""What the commands of a paper's table have in common: their options, and the reading of the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from capsule_lab.commands import load, measuring
from capsule_lab.config.declaration import Options, Place
from capsule_lab.config.folders import sweeps_dir
from capsule_lab.errors import TableError
from capsule_lab.tables import reader
from capsule_lab.tables.expand import merged
from capsule_lab.tables.schema import Column, Commands, Row, Table


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


def in_tables(places: Sequence[Place]) -> list[Place]:
    """Return the places of runs, whose overrides are known, in the tables of ``sweeps/``.

    A sweep gives the overrides of base, column and row in this order, then others and the seed; of several rows with
    these overrides, the one with most of them is returned. Tables that cannot be read are passed over.
    """
    texts = set()
    for place in places:
        if _has_seed(place.own):
            first, *_ = place.own
            texts.add(first)
    tables = [*_tables_with(texts)]
    return [_place_of(place.own, tables) for place in places]


def _has_seed(overrides: Sequence[str]) -> bool:
    return any(override.startswith("seed=") for override in overrides)


def _tables_with(texts: set[str]) -> Iterator[Table]:
    """Yield the tables whose files contain one of the texts; to read all of them takes a second."""
    for file in sorted(sweeps_dir().glob("*.yaml")):
        content = file.read_text(encoding="utf-8", errors="replace")
        if any(text in content for text in texts):
            try:
                yield read_table(file)
            except TableError:
                continue


def _place_of(overrides: Sequence[str], tables: Sequence[Table]) -> Place:
    best = Place([*overrides])
    for table in tables:
        for row in table.rows:
            for column in table.columns:
                own = _own(overrides, table, row, column)
                if own is not None and len(own) < len(best.own):
                    name = row.name
                    if column.overrides:
                        name += f"/{column.name}"
                    best = Place(own, table.name, name)
    return best


def _own(overrides: Sequence[str], table: Table, row: Row, column: Column) -> list[str] | None:
    """Return what a run of this row has besides the table's overrides; ``None`` if it is not of this row."""
    if column.name not in row.overrides:
        return None
    of_table = merged(table.base, column.overrides, row.overrides[column.name])
    count = len(of_table)
    own = [*overrides[count:]]
    if [*overrides[:count]] != of_table or not _has_seed(own):
        return None
    return own
