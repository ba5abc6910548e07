"""A model's rows end where the memory does or a kernel fails, and the others go on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from capsule_lab.bench.cases import Case
from capsule_lab.bench.gpu import throughput

CPU = torch.device("cpu")


def measured(monkeypatch: pytest.MonkeyPatch, limit: float = 60.0) -> dict[str, Any]:
    """At full size, without any work; ``em_caps_paper`` does not fit from 256 images on."""

    def measure_case(case: Any, _: str) -> dict[str, Any]:
        if case.name == "capsnet":
            raise RuntimeError("no\nkernel")
        if case.name == "em_caps_paper" and case.sizes["batch_size"] >= 256:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return {"images_per_second": 1.0, "peak_memory_bytes": case.sizes["batch_size"]}

    monkeypatch.setattr(throughput, "measure_case", measure_case)
    monkeypatch.setattr(throughput, "_free", lambda _: None)
    monkeypatch.setattr(throughput, "case_of", lambda name, _: Case("model", name, "fused", "32-true", "cpu", {}))
    monkeypatch.setattr(throughput, "options_of", lambda _: ["capsnet", "cnn_small", "em_caps_paper"])
    monkeypatch.setattr(throughput, "FIRST", ("em_caps_paper",))
    return throughput.measure_throughput(CPU, "full", limit)


def test_out_of_memory_and_errors_end_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch)
    rows = [(row["model"], row["batch"], row["state"]) for row in found["rows"]]
    assert rows[:3] == [
        ("em_caps_paper", 64, "done"),
        ("em_caps_paper", 128, "done"),
        ("em_caps_paper", 256, "out of memory"),
    ]
    assert rows[3] == ("capsnet", 64, "failed")
    assert rows[4:] == [("cnn_small", batch, "done") for batch in throughput.BATCHES["full"]]
    assert found["failures"] == ["capsnet, batch of 64: RuntimeError: no kernel"]
    assert found["rows"][2]["images_per_second"] is None


def test_what_is_not_reached_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, limit=-1.0)
    assert found["rows"] == []
    assert found["failures"][0] == "em_caps_paper: not reached within -1 seconds"
