"""``metrics.csv``: rows as they were logged, also over an interruption."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from capsule_lab.callbacks import MetricsTable
from capsule_lab.errors import RunError


def test_rows_go_on_from_the_content_of_a_checkpoint(tmp_path: Path) -> None:
    """Whatever is in the file by then: it is not read."""
    table = MetricsTable(str(tmp_path))
    table.log_metrics({"val/error": 5.0, "epoch": 0}, 3)
    following = {"train/error": 7.5, "epoch": 0}, 3
    content = table.content(following)
    table.log_metrics(*following)
    table.save()
    assert content == table.content() == (tmp_path / "metrics.csv").read_text()

    (tmp_path / "metrics.csv").write_bytes(b"\xff")
    again = MetricsTable(str(tmp_path))
    again.restore(content)
    again.finalize("success")
    assert (tmp_path / "metrics.csv").read_text() == content
    for one in (table, again):
        one.log_metrics({"val/error": 4.0}, 7)
    assert again.content() == table.content()
    assert len(content.splitlines()) == len(again.content().splitlines()) - 1 == 3


def test_file_takes_a_hundredth_of_the_time_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 2.0, 100.0, 200.0, 202.0, 203.0, 204.0])  # when a save begins, and when it has written
    monkeypatch.setattr("capsule_lab.callbacks.csv_logger.time", SimpleNamespace(monotonic=lambda: next(times)))
    table, lines = MetricsTable(str(tmp_path)), []
    for step, save in enumerate([table.save, table.save, table.save, lambda: table.finalize("success")]):
        table.log_metrics({"train/loss_step": 0.5}, step)
        save()
        lines.append(len((tmp_path / "metrics.csv").read_text().splitlines()) - 1)
    assert lines == [1, 1, 3, 4]


def test_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    table = MetricsTable(str(tmp_path / "file"))
    table.log_metrics({"val/error": 5.0}, 3)
    with pytest.raises(RunError, match=r"^cannot write \S+/file/metrics\.csv \("):
        table.save()
