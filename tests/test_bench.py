"""Training steps are timed, ours beside the textbook's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from capsule_lab import timing
from capsule_lab.command import compose
from tests.conftest import Ended

Cli = Callable[..., Ended]
SMALL = ["device=cpu", "batch_size=2", "rounds=2", "steps=1", "precisions=[32-true]"]


@pytest.fixture(scope="module")
def rows() -> Iterator[list[dict[str, Any]]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield timing.measure(compose("bench", SMALL))


@pytest.mark.parametrize(("row", "network"), [(0, "textbook"), (1, "capsnet")])
def test_row(rows: list[dict[str, Any]], row: int, network: str) -> None:
    assert len(rows) == 2
    found = rows[row]
    assert (found["network"], found["precision"], found["device"]) == (network, "32-true", "cpu")
    assert 0 < found["seconds_fastest"] <= found["seconds_median"] <= found["seconds_slowest"]
    assert found["images_per_second"] == pytest.approx(2 / found["seconds_median"])
    assert 10**8 < found["peak_memory_bytes"] < 10**11


@pytest.mark.parametrize(
    ("ratio", "quantity"), [("speedup", "images_per_second"), ("memory_share", "peak_memory_bytes")]
)
def test_ratios_are_to_the_first_row(rows: list[dict[str, Any]], ratio: str, quantity: str) -> None:
    assert rows[0][ratio] == 1
    assert rows[1][ratio] == pytest.approx(rows[1][quantity] / rows[0][quantity])


def test_without_a_source_tree_the_first_case_is_the_yardstick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_TEXTBOOK", Path("nowhere/textbook.py"))
    monkeypatch.setattr(timing, "_work", None)
    asked: list[Any] = []

    class NoProcess:
        def __init__(self, args: Any, **_: Any) -> None:
            asked.append(args[2:])
            args[0].send("ready")

        def start(self) -> None:
            raise StopIteration

    monkeypatch.setattr(timing.multiprocessing.get_context("spawn").__class__, "Process", NoProcess)
    with pytest.raises(StopIteration):
        timing.measure(compose("bench", SMALL))
    assert asked == [("capsnet", "32-true")]


def test_command_shows_a_table_and_writes_the_numbers(
    cli: Cli, rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "measure", lambda _: rows)
    ended = cli("bench", *SMALL, "out=numbers/bench.json")
    assert (ended.status, ended.err) == (0, "")
    assert "textbook" in ended.out
    assert "capsnet" in ended.out
    assert "1.00x" in ended.out
    report = json.loads((tmp_path / "numbers" / "bench.json").read_text())
    assert report["rows"] == rows
    assert report["bench"]["batch_size"] == 2
    assert {"rows", "hardware", "bench", "command", "commit", "versions", "python"} == set(report)


def test_command_writes_nothing_unless_asked(
    cli: Cli, rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "measure", lambda _: rows)
    assert cli("bench", *SMALL).status == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("override", ["rounds=0", "steps=0", "models=[capsnot]", "precisions=[8bit]"])
def test_what_cannot_be_timed_is_refused_before_a_process_starts(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, override: str
) -> None:
    monkeypatch.setattr(timing.multiprocessing, "get_context", lambda _: pytest.fail("a process was started"))
    ended = cli("bench", *SMALL, override)
    assert ended.status == 2
    assert ended.err.startswith("capsule_lab: ")
    assert ended.err.count("\n") == 1
