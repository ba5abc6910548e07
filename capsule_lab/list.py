"""List the runs: ``python -m capsule_lab.list``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from capsule_lab import runs
from capsule_lab.command import command
from capsule_lab.errors import printable
from capsule_lab.runs import lock
from capsule_lab.system.terminal import aligned, differences

HEADINGS = ("run", "state", "test error", "val error", "data", "last written", "overrides")
_OPTIONAL = ("last written", "val error")
"""Columns that are left out on a narrow terminal."""


@command("list")
def main(config: DictConfig) -> None:
    """Print a row for each run directory, the most recent last."""
    files = sorted(runs.directories.root().glob("*/config.yaml"), key=_written)
    described = {file.parent: runs.directories.read_overrides(file.parent) for file in files}
    matching = [run for run in described if str(config.contains) in f"{run.name} {described[run]}"]
    matching = matching[-config.last :]
    console = Console(highlight=False)
    if not matching:
        console.print(f"no matching runs in {runs.directories.root()}", soft_wrap=True, markup=False)
        return
    shared, differing = differences([shlex.split(described[directory]) for directory in matching])
    rows = [[*_row(directory), shlex.join(overrides)] for directory, overrides in zip(matching, differing, strict=True)]
    lines = aligned([HEADINGS, *rows])
    for left_out in _OPTIONAL if console.is_terminal or "COLUMNS" in os.environ else ():
        if max(map(len, lines)) > console.width:
            for row in rows:
                row[HEADINGS.index(left_out)] = ""
            lines = aligned([HEADINGS, *rows])
    if shared:
        lines.append(f"all runs have {shlex.join(shared)}")
    console.print("\n".join(map(printable, lines)), soft_wrap=True, markup=False)


def _row(directory: Path) -> list[str]:
    result = runs.results.read_metrics(directory) or {}
    errors = [_error(result.get(split, {})) for split in ("test", "val")]
    source = result.get("provenance", {}).get("source", "")
    written = datetime.fromtimestamp(_written(directory / "config.yaml")).strftime("%Y-%m-%d %H:%M")
    state = result.get("status") or _unfinished(directory)
    return [directory.name, state, *errors, source, written]


def _error(metrics: Mapping[str, float]) -> str:
    """Return the error, or the loss of a network without classes, as text."""
    if "error" in metrics:
        return f"{metrics['error']:.2f} %"
    return f"loss {metrics['loss']:.4g}" if "loss" in metrics else ""


def _unfinished(directory: Path) -> str:
    fingerprint = runs.directories.hash_in(directory)
    if fingerprint is not None and lock.is_locked(fingerprint):
        return "running"
    if paused := runs.results.read_pause(directory):
        return runs.results.describe_pause(paused)
    ended = runs.results.read_status(directory)
    return str(ended["status"]) if ended else "not finished"


def _written(config: Path) -> float:
    """Return when the log or the configuration of a run was last written, in seconds since 1970."""
    files = (config, config.with_name("train.log"))
    return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)


if __name__ == "__main__":
    main()
