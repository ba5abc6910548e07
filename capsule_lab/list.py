"""List the runs: ``python -m capsule_lab.list``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from capsule_lab import runs
from capsule_lab.command import command
from capsule_lab.errors import ConfigError, printable
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
    described = {file.parent: runs.directories.read_overrides(file.parent) for file in found}
    wanted = [each for each in described if str(config.contains) in f"{each.name} {described[each]}"]
    for directory in wanted[-config.last :]:
        row = [*_row(directory), described[directory]]
        table.add_row(*(escape(printable(text)) for text in row))
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    console.print(table if table.rows else f"no such runs in {runs.directories.root()}")


def _row(directory: Path) -> list[str]:
    result = runs.results.read_metrics(directory) or {}
    shown = [_error(result.get(split, {})) for split in ("test", "val")]
    source = result.get("provenance", {}).get("source", "")
    written = datetime.fromtimestamp(_written(directory / "config.yaml")).strftime("%Y-%m-%d %H:%M")
    state = result.get("status") or _unfinished(directory)
    return [directory.name, state, *shown, source, written]


def _error(metrics: Mapping[str, float]) -> str:
    """Of a network without classes, its loss."""
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
    """When a run was last written to, as far as its log and its configuration tell, in seconds since 1970."""
    files = (config, config.with_name("train.log"))
    return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)


if __name__ == "__main__":
    main()
