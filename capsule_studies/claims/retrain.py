"""Trains the rows of a claim with new seeds."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from capsule_lab.commands.tables import read_table
from capsule_lab.errors import RunError
from capsule_lab.tables import reader
from capsule_lab.tables.schema import Column, Row, Table
from capsule_studies.claims.effects import Effect, effect_of, line_of
from capsule_studies.claims.read import RESULTS, ROOT
from capsule_studies.claims.recompute import files_of, write_report

SWEEPS = ROOT / "sweeps"
_OF_SWEEP = ("launcher=", "hydra", "budget=")  # arguments that a report does not have


@dataclass(frozen=True)
class Part:
    """The rows and columns of a table that a claim compares."""

    table: Table
    rows: list[str]
    columns: list[str]

    def arguments(self, seeds: Sequence[int]) -> list[str]:
        """Return the arguments of ``sweep``."""
        return [
            f"table={self.table.name}",
            f"rows=[{','.join(self.rows)}]",
            *([f"columns=[{','.join(self.columns)}]"] if self.columns != [""] else []),
            f"seeds=[{','.join(map(str, seeds))}]",
        ]


def parts_of(claim: dict[str, Any]) -> list[Part]:
    """Return what must be trained for a claim, for each of its tables.

    Raises:
        RunError: if its runs do not belong to a table.
    """
    for name in files_of(claim):
        if not (SWEEPS / f"{name}.yaml").is_file():
            raise RunError(
                f"{claim['id']} has no table in sweeps/; train its runs with their own command, for one seed: "
                f"{claim['command']}"
            )
    if "comparison" in claim:
        _, line = line_of(RESULTS, **claim["comparison"])
        places = []
        for side in ("first", "second"):
            places.append((line[side], line[f"{side}_column"]))
        return [_part(claim["comparison"]["file"], places)]
    of_files: dict[str, list[tuple[str, str]]] = {}
    for side in ("first", "second"):
        sample = claim[side]
        if isinstance(sample, dict):
            name = sample["file"].removesuffix("_runs.csv")
            places = of_files.setdefault(name, [])
            for key in ("column", "minus"):
                if key in sample:
                    places.append((sample["row"], sample[key]))
    parts = []
    for name, places in of_files.items():
        parts.append(_part(name, places))
    return parts


def _part(name: str, places: Sequence[tuple[str, str]]) -> Part:
    """Return the rows and columns whose labels are, or start with, those of some places."""
    table = read_table(name)
    rows = []
    columns = []
    for row, column in places:
        rows += _named(row, table.rows)
        columns += _named(column, table.columns)
    return Part(table, list(dict.fromkeys(rows)), list(dict.fromkeys(columns)))


def _named(label: str, places: Sequence[Row] | Sequence[Column]) -> list[str]:
    """Return the names of the rows or columns that have a label, or else of those whose label starts with it."""
    equal = []
    longer = []
    for place in places:
        if place.label == label:
            equal.append(place.name)
        elif place.label.startswith(label):
            longer.append(place.name)
    return equal or longer


def new_seeds(parts: Sequence[Part]) -> list[int]:
    """Return as many seeds as the first table has, above all that any table or record has."""
    first = max(used_seeds()) + 1
    return list(range(first, first + len(parts[0].table.seeds)))


def used_seeds() -> set[int]:
    """Return the seeds of all tables and records."""
    used: set[int] = set()
    for file in SWEEPS.glob("*.yaml"):
        used |= {*yaml.safe_load(file.read_text())["seeds"]}
    for file in RESULTS.glob("*_runs.csv"):
        used |= {*pd.read_csv(file).get("seed", [])}
    return used


def trained(
    claim: dict[str, Any], parts: Sequence[Part], seeds: Sequence[int], overrides: Sequence[str]
) -> Effect:
    """Train what is missing of the parts of a claim with these seeds, and return the effect.

    ``overrides`` are those of every run, and the launcher and budget of ``sweep``.
    """
    for part in parts:
        command = [sys.executable, "-m", "capsule_lab", "sweep", *part.arguments(seeds), *overrides]
        if subprocess.run(command, check=False).returncode:
            raise RunError(f"not all runs of {claim['id']} finished; the same command continues")
    of_runs = [override for override in overrides if not override.startswith(_OF_SWEEP)]
    with tempfile.TemporaryDirectory() as folder:
        for part in parts:
            table = reader.select(part.table, rows=part.rows, columns=part.columns, seeds=seeds)
            write_report(table, Path(folder), of_runs)
        try:
            return effect_of(claim, Path(folder))
        except ValueError as error:
            raise RunError(f"the runs of {claim['id']} give no difference: {error}") from error
