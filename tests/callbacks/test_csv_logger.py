"""``metrics.csv``: when it is written; its rows over interruptions are in tests/runs/test_resume.py."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from capsule_lab.callbacks import MetricsTable, close_loggers


def test_file_takes_a_hundredth_of_the_time_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # when a save begins, and when it has written
    times = iter([0.0, 2.0, 100.0, 200.0, 202.0, 203.0, 204.0])
    clock = SimpleNamespace(monotonic=lambda: next(times))
    monkeypatch.setattr("capsule_lab.callbacks.csv_logger.time", clock)
    table = MetricsTable(str(tmp_path))

    def lines_after(save: Callable[[], object], step: int) -> int:
        table.log_metrics({"train/loss_step": 0.5}, step)
        save()
        _, *lines = (tmp_path / "metrics.csv").read_text().splitlines()
        return len(lines)

    assert lines_after(table.save, 0) == 1
    assert lines_after(table.save, 1) == 1, "the next save waits for 200 seconds"
    assert lines_after(table.save, 2) == 3
    assert lines_after(lambda: table.finalize("success"), 3) == 4


def test_every_logger_is_closed_even_if_one_cannot_be(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []

    class Gone:
        def finalize(self, status: str) -> None:
            raise ConnectionError("no server")

    class Here:
        def finalize(self, status: str) -> None:
            closed.append(status)

    close_loggers([Gone(), Here()], failed=False)
    assert closed == ["success"]
    assert "Gone could not be closed (no server)" in caplog.text
