"""The run's own table of metrics, and what all loggers are told at the beginning and the end."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers.logger import Logger
from omegaconf import DictConfig

from capsule_lab.runs import plain, write_atomically


class MetricsTable(Logger):
    """``metrics.csv``: one row per logging call, written whole or not at all, continued by a resumed run.

    Lightning's ``CSVLogger`` deletes the file of the run that is resumed. Here, rows that the interrupted run
    wrote after its last checkpoint are dropped when the same steps are logged again.

    Args:
        save_dir: the run's directory.
    """

    def __init__(self, save_dir: str) -> None:
        super().__init__()
        self.file = Path(save_dir) / "metrics.csv"
        self.rows: list[dict[str, Any]] = []
        self.continues = self.file.is_file()
        self.changed = False
        if self.continues:
            with self.file.open(newline="") as rows:
                self.rows = [{key: value for key, value in row.items() if value} for row in csv.DictReader(rows)]

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def save_dir(self) -> str:
        return str(self.file.parent)

    @property
    def version(self) -> str:
        return ""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """The run's ``config.yaml`` has them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        if self.continues:
            self.rows = [row for row in self.rows if int(row["step"]) < (step or 0)]
            self.continues = False
        self.rows.append({**{name: float(value) for name, value in metrics.items()}, "step": step})
        self.changed = True

    @rank_zero_only
    def save(self) -> None:
        if not self.changed:
            return
        names = sorted({name for row in self.rows for name in row} - {"epoch", "step"})
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, ["epoch", "step", *names], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_atomically(self.file, text.getvalue())
        self.changed = False

    @rank_zero_only
    def finalize(self, status: str) -> None:
        self.save()


def tell_loggers(loggers: Iterable[Any], config: DictConfig, provenance: dict[str, Any]) -> None:
    """Configuration and provenance, to every logger that keeps such things."""
    for logger in loggers:
        logger.log_hyperparams({"config": plain(config), "provenance": provenance})


def close(loggers: Iterable[Any], *, failed: bool) -> None:
    """End what would otherwise flow into the next run of the same process: W&B keeps one run open.

    Args:
        loggers: of the trainer.
        failed: whether the run ended with an error, which dashboards show.
    """
    for logger in loggers:
        logger.finalize("failed" if failed else "success")
    if "wandb" in sys.modules:
        import wandb

        wandb.finish(exit_code=int(failed))
