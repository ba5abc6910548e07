"""The record of kernels and steps on GPUs: rows are added once, and the page shows them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import by_card
from capsule_lab.errors import ConfigError

ROW = {
    "kind": "model",
    "name": "capsnet",
    "form": "fused",
    "precision": "32-true",
    "sizes": "batch_size 64",
    "seconds_median": 0.0123456,
    "roofline_percent": 2.3456,
    "images_per_second": 5184.2,
    "peak_memory_bytes": 6e8,
}


def report(*rows: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {
        "date": "2026-12-01",
        "hardware": "1 x NVIDIA H100",
        "triton": "3.6.0",
        "commit": None,
        "versions": {"torch": "2.11.0"},
        "rows": [*rows],
        **other,
    }


def test_rows_have_units_of_the_columns() -> None:
    kernel = {**ROW, "kind": "kernel", "name": "fit"}
    del kernel["images_per_second"]
    failed = {**ROW, "error": "out of memory"}
    step, second = by_card.rows_of(report(ROW, failed, kernel), "0123abcd")
    assert step == {
        "date": "2026-12-01",
        "card": "NVIDIA H100",
        "torch": "2.11.0",
        "triton": "3.6.0",
        "commit": "0123abcd",
        "kind": "step",
        "case": "capsnet",
        "sizes": "batch_size 64",
        "form": "fused",
        "precision": "32-true",
        "ms": "12.35",
        "roofline_percent": "2.35",
        "images_per_second": "5184",
        "memory_gb": "0.6",
        "note": "",
    }
    assert second["kind"] == "kernel"
    assert second["images_per_second"] == ""
    assert tuple(step) == by_card.COLUMNS


def test_commit_must_be_known() -> None:
    with pytest.raises(ConfigError, match=r"^the file names no commit; expected commit=<hash"):
        by_card.rows_of(report(ROW))
    (named,) = by_card.rows_of(report(ROW, commit="abcd"))
    (given,) = by_card.rows_of(report(ROW, commit="abcd-dirty"), "abcd")
    assert named["commit"] == "abcd"
    assert given["commit"] == "abcd"


PAGE = "before\n<!-- measured by card: command -->\nold\n<!-- end -->\nafter\n"
LINE = "| step | `capsnet` | batch_size 64 | fused | 32-true | 10 | 2.35 | 5184 | 0.6 |  |\n"


def test_case_that_is_measured_again_replaces_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_card, "FILE", tmp_path / "kernels_and_steps.csv")
    monkeypatch.setattr(by_card, "PAGE", tmp_path / "gpu.md")
    by_card.FILE.write_text(by_card.csv_text([]))
    by_card.PAGE.write_text(PAGE)
    path = tmp_path / "report.json"

    def add(commit: str, *rows: dict[str, Any]) -> None:
        path.write_text(json.dumps(report(*rows)))
        by_card.main([str(path), f"commit={commit}"])

    other = {**ROW, "form": "textbook"}
    faster = {**ROW, "seconds_median": 0.01}
    add("abcd", ROW, other)
    add("abcd", faster)
    add("abcd", other)
    fused, textbook = by_card.read()
    assert (fused["form"], fused["ms"]) == ("fused", "10")
    assert (textbook["form"], textbook["ms"]) == ("textbook", "12.35")
    text = by_card.PAGE.read_text()
    assert "old" not in text
    card = "**NVIDIA H100**, torch 2.11.0, Triton 3.6.0"
    assert text.startswith(f"before\n<!-- measured by card: command -->\n\n{card}")
    assert LINE in text
    assert text.endswith("\n<!-- end -->\nafter\n")
    add("other", ROW)
    assert len(by_card.read()) == 3


def test_page_is_that_of_the_rows() -> None:
    text = by_card.PAGE.read_text()
    rows = by_card.read()
    assert rows
    expected = by_card.with_tables(text, rows)
    assert text == expected, "python -m benchmarks.by_card writes the tables anew"


def test_rows_are_complete() -> None:
    rows = by_card.read()
    text = by_card.FILE.read_text()
    assert text == by_card.csv_text(by_card.merged(rows))
    needed = ["date", *by_card.ENVIRONMENT, "kind", "case", "sizes", "form", "ms"]
    for row in rows:
        for name in needed:
            assert row[name]
        for name in by_card.MEASURED:
            assert float(row[name] or 0) >= 0
        assert re.fullmatch(r"[0-9a-f]{8,40}", row["commit"])
    assert not re.search(r"/(tmp|home|root|work)/", text)
