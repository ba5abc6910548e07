"""Every part, small, on a CPU."""

from __future__ import annotations

import json

import pytest
import torch

from capsule_lab.bench.gpu import correctness
from capsule_lab.bench.gpu.part_process import finite
from capsule_lab.bench.gpu.parts import PARTS, Part
from tests.helpers.bench import InThisThread, start_no_process

MINUTES = 10


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_runs_small_on_a_cpu(part: Part, monkeypatch: pytest.MonkeyPatch, unchecked_types: None) -> None:
    start_no_process(monkeypatch)
    monkeypatch.setattr(correctness, "ProcessPoolExecutor", InThisThread)
    found = part.measure()(torch.device("cpu"), "small", float(part.seconds))
    assert found.get("failures", []) == []
    assert json.dumps(finite(found), allow_nan=False)
    assert all(isinstance(row, dict) for row in found.get("rows", []))


def test_all_parts_fit_in_ten_minutes() -> None:
    assert sum(part.seconds for part in PARTS) < 60 * MINUTES


def test_names_are_different() -> None:
    assert len({part.name for part in PARTS}) == len(PARTS)
