"""The command shows tables, and writes its numbers if asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capsule_lab import bench
from tests.helpers.bench import SMALL
from tests.helpers.commands import Ended

Cli = Callable[..., Ended]


def test_tables_and_numbers(cli: Cli, report: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "measure", lambda _: report)
    ended = cli("bench", *SMALL, "out=numbers/bench.json")
    assert (ended.status, ended.err) == (0, "")
    for text in ("textbook", "em_window", "capsnet", "1.00x", "least ms", "GB/s"):
        assert text in ended.out
    numbers = json.loads((tmp_path / "numbers" / "bench.json").read_text())
    assert numbers["rows"] == report["rows"]
    assert numbers["bench"]["batch_size"] == 2
    assert {"rows", "rates", "hardware", "bench", "command", "commit", "versions", "python"} == set(numbers)


@pytest.mark.parametrize(
    ("override", "texts"),
    [
        ("scaling=children", ["ns per vote and iteration"]),
        ("profile=true", ["convolutions", "aten::convolution_backward"]),
    ],
)
def test_other_tables(cli: Cli, calls: list[tuple[str, str]], tmp_path: Path, override: str, texts: list[str]) -> None:
    ended = cli("bench", *SMALL, override, "models=[capsnet]", "out=numbers.json")
    assert (ended.status, ended.err) == (0, "")
    assert [text for text in texts if text not in ended.out] == []
    assert json.loads((tmp_path / "numbers.json").read_text())["rows"]


def test_nothing_is_written_unless_asked(
    cli: Cli, report: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "measure", lambda _: report)
    assert cli("bench", *SMALL).status == 0
    assert list(tmp_path.iterdir()) == []


def test_network_that_does_not_fit_is_one_line(cli: Cli, calls: list[tuple[str, str]]) -> None:
    ended = cli("bench", *SMALL, "layers=[]", "image_shape=[1,9,9]")
    assert ended.status == 2
    assert ended.err.startswith("capsule_lab: model: ")
    assert "9x9" in ended.err
    assert ended.err.count("\n") == 1
