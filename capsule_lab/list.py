"""List the runs: ``python -m capsule_lab.list``."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from capsule_lab import runs
from capsule_lab.command import command
from capsule_lab.errors import ConfigError
from capsule_lab.runs import lock

WIDTH = 160  # ours: of tables in files and pipes


@command("list")
def main(config: DictConfig) -> None:
    """Print a row for each run directory, the latest last."""
    if not isinstance(config.last, int) or config.last < 1:
        raise ConfigError(f"last is {config.last}; expected 1 or more")
    table = Table(box=None, pad_edge=False)
    for heading in ("run", "state", "test error", "val error", "data", "last written", "overrides"):
        table.add_column(heading, justify="right" if "error" in heading else "left", overflow="fold")
    found = sorted(runs.directories.root().glob("*/config.yaml"), key=_written)
    rows = [_row(file.parent) for file in found]
    for row in [row for row in rows if str(config.contains) in f"{row[0]} {row[-1]}"][-config.last :]:
        table.add_row(*map(escape, row))
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    console.print(table if table.rows else f"no such runs in {runs.directories.root()}")


def _row(directory: Path) -> list[str]:
    try:
        result = json.loads((directory / "metrics.json").read_text())
    except (OSError, ValueError):  # not finished, or damaged
        result = None
    fingerprint = runs.directories.hash_in(directory)
    unfinished = "running" if fingerprint is not None and lock.is_locked(fingerprint) else "not finished"
    state = str(_value(result, "status") or unfinished)
    errors = [_value(result, split, "error") for split in ("test", "val")]
    shown = [f"{error:.2f} %" if isinstance(error, int | float) else "" for error in errors]
    source = str(_value(result, "provenance", "source") or "")
    written = datetime.fromtimestamp(_written(directory / "config.yaml")).strftime("%Y-%m-%d %H:%M")
    return [directory.name, state, *shown, source, written, runs.directories.read_overrides(directory)]


def _value(result: Any, *keys: str) -> Any:
    """What is under these keys of a JSON file; ``None`` if there is nothing."""
    for key in keys:
        result = result.get(key) if isinstance(result, dict) else None
    return result


def _written(config: Path) -> float:
    """When a run was last written to, as far as its log and its configuration tell, in seconds since 1970."""
    files = (config, config.with_name("train.log"))
    return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)


if __name__ == "__main__":
    main()
