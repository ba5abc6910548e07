"""Loggers that a resumed run continues."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger


class ContinuedCSVLogger(CSVLogger):
    """``metrics.csv`` that a resumed run goes on with; Lightning's own deletes what is there.

    Rows that the interrupted run wrote after its last checkpoint are dropped: they are written again.

    Args:
        save_dir: the run's directory.
    """

    def __init__(self, save_dir: str, **options: Any) -> None:
        super().__init__(save_dir, name="", version="", **options)
        file = Path(save_dir) / "metrics.csv"
        self.earlier: list[dict[str, Any]] = []
        if file.is_file():
            with file.open(newline="") as rows:
                self.earlier = [{key: value for key, value in row.items() if value} for row in csv.DictReader(rows)]

    def log_hyperparams(self, params: Any = None) -> None:
        """The run's ``config.yaml`` has them."""

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        writer = self.experiment  # deletes the file
        if self.earlier:
            writer.metrics = [row for row in self.earlier if int(row["step"]) < (step or 0)]
            self.earlier = []
        super().log_metrics(metrics, step)


def close(loggers: Iterable[Any]) -> None:
    """End what would otherwise flow into the next run of the same process: W&B keeps one run open."""
    for logger in loggers:
        logger.finalize("success")
    if "wandb" in sys.modules:
        import wandb

        wandb.finish()
