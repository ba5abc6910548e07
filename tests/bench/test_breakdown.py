"""Where the time of a step goes."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType

from capsule_lab.bench import breakdown, profile
from capsule_lab.layers import ConvCapsules
from capsule_lab.routing import EMRouting
from tests.helpers.bench import small_bench


def test_families_of_a_network(calls: list[tuple[str, str]]) -> None:
    (row,) = profile(small_bench("models=[capsnet]"))
    assert set(row["shares"]) == set(breakdown.FAMILIES)
    assert sum(row["shares"].values()) == pytest.approx(1)
    assert min(row["shares"].values()) > 0
    families = {operator["name"]: operator["family"] for operator in row["operators"]}
    assert families["aten::convolution_backward"] == "convolutions"
    assert families["aten::_fused_adam_"] == "optimiser"


def test_backward_pass_in_a_thread_of_its_own_belongs_to_the_step() -> None:
    """As on a GPU, where kernels count, and an operator without a parent is one of the backward pass."""

    def event(name: str, number: int, parent: Any = None, kernels: tuple[float, ...] = ()) -> Any:
        return SimpleNamespace(
            name=name, sequence_nr=number, cpu_parent=parent, device_type=DeviceType.CPU, self_cpu_time_total=0.0,
            kernels=[SimpleNamespace(duration=each) for each in kernels], time_range=SimpleNamespace(start=number),
        )  # fmt: skip

    step = event(breakdown.STEP, -1)
    layer = event(breakdown.ROUTING, -1, step)
    backward = event(f"{breakdown.BACKWARD}: RoutingBackward", 7)
    outside = event("aten::copy_", -1, None, (9e6,))
    events = [step, layer, event("aten::bmm", 7, layer, (1e6, 1e6)), backward, event("aten::bmm", -1, backward, (2e6,))]
    found = breakdown.break_down([*events, outside], 1, on_gpu=True)
    assert found["families"]["routing"] == found["seconds"] == pytest.approx(4.0)
    assert found["launches"] == 3


def test_backward_of_routing_is_routing() -> None:
    capsules = ConvCapsules((5, 5), 2, 16, 3, 16, rows=4, routing=partial(EMRouting, backend="matmul"))
    breakdown._mark(capsules)
    poses = torch.randn(2, 50, 16, requires_grad=True)
    with torch.profiler.profile(acc_events=True) as profiler, torch.profiler.record_function(breakdown.STEP):
        (capsules(poses, torch.rand(2, 50)).poses.sum() + torch.nn.Linear(4, 4)(torch.randn(3, 4)).sum()).backward()
    found = breakdown.break_down(profiler.events(), 2)
    assert {each["family"] for each in found["operators"] if each["name"] == "aten::bmm"} == {"routing"}
    shares = found["shares"]
    assert min(shares["routing"], shares["matrix products"]) > shares["convolutions"] == 0
    (whole,) = (event for event in profiler.events() if event.name == breakdown.STEP)
    assert found["seconds"] == pytest.approx(whole.cpu_time_total / 1e6 / 2)
