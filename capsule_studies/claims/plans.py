"""Writes results/plans.csv: which comparisons stood in their tables before their runs.

``python -m capsule_studies.claims.plans`` needs the history of the repository; ``make claims`` only reads the file, so
that a clone without history writes the same page. A test computes the file again where the history is there.

A comparison is planned if the table in the commit of every run has the same comparison (family, margin and test), the
same measures and the same rows, and if no results of this table were in the repository when the comparison was added.
It is unknown if the commit of a run does not exist in the repository.
"""

from __future__ import annotations

import functools
import re
import subprocess
from typing import Any

import pandas as pd
import yaml

from capsule_studies.claims.read import RESULTS, ROOT

FILE = RESULTS / "plans.csv"


def plans() -> pd.DataFrame:
    """Return one line for each comparison that has results."""
    tables = sorted(
        file.name.removesuffix("_comparisons.csv") for file in RESULTS.glob("*_comparisons.csv")
    )
    return pd.DataFrame([plan for table in tables for plan in _plans_of(table)])


def has_history() -> bool:
    """Whether this is a clone with all commits, and not a copy of the files."""
    first = pd.read_csv(FILE)["added"].iloc[0]
    return _git("rev-parse", "--is-shallow-repository").strip() == "false" and bool(
        _git("cat-file", "-t", first)
    )


def _plans_of(table: str) -> list[dict[str, Any]]:
    now = _parsed((ROOT / "sweeps" / f"{table}.yaml").read_text())
    answers = pd.read_csv(RESULTS / f"{table}_comparisons.csv", keep_default_na=False)
    runs = pd.read_csv(RESULTS / f"{table}_runs.csv", keep_default_na=False)
    found = []
    for comparison in now["comparisons"]:
        lines = answers[answers["comparison"] == comparison["name"]]
        if lines.empty:
            continue
        rows, columns = (
            {*lines["first"], *lines["second"]},
            {*lines["first_column"], *lines["second_column"]},
        )
        of_lines = runs[
            runs["row"].isin(rows) & runs["column"].isin(columns) & (runs["status"] == "done")
        ]
        commits = sorted({*of_lines["commit"]} - {""})
        missing = [commit for commit in commits if not _git("cat-file", "-t", commit)]
        added = _added(table, comparison)
        known = bool(added) and bool(
            _git("cat-file", "-t", f"{added}^:results/{table}_comparisons.csv")
        )
        stood = all(
            _stands(_at(commit, table), now, comparison)
            for commit in commits
            if commit not in missing
        )
        found.append(
            {
                "table": table,
                "comparison": comparison["name"],
                "planned": "unknown" if missing else "yes" if stood and not known else "no",
                "added": added,
                "results_known": "yes" if known else "no",
                "commits_of_runs": " ".join(commits),
                "missing_commits": " ".join(missing),
                "seeds_planned": len(now["seeds"]),
            }
        )
    return found


def _added(table: str, comparison: dict[str, Any]) -> str:
    """Return the first commit whose table has this comparison."""
    for commit in _git(
        "log", "--reverse", "--format=%h", "--abbrev=8", "--", f"sweeps/{table}.yaml"
    ).split():
        if comparison in _at(commit, table).get("comparisons", []):
            return commit
    return ""


def _stands(then: dict[str, Any], now: dict[str, Any], comparison: dict[str, Any]) -> bool:
    """Return whether a table had the comparison with the same seeds, measures and rows."""
    rows = {
        comparison.get("against"),
        *comparison.get("rows", [row["name"] for row in now["rows"]]),
    }
    columns = {comparison.get("against_column"), *comparison.get("columns", now["columns"])}
    same_comparison = comparison in then.get("comparisons", [])
    same_seeds = then.get("seeds") == now["seeds"]
    same_measures = _measures(then, columns) == _measures(now, columns)
    return (
        same_comparison
        and same_seeds
        and same_measures
        and _settings(then, rows) == _settings(now, rows)
    )


def _measures(table: dict[str, Any], columns: set[Any]) -> dict[str, Any]:
    known = table.get("columns", {})
    return {name: (known[name] or {}).get("metric") for name in columns if name in known}


def _settings(table: dict[str, Any], rows: set[Any]) -> dict[str, Any]:
    known = {row["name"]: row for row in table.get("rows", [])}
    return {name: known[name].get("overrides") for name in rows if name in known}


@functools.cache
def _at(commit: str, table: str) -> dict[str, Any]:
    return _parsed(_git("show", f"{commit}:sweeps/{table}.yaml"))


def _parsed(text: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text) or {}
    return found


@functools.cache
def _git(*arguments: str) -> str:
    """Return what git prints; empty if it fails, or is not installed."""
    safe = [re.sub(r"-dirty\b", "", argument) for argument in arguments]
    try:
        return subprocess.run(
            ["git", *safe], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        return ""


if __name__ == "__main__":
    plans().to_csv(FILE, index=False)
