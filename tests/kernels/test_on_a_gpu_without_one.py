"""The tests of a GPU compile few kernels, since compiling is nearly all of their time on a machine that is lent."""

import importlib.util
from typing import Any

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip(
        "Triton, which compiles the kernels of a GPU, is not installed", allow_module_level=True
    )

from tests.helpers import gpu_comparison
from tests.helpers.specialisations import specialisations
from tests.kernels import test_on_a_gpu as on_a_gpu

MOST = 200  # ours: 172 take 149 seconds of processor time to compile for Hopper on an AMD EPYC, 967 took about 840


@pytest.mark.whole
def test_tests_on_a_gpu_compile_few_kernels(
    monkeypatch: pytest.MonkeyPatch, unchecked_types: None
) -> None:
    def check(name: str, backend: str, dtype: torch.dtype, shape: Any, change: Any = None) -> None:
        on_a_gpu.outputs_and_gradients(name, backend, dtype, shape, torch.device("cpu"), change)

    monkeypatch.setattr(on_a_gpu, "check", check)
    monkeypatch.setattr(gpu_comparison, "assert_near", lambda *_: None)
    with specialisations() as found:
        for name in on_a_gpu.ROUTINGS:
            on_a_gpu.test_fused_routing_at_the_sizes_of_a_paper(name)
        for name in on_a_gpu.ROUTINGS:
            on_a_gpu.test_fused_routing_in_float64(name)
        for name in ("em", "dynamic"):
            for shape in on_a_gpu.EDGES:
                on_a_gpu.test_fused_routing_at_the_edges_of_blocks(name, shape)
            on_a_gpu.test_fused_routing_of_many_rows(name)
        for name in on_a_gpu.COMPARED:
            gpu_comparison.compare(name, "cpu")
    assert 0 < len(found) <= MOST
