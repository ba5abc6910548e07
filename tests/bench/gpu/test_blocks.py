"""The search launches the kernels of whole networks."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from capsule_lab.bench.gpu import blocks
from capsule_lab.bench.gpu.blocks import tune_blocks
from capsule_lab.kernels import backends, ops, run_routing

CPU = torch.device("cpu")


def test_on_a_cpu_there_is_nothing_to_tune() -> None:
    note = "there are no Triton kernels on cpu: nothing to tune"
    assert tune_blocks(CPU, "small", 60.0) == {"rows": [], "failures": [], "note": note}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The kernels of a GPU, whose launches do nothing and take a millisecond."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton, which compiles the kernels of a GPU, is not installed")
    from capsule_lab.kernels import gpu

    monkeypatch.setenv(gpu.tuning.VARIABLE, str(tmp_path / "blocks.json"))
    gpu.tuning._stored.cache_clear()
    for module in (backends, ops, run_routing, blocks):
        monkeypatch.setattr(module, "fused_kernels", lambda _: gpu)
    for module in (gpu.em, gpu.em_backward, gpu.dynamic, gpu.votes, gpu.child_softmax):
        monkeypatch.setattr(module, "launch", lambda *_, **__: None)
    monkeypatch.setattr("triton.testing.do_bench", lambda *_, **__: 1.0)
    yield gpu
    gpu.tuning._stored.cache_clear()


def test_every_kernel_of_the_networks_is_searched(gpu: Any, tmp_path: Path) -> None:
    report = tune_blocks(CPU, "small", 60.0)
    assert (report["failures"], report["skipped"]) == ([], [])
    assert report["stored"] == str(tmp_path / "blocks.json")
    assert {row["kernel"].split()[0] for row in report["rows"]} == {
        "fit", "sum_children", "sum_components", "grad_poses", "grad_weight", "weighted_sum",
        "softmax_by_child", "softmax_by_child_backward",
    }  # fmt: skip
    kernels = {row["kernel"] for row in report["rows"]}
    assert sum(row["chosen"] for row in report["rows"]) == len(kernels)
    assert report["compile_seconds"] > 0
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    (section,) = json.loads((tmp_path / "blocks.json").read_text()).values()
    assert set(section) == kernels
    assert tune_blocks(CPU, "small", 60.0)["rows"] == []  # all are known


def test_a_network_that_fails_leaves_the_others(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def build_step(case: Any) -> Any:
        if case.name == "em_caps_paper":
            raise RuntimeError("no\n memory")
        return original(case)

    original = blocks.build_step
    monkeypatch.setattr(blocks, "build_step", build_step)
    report = tune_blocks(CPU, "small", 60.0)
    assert report["failures"] == ["em_caps_paper (fused, 32-true): RuntimeError: no memory"]
    assert "weighted_sum" in {row["kernel"].split()[0] for row in report["rows"]}
