"""Where steps spend their time; ``tests/bench/gpu/test_parts.py`` has the whole part on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from capsule_lab.bench.cases import Case
from capsule_lab.bench.gpu import steps


@pytest.fixture(autouse=True)
def _nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 0.1 seconds, of which kernels take 0.08; there is no kernel for ``capsnet``."""

    def measure_case(case: Case, _: str) -> dict[str, Any]:
        if case.name == "capsnet":
            raise RuntimeError("no\nkernel")
        return {"images_per_second": 10.0 * case.sizes["batch_size"]}

    operators = [{"name": f"operator {number}", "share": 0.1} for number in range(10)]
    profiled = {"seconds": 0.08, "launches": 40.0, "shares": {"routing": 1.0}, "operators": operators}
    monkeypatch.setattr(steps, "measure_case", measure_case)
    monkeypatch.setattr(steps, "profile_case", lambda *_: profiled)
    monkeypatch.setattr(steps, "case_of", lambda name, device: Case("model", name, "fused", "32-true", device.type, {}))


@pytest.mark.parametrize(("device", "idle", "launches"), [("cuda", pytest.approx(0.2), 40.0), ("cpu", None, None)])
def test_rows(device: str, idle: float | None, launches: float | None) -> None:
    found = steps.take_steps_apart(torch.device(device), "full", 60.0)
    assert [row["model"] for row in found["rows"]] == ["em_caps_paper", "em_caps_small", "cnn_baseline"]
    row = found["rows"][0]
    assert (row["milliseconds"], row["idle_share"], row["launches"]) == (pytest.approx(100.0), idle, launches)
    assert found["costliest operators of em_caps_paper"][0] == "operator 0 10%"
    assert len(found["costliest operators of em_caps_paper"]) == steps.LISTED


def test_a_model_that_fails_does_not_stop_the_others() -> None:
    found = steps.take_steps_apart(torch.device("cuda"), "full", 60.0)
    assert found["failures"] == ["capsnet: RuntimeError: no kernel"]


def test_what_is_not_reached_is_said() -> None:
    found = steps.take_steps_apart(torch.device("cuda"), "full", -1.0)
    assert (found["rows"], len(found["failures"])) == ([], 4)
