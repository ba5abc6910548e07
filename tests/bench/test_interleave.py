"""Rows of measurements, ours beside the textbook's."""

from __future__ import annotations

from typing import Any

import pytest

from capsule_lab.bench import interleave
from capsule_lab.bench.cases import LAYERS
from tests.helpers.bench import small_case

NAMES = ["em_window", "em_all_parents", "dynamic", "capsnet", "em_caps_paper"]


@pytest.mark.parametrize(("number", "name"), list(enumerate(NAMES)))
def test_rows(report: dict[str, Any], number: int, name: str) -> None:
    assert len(report["rows"]) == 2 * len(NAMES)
    textbook, ours = report["rows"][2 * number : 2 * number + 2]
    for row, form in ((textbook, "textbook"), (ours, "matmul")):
        assert (row["name"], row["form"], row["precision"], row["device"]) == (name, form, "32-true", "cpu")
        assert ("images_per_second" in row) == (row["kind"] == "model") == (name not in LAYERS)
        assert 0 < row["seconds_fastest"] <= row["seconds_median"] <= row["seconds_slowest"]
        assert 0 < row["forward_seconds_median"] < row["seconds_slowest"]
        assert row["floor_arithmetic_seconds"] == textbook["floor_arithmetic_seconds"] > 0
    assert textbook["speedup"] == textbook["peak_memory_share"] == 1
    assert ours["speedup"] == pytest.approx(textbook["seconds_median"] / ours["seconds_median"])
    assert ours["peak_memory_share"] == pytest.approx(ours["peak_memory_bytes"] / textbook["peak_memory_bytes"])


def test_images_per_second(report: dict[str, Any]) -> None:
    row = report["rows"][-1]
    assert row["images_per_second"] == pytest.approx(2 / row["seconds_median"])


def test_rounds_are_interleaved(calls: list[tuple[str, str]]) -> None:
    interleave.time_in_turn([small_case("dynamic"), small_case("em_window")], rounds=2, steps=1)
    functions = ["build_timer"] + 2 * ["time_steps"] + ["read_memory"]
    expected = [(name, function) for function in functions for name in ("dynamic", "em_window")]
    assert [(name.split()[0], function) for name, function in calls] == expected
