"""Where the time of a training step goes."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, record_function

from capsule_lab.bench.cases import Case, check_bench, model_groups
from capsule_lab.bench.models import build_step, take_step
from capsule_lab.bench.workers import Worker
from capsule_lab.layers import ClassCapsules, ConvCapsules, DenseCapsules

FAMILIES = ("convolutions", "routing", "matrix products", "optimiser", "rest")
"""What time is spent on: routing is all that happens in a capsule layer that routes, with the votes it is made of, and
its part of the backward pass."""

STEP, ROUTING = "capsule_lab.step", "capsule_lab.routing"
BACKWARD = "autograd::engine::evaluate_function"
LISTED = 12  # ours: operators that are named one by one


def profile(config: DictConfig) -> list[dict[str, Any]]:
    """A row for each model, backend and precision: shares of the families, and the costliest operators.

    Raises:
        ConfigError: for what cannot be timed.
    """
    check_bench(config)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the workers' profiler
    rows = []
    for case in (case for group in model_groups(config, textbook=False) for case in group):
        with Worker(case.label) as worker:
            found = worker.call(profile_case, case, config.steps * config.rounds)
        row = {name: getattr(case, name) for name in ("name", "form", "precision", "device")}
        rows.append({**row, **case.sizes, **found})
    return rows


def profile_case(case: Case, steps: int) -> dict[str, Any]:
    """In a worker: so many steps under torch's profiler."""
    step = build_step(case)
    for layer in step.network.modules():
        if isinstance(layer, ConvCapsules | DenseCapsules | ClassCapsules):
            _mark(layer)

    def run() -> None:
        with record_function(STEP):
            take_step(step)

    for _ in range(2):  # ours: as in workers.CaseTimer
        run()
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (case.device == "cuda")
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        for _ in range(steps):
            run()
    return break_down(profiler.events(), steps, on_gpu=case.device == "cuda")


def _mark(layer: nn.Module) -> None:
    """Name what the layer does in its forward pass."""
    open_records: list[Any] = []

    def enter(*_: Any) -> None:
        open_records.append(record_function(ROUTING))
        open_records[-1].__enter__()

    def leave(*_: Any) -> None:
        open_records.pop().__exit__(None, None, None)

    layer.register_forward_pre_hook(enter)
    layer.register_forward_hook(leave, always_call=True)


def break_down(events: Any, steps: int, *, on_gpu: bool = False) -> dict[str, Any]:
    """Seconds per step of each family, their shares, the costliest operators with theirs, and launches per step.

    A backward operator belongs where the forward operator of the same sequence number was. On a GPU seconds are those
    of kernels, and what is launched are kernels, copies and fills.
    """
    chains = {id(event): _chain(event) for event in events if event.device_type == DeviceType.CPU}
    events = [event for event in events if id(event) in chains and _of_a_step(chains[id(event)])]
    routed = {
        event.sequence_nr: _within(chains[id(event)], ROUTING)
        for event in sorted(events, key=lambda event: event.time_range.start)
        if event.sequence_nr >= 0 and not _within(chains[id(event)], BACKWARD)
    }
    families: dict[str, float] = dict.fromkeys(FAMILIES, 0.0)
    operators: dict[tuple[str, str], float] = defaultdict(float)
    for event in events:
        microseconds = sum(kernel.duration for kernel in event.kernels) if on_gpu else event.self_cpu_time_total
        family = _family(chains[id(event)], routed)
        families[family] += microseconds / 1e6 / steps
        operators[event.name, family] += microseconds / 1e6 / steps
    total = sum(families.values()) or 1.0
    costliest = sorted(operators.items(), key=lambda item: -item[1])[:LISTED]
    return {
        "seconds": total,
        "launches": sum(len(event.kernels) for event in events) / steps,
        "families": families,
        "shares": {family: seconds / total for family, seconds in families.items()},
        "operators": [
            {"name": name, "family": family, "seconds": seconds, "share": seconds / total}
            for (name, family), seconds in costliest
        ],
    }


def _chain(event: Any) -> list[Any]:
    """An event and all that it is part of."""
    chain = [event]
    while chain[-1].cpu_parent is not None:
        chain.append(chain[-1].cpu_parent)
    return chain


def _of_a_step(chain: list[Any]) -> bool:
    """Whether an event is part of a step, or of its backward pass, which on a GPU runs in a thread of its own."""
    return _within(chain, STEP) or chain[-1].name.startswith(BACKWARD)


def _within(chain: list[Any], name: str) -> bool:
    return any(event.name.startswith(name) for event in chain)


def _family(chain: list[Any], routed: dict[int, bool]) -> str:
    backward = [event for event in chain if event.name.startswith(BACKWARD)]
    if _within(chain, "Optimizer."):
        return "optimiser"
    if _within(chain, ROUTING) or any(routed.get(event.sequence_nr, False) for event in backward):
        return "routing"
    names = " ".join(event.name.lower() for event in chain if event.name != STEP)
    if "conv" in names:
        return "convolutions"
    return "matrix products" if "mm" in names or "linear" in names else "rest"
