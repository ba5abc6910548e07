"""The metrics of a run as a CSV file."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers.logger import Logger

from capsule_lab.atomic import atomically


class MetricsTable(Logger):
    """``metrics.csv``: one row per logging call, written atomically, continued by a resumed run.

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
        with atomically(self.file) as temporary:
            temporary.write_text(text.getvalue())
        self.changed = False

    @rank_zero_only
    def finalize(self, status: str) -> None:
        self.save()
