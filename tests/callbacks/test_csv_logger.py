"""``metrics.csv``: rows as they were logged, also over an interruption."""

from __future__ import annotations

from pathlib import Path

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


def test_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    table = MetricsTable(str(tmp_path / "file"))
    table.log_metrics({"val/error": 5.0}, 3)
    with pytest.raises(RunError, match=r"^cannot write \S+/file/metrics\.csv \("):
        table.save()
