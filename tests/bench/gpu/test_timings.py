"""Every form of every layer and model is timed, or it is said why not."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import torch

from capsule_lab.bench import roofline
from capsule_lab.bench.cases import Case, layer_groups, model_groups
from capsule_lab.bench.gpu import timings
from capsule_lab.bench.gpu.timings import bench_config, beside_targets, time_layers_and_steps
from capsule_lab.bench.workers import CaseTimer

CPU = torch.device("cpu")
FORMS = ["textbook", "matmul", "fused"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer and one model."""
    monkeypatch.setattr(roofline, "MATRIX", 64)
    monkeypatch.setattr(roofline, "ARRAY", 1024)
    monkeypatch.setattr(timings, "SECONDS", 0.0)
    few = [*timings.OVERRIDES["small"], "layers=[dynamic]", "models=[capsnet]"]
    monkeypatch.setitem(timings.OVERRIDES, "small", few)


def test_small_on_a_cpu() -> None:
    report = time_layers_and_steps(CPU, "small", 600.0)
    assert (report["skipped"], report["failures"]) == ([], [])
    assert [(row["name"], row["form"]) for row in report["rows"]] == [
        (name, form) for name in ("dynamic", "capsnet") for form in FORMS
    ]
    for row in report["rows"]:
        assert 0 < row["forward_seconds_median"] < row["seconds_slowest"]
        assert row["roofline_percent"] > 0 < row["first_seconds"]
        assert ("fused_roofline_percent" in row) == (row["form"] == "fused")
        assert row["error"] is None
    assert [row["speedup"] == 1 for row in report["rows"][::3]] == [True, True]
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_cases_that_fail_leave_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(CaseTimer):
        def __init__(self, case: Case) -> None:
            if case.form == "textbook":
                raise torch.OutOfMemoryError("CUDA out of memory")
            if case.form == "fused":
                raise RuntimeError("an illegal memory\n access")
            super().__init__(case)

    monkeypatch.setattr(timings, "CaseTimer", Failing)
    monkeypatch.setitem(timings.OVERRIDES, "small", [*timings.OVERRIDES["small"], "models=[]"])
    report = time_layers_and_steps(CPU, "small", 600.0)
    errors = [row["error"] for row in report["rows"]]
    assert errors == ["out of memory", None, "RuntimeError: an illegal memory access"]
    assert "speedup" not in report["rows"][1]
    assert report["failures"] == ["dynamic (fused): RuntimeError: an illegal memory access"]


def test_cases_without_time_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.0, 5.0, *[5.0] * 9])  # the first case takes five seconds
    monkeypatch.setattr(timings.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(timings, "measured", lambda case, *_: {"name": case.name, "form": case.form, "error": None})
    monkeypatch.setattr(timings, "_beside_textbook", lambda rows: rows)
    report = time_layers_and_steps(CPU, "small", 9.0)
    assert [row["form"] for row in report["rows"]] == ["textbook"]
    assert len(report["skipped"]) == 5
    assert report["skipped"][0] == "dynamic (matmul, 32-true)"
    assert time.monotonic is timings.time.monotonic


def test_full_has_the_sizes_and_forms_of_the_targets() -> None:
    groups = model_groups(bench_config(CPU, "full"))
    assert [(group[0].name, group[0].sizes["batch_size"]) for group in groups] == [
        ("em_caps_paper", 64),
        ("em_caps_small", 512),
        ("capsnet", 512),
    ]
    for group in [*groups, *layer_groups(bench_config(CPU, "full"))]:
        assert [case.form for case in group] == ["textbook", "matmul", "compiled", "fused"]


def test_targets() -> None:
    rows: list[dict[str, Any]] = [
        {"name": "em_caps_paper", "form": "textbook", "speedup": 1.0, "peak_memory_bytes": 30e9},
        {"name": "em_caps_paper", "form": "fused", "speedup": 12.0, "peak_memory_bytes": 9e9},
        {"name": "capsnet", "form": "fused", "images_per_second": 41_000.0},
        {"name": "em_window", "form": "fused", "error": "out of memory"},
    ]
    found = beside_targets(rows)
    assert [row["met"] for row in found] == [True, False, None, True, None]
    assert [row["measured"] for row in found] == [12.0, 9e9, None, 41_000.0, None]
    assert [row["wanted"] for row in found] == [10.0, 8e9, 20_000.0, 40_000.0, 50.0]
