"""A logger that writes the metrics of a run to a CSV file."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers.logger import Logger

from capsule_lab.runs.files import write_text


class MetricsTable(Logger):
    """Writes ``metrics.csv``: one row per logging call, written atomically, continued by a resumed run.

    Lightning's ``CSVLogger`` deletes the file when a run is resumed. Here the content is restored from the checkpoint,
    see ``EmbedConfig``; the content of the file at that time does not matter.
    """

    name = "metrics"
    version = ""

    def __init__(self, save_dir: str) -> None:
        super().__init__()
        self.file = Path(save_dir) / "metrics.csv"
        self.rows: list[dict[str, Any]] = []
        self.changed = False
        self.save_from = 0.0

    @property
    def save_dir(self) -> str:
        return str(self.file.parent)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the run's ``config.yaml`` contains them."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        self.rows.append(_row(metrics, step))
        self.changed = True

    @rank_zero_only
    def save(self) -> None:
        """Write the file, unless writing would take more than a hundredth of the time."""
        start_time = time.monotonic()
        if self.changed and start_time >= self.save_from:
            write_text(self.file, _as_text(self.rows))
            self.changed = False
            self.save_from = start_time + 100 * (time.monotonic() - start_time)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        self.save_from = 0.0
        self.save()

    def content(self, following: tuple[Mapping[str, Any], int] | None = None) -> str:
        """Return the content of the file after the next save; ``following`` is a row, and its step, to be logged."""
        rows = [*self.rows]
        if following is not None:
            rows.append(_row(*following))
        return _as_text(rows)

    def restore(self, content: str) -> None:
        """Continue from an earlier result of ``content``."""
        self.rows = []
        for row in csv.DictReader(io.StringIO(content)):
            self.rows.append({key: value for key, value in row.items() if value})
        self.changed = True


def _row(metrics: Mapping[str, Any], step: int | None) -> dict[str, Any]:
    row: dict[str, Any] = {name: float(value) for name, value in metrics.items()}
    return row | {"step": step}


def _as_text(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = set().union(*rows)
    names = sorted(columns - {"epoch", "step"})
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ["epoch", "step", *names], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
