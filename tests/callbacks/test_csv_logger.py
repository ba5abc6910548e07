"""``metrics.csv``: when it is written; its rows over interruptions are in tests/runs/test_resume.py."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from capsule_lab.callbacks import MetricsTable


def test_file_takes_a_hundredth_of_the_time_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter(
        [0.0, 2.0, 100.0, 200.0, 202.0, 203.0, 204.0]
    )  # when a save begins, and when it has written
    monkeypatch.setattr(
        "capsule_lab.callbacks.csv_logger.time", SimpleNamespace(monotonic=lambda: next(times))
    )
    table, lines = MetricsTable(str(tmp_path)), []
    for step, save in enumerate(
        [table.save, table.save, table.save, lambda: table.finalize("success")]
    ):
        table.log_metrics({"train/loss_step": 0.5}, step)
        save()
        lines.append(len((tmp_path / "metrics.csv").read_text().splitlines()) - 1)
    assert lines == [1, 1, 3, 4]
