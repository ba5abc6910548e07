"""Progress of the runs of a table that are training, from the heartbeats in their directories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from capsule_lab import runs
from capsule_lab.analysis.curves import read_curves
from capsule_lab.runs.results import Heartbeat
from capsule_lab.tables.cells import RUNNING, Cell
from capsule_lab.tables.summary import Entry

_BAR = 20  # ours: characters
_LONGEST = (
    10**9
)  # ours: seconds, 30 years; a file that was changed may contain more than a time can hold


@dataclass(frozen=True)
class Progress:
    """A run that is training, with its directory and its latest heartbeat."""

    cell: Cell
    directory: Path
    beat: Heartbeat

    @property
    def text(self) -> str:
        """Steps, the latest training loss and the remaining time, as far as they are known."""
        parts = [f"step {self.beat.steps:,} of {self.beat.planned_steps:,}"]
        losses = read_curves(self.curves).numbers("train/loss")
        if losses:
            parts.append(f"loss {losses[-1]:.4g}")
        if self.beat.seconds_left is not None:
            seconds = min(round(self.beat.seconds_left), _LONGEST)
            parts.append(f"left {timedelta(seconds=seconds)}")
        return ", ".join(parts)

    @property
    def bar(self) -> str:
        """A bar of characters."""
        share = self.beat.steps / max(self.beat.planned_steps, 1)
        done = min(max(round(_BAR * share), 0), _BAR)
        return "━" * done + "╌" * (_BAR - done)

    @property
    def curves(self) -> Path:
        """The file with its metrics so far."""
        return self.directory / "metrics.csv"


def running(entries: Sequence[Entry]) -> list[Progress]:
    """Return the runs that are training and have written a heartbeat, each once."""
    found: dict[str, Progress] = {}
    for entry in entries:
        for cell in entry.unfinished:
            progress = _progress_of(cell)
            if progress is not None:
                found[cell.fingerprint] = progress
    return [*found.values()]


def _progress_of(cell: Cell) -> Progress | None:
    if cell.status != RUNNING or not cell.directories:
        return None
    directory = cell.directories[0]
    beat = runs.results.read_heartbeat(directory)
    return Progress(cell, directory, beat) if beat else None
