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


_COMPARISONS = "_comparisons.csv"


def plans() -> pd.DataFrame:
    """Return one line for each comparison that has results."""
    found = []
    for file in sorted(RESULTS.glob(f"*{_COMPARISONS}")):
        table = file.name.removesuffix(_COMPARISONS)
        found += _plans_of(table)
    return pd.DataFrame(found)


def has_history() -> bool:
    """Whether this is a clone with all commits, and not a copy of the files."""
    first = pd.read_csv(FILE)["added"].iloc[0]
    is_shallow = _git("rev-parse", "--is-shallow-repository").strip()
    return is_shallow == "false" and _exists(first)


def _plans_of(table: str) -> list[dict[str, Any]]:
    text = (ROOT / "sweeps" / f"{table}.yaml").read_text()
    now = _parsed(text)
    answers = pd.read_csv(RESULTS / f"{table}{_COMPARISONS}", keep_default_na=False)
    runs = pd.read_csv(RESULTS / f"{table}_runs.csv", keep_default_na=False)
    found = []
    for comparison in now["comparisons"]:
        lines = answers[answers["comparison"] == comparison["name"]]
        if lines.empty:
            continue
        commits = _commits(runs, lines)
        missing = [commit for commit in commits if not _exists(commit)]
        added = _added(table, comparison)
        known = bool(added) and _exists(f"{added}^:results/{table}{_COMPARISONS}")
        planned = "unknown"
        if not missing:
            stood = all(_stands(_at(commit, table), now, comparison) for commit in commits)
            planned = "yes" if stood and not known else "no"
        plan = {
            "table": table,
            "comparison": comparison["name"],
            "planned": planned,
            "added": added,
            "results_known": "yes" if known else "no",
            "commits_of_runs": " ".join(commits),
            "missing_commits": " ".join(missing),
            "seeds_planned": len(now["seeds"]),
        }
        found.append(plan)
    return found


def _commits(runs: pd.DataFrame, lines: pd.DataFrame) -> list[str]:
    """Return the commits of the runs behind some lines of a file of comparisons."""
    rows = [*lines["first"], *lines["second"]]
    columns = [*lines["first_column"], *lines["second_column"]]
    runs = runs[runs["status"] == "done"]
    runs = runs[runs["row"].isin(rows)]
    runs = runs[runs["column"].isin(columns)]
    commits = set(runs["commit"]) - {""}
    return sorted(commits)


def _added(table: str, comparison: dict[str, Any]) -> str:
    """Return the first commit whose table has this comparison."""
    file = f"sweeps/{table}.yaml"
    commits = _git("log", "--reverse", "--format=%h", "--abbrev=8", "--", file)
    for commit in commits.split():
        if comparison in _at(commit, table).get("comparisons", []):
            return commit
    return ""


def _stands(then: dict[str, Any], now: dict[str, Any], comparison: dict[str, Any]) -> bool:
    """Return whether a table had the comparison with the same seeds, measures and rows."""
    if comparison not in then.get("comparisons", []) or then.get("seeds") != now["seeds"]:
        return False
    every_row = [row["name"] for row in now["rows"]]
    rows = {comparison.get("against"), *comparison.get("rows", every_row)}
    columns = {comparison.get("against_column"), *comparison.get("columns", now["columns"])}
    has_same_measures = _measures(then, columns) == _measures(now, columns)
    has_same_settings = _settings(then, rows) == _settings(now, rows)
    return has_same_measures and has_same_settings


def _measures(table: dict[str, Any], columns: set[Any]) -> dict[str, Any]:
    """Return the metrics of some columns of a table."""
    metrics = {}
    for name, column in table.get("columns", {}).items():
        if name in columns:
            metrics[name] = (column or {}).get("metric")
    return metrics


def _settings(table: dict[str, Any], rows: set[Any]) -> dict[str, Any]:
    """Return the overrides of some rows of a table."""
    settings = {}
    for row in table.get("rows", []):
        if row["name"] in rows:
            settings[row["name"]] = row.get("overrides")
    return settings


@functools.cache
def _at(commit: str, table: str) -> dict[str, Any]:
    return _parsed(_git("show", f"{commit}:sweeps/{table}.yaml"))


def _exists(name: str) -> bool:
    """Return whether git knows a commit, or a file in one."""
    return bool(_git("cat-file", "-t", name))


def _parsed(text: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text) or {}
    return found


@functools.cache
def _git(*arguments: str) -> str:
    """Return what git prints; empty if it fails, or is not installed."""
    safe = [re.sub(r"-dirty\b", "", argument) for argument in arguments]
    try:
        found = subprocess.run(
            ["git", *safe], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return found.stdout


if __name__ == "__main__":
    plans().to_csv(FILE, index=False)
