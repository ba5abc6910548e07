"""Loaders on the host and on the device are compared, in numbers and bit by bit."""

from __future__ import annotations

import math

import pytest
import torch

from capsule_lab.bench.gpu import batches
from capsule_lab.bench.gpu.batches import compare_loaders
from capsule_lab.data.loader import InMemory
from capsule_lab.types import Batch

CPU = torch.device("cpu")
SECONDS = ("loader_seconds", "step_seconds", "together_seconds")


def test_a_row_for_each_model_and_place() -> None:
    found = compare_loaders(CPU, "small", limit=60)
    rows = found.pop("rows")
    assert found == {"failures": [], "not_measured": []}
    expected = [(4, model, place) for model in ("cnn_small", "capsnet") for place in (False, True)]
    assert [(row["batch_size"], row["model"], row["on_device"]) for row in rows] == expected
    assert all(0 < row[name] < 60 for row in rows for name in SECONDS)
    assert all(math.isfinite(row["loader_share"]) for row in rows)


def test_other_batches_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: InMemory, device: torch.device) -> InMemory:
        return InMemory(self.data.subset(torch.arange(len(self)).flip(0)), self.seed)

    monkeypatch.setattr(InMemory, "to", wrong)
    monkeypatch.setattr(batches, "TRAINED", ())
    found = compare_loaders(CPU, "small", limit=60)
    assert found["failures"] == ["batches of 4 differ between data.on_device=false and true; expected the same bits"]


def test_what_does_not_fit_is_a_failure_and_what_takes_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Batch:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(InMemory, "__getitem__", full)
    found = compare_loaders(CPU, "small", limit=60)
    assert found["failures"] == ["batches of 4 could not be timed: CUDA out of memory"]
    assert compare_loaders(CPU, "small", limit=-1) == {"rows": [], "failures": [], "not_measured": [4]}
