"""Writes results/plans.csv: which comparisons stood in their tables before their runs.

``python -m capsule_studies.claims.plans`` needs the history of the repository; ``make claims`` only reads the file, so
that a clone without history writes the same page. A test computes the file again where the history is there.

A comparison is planned if the table in the commit of every run has the same comparison (margin and test), all that its
values depend on, and no member of its family that was removed later; and if no results of this table were in the
repository when the comparison was added. It is unknown if the commit of a run is not recorded, is not in the history,
or does not have the code of the run (``-dirty``).

An analysis can be planned although its networks were trained before: ``trained_before_plan`` says so.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import subprocess
from collections.abc import Iterable
from typing import Any

import pandas as pd
import yaml

from capsule_studies.claims.read import RESULTS, ROOT

FILE = RESULTS / "plans.csv"

_COMPARISONS = "_comparisons.csv"
_RESULTS = (".csv", "_runs.csv", _COMPARISONS, "_runs.tar.gz")
_NOT_RECORDED = "not_recorded"


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
    return is_shallow == "false" and _is_in_history(first)


def _plans_of(table: str) -> list[dict[str, Any]]:
    text = (ROOT / "sweeps" / f"{table}.yaml").read_text()
    now = _parsed(text)
    answers = pd.read_csv(RESULTS / f"{table}{_COMPARISONS}", keep_default_na=False)
    # a commit of digits only is no number
    text_columns = {"commit": str}
    runs = pd.read_csv(RESULTS / f"{table}_runs.csv", dtype=text_columns, keep_default_na=False)
    found = []
    for comparison in now["comparisons"]:
        lines = answers[answers["comparison"] == comparison["name"]]
        if lines.empty:
            continue
        runs_of_lines = _runs_of(runs, lines)
        commits = _commits(runs_of_lines)
        trainings = _commits(_trainings_of(runs, runs_of_lines))
        missing = _missing(commits)
        added = _added(table, now, comparison)
        known = bool(added) and _had_results(added, table)
        planned = "no" if known else _stood(commits, table, now, comparison)
        lines_of_family = [_count(now, each) for each in _family(now, comparison)]
        trained_before = ""
        if trainings:
            stood = _stood(trainings, table, now, comparison)
            trained_before = {"yes": "no", "no": "yes", "unknown": "unknown"}[stood]
        plan = {
            "table": table,
            "comparison": comparison["name"],
            "planned": planned,
            "added": added,
            "results_known": "yes" if known else "no",
            "commits_of_runs": " ".join(commits),
            "missing_commits": " ".join(missing),
            "seeds_planned": len(now["seeds"]),
            "commits_of_trainings": " ".join(trainings),
            "trained_before_plan": trained_before,
            "lines_of_family": sum(lines_of_family),
        }
        found.append(plan)
    return found


def _runs_of(runs: pd.DataFrame, lines: pd.DataFrame) -> pd.DataFrame:
    """Return the runs behind some lines of a file of comparisons."""
    rows = [*lines["first"], *lines["second"]]
    columns = [*lines["first_column"], *lines["second_column"]]
    runs = runs[runs["status"] == "done"]
    runs = runs[runs["row"].isin(rows)]
    return runs[runs["column"].isin(columns)]


def _trainings_of(runs: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Return the trainings of the networks that some runs evaluate or analyse."""
    analyses = measured[~_is_training(measured)]
    trainings = runs[_is_training(runs)]
    return trainings[trainings["directory"].isin(analyses["directory"])]


def _is_training(runs: pd.DataFrame) -> pd.Series:
    return runs["command"].str.contains(r"\bcapsule.lab.train\b")


def _commits(runs: pd.DataFrame) -> list[str]:
    """Return the commits of some runs; a run that continued with other code has several."""
    commits: set[str] = set()
    for recorded in runs["commit"].replace("", _NOT_RECORDED):
        commits.update(recorded.split("; "))
    return sorted(commits)


def _had_results(commit: str, table: str) -> bool:
    """Return whether results of a table were in the repository in a commit, or in one before."""
    files = [f"results/{table}{suffix}" for suffix in _RESULTS]
    return bool(_git("log", "-1", "--format=%h", commit, "--", *files))


def _stood(commits: list[str], table: str, now: dict[str, Any], comparison: dict[str, Any]) -> str:
    """Return whether a table had the comparison in all commits: yes, no or unknown."""
    if not commits or _missing(commits):
        return "unknown"
    stood = all(_stands(_at(commit, table), now, comparison) for commit in commits)
    return "yes" if stood else "no"


def _added(table: str, now: dict[str, Any], comparison: dict[str, Any]) -> str:
    """Return the first commit whose table has this comparison, with all that it depends on."""
    file = f"sweeps/{table}.yaml"
    commits = _git("log", "--reverse", "--format=%h", "--abbrev=8", "--", file)
    for commit in commits.split():
        if _stands(_at(commit, table), now, comparison):
            return commit
    return ""


def _stands(then: dict[str, Any], now: dict[str, Any], comparison: dict[str, Any]) -> bool:
    """Return whether a table had the comparison, with all that its values and its correction depend on."""
    if comparison not in then.get("comparisons", []):
        return False
    # a family that has become larger is corrected more strictly
    is_smaller = any(each not in now["comparisons"] for each in _family(then, comparison))
    return not is_smaller and _depends_on(then, comparison) == _depends_on(now, comparison)


def _family(table: dict[str, Any], comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all comparisons that are corrected together with one."""
    family = comparison.get("family")
    if not family:
        return [comparison]
    return [each for each in table["comparisons"] if each.get("family") == family]


def _count(table: dict[str, Any], comparison: dict[str, Any]) -> int:
    """Return how many lines a comparison has in the report if nothing is missing."""
    rows = comparison.get("rows", [row["name"] for row in table["rows"]])
    columns = comparison.get("columns") or table.get("columns") or [""]
    count = 0
    for row, column in itertools.product(rows, columns):
        other_row = comparison.get("against", row)
        other_column = comparison.get("against_column", column)
        if (row, column) != (other_row, other_column):
            count += 1
    return count


def _depends_on(table: dict[str, Any], comparison: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a table that the values of a comparison depend on."""
    standard = {"metric": table.get("metric", "test/error")}
    every_column = table.get("columns") or {"": {}}
    names = {comparison.get("against_column"), *comparison.get("columns", every_column)}
    columns = {}
    for name, column in every_column.items():
        if name in names:
            columns[name] = {**standard, **column}
    return {
        "seeds": table.get("seeds"),
        "folds": table.get("folds"),
        "base": table.get("base"),
        "columns": columns,
        "rows": _rows(table, comparison, columns),
    }


def _rows(
    table: dict[str, Any], comparison: dict[str, Any], columns: Iterable[str]
) -> list[dict[str, Any]]:
    """Return the rows of a comparison, and those whose weights or values they use, in some columns."""
    every_row = [row["name"] for row in table["rows"]]
    names = {comparison.get("against"), *comparison.get("rows", every_row)}
    found = []
    # a row uses only rows above it
    for row in reversed(table["rows"]):
        if row["name"] in names:
            found.append(_in_columns(row, columns))
            names.add(row.get("of"))
            for other, _ in row.get("takes", {}).values():
                names.add(other)
    return found


def _in_columns(row: dict[str, Any], columns: Iterable[str]) -> dict[str, Any]:
    """Return a row with what it sets by column, or by a pattern of columns, for these columns only."""
    found = dict(row)
    for key, value in row.items():
        if key != "takes" and isinstance(value, dict):
            found[key] = _by_column(value, columns)
    return found


def _by_column(settings: dict[str, Any], columns: Iterable[str]) -> dict[str, Any]:
    by_column = {}
    for pattern, value in settings.items():
        for column in fnmatch.filter(columns, str(pattern)):
            by_column[column] = value
    return by_column


@functools.cache
def _at(commit: str, table: str) -> dict[str, Any]:
    return _parsed(_git("show", f"{commit}:sweeps/{table}.yaml"))


def _missing(commits: list[str]) -> list[str]:
    return [commit for commit in commits if not _is_in_history(commit)]


def _is_in_history(commit: str) -> bool:
    """Return whether a commit is HEAD or before it; one with the suffix -dirty is none, its changes are unknown."""
    full = _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    return bool(full) and _git("merge-base", full.strip(), "HEAD") == full


def _parsed(text: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = yaml.safe_load(text) or {}
    except yaml.YAMLError:  # a table that could not be read then was no plan
        return {}
    return found


@functools.cache
def _git(*arguments: str) -> str:
    """Return what git prints; empty if it fails, or is not installed."""
    try:
        found = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return found.stdout


if __name__ == "__main__":
    plans().to_csv(FILE, index=False)
