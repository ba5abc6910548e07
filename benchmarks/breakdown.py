"""The time of a training step by operator."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

from omegaconf import DictConfig
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profiler_of

from benchmarks.cases import Case, model_groups
from benchmarks.models import build_step, take_step
from benchmarks.timing import Worker
from capsule_lab.errors import ConfigError

FAMILIES = {
    "routing": (
        "capsule_lab::",
        "_linear",
        "_contractpending",
        "_emstep",
        "bmm",
    ),  # without fused kernels, votes and their sums are batched products
    "convolutions": ("conv", "cudnn", "mkldnn"),
    "matrix products": ("mm", "linear"),
    "optimiser": ("optimizer.", "_fused_adam", "_foreach"),
    "rest": ("",),
}
"""An operator belongs to the first family with a part that its name contains. Elementwise arithmetic of routing outside
of the fused kernels belongs to the rest."""
LISTED = 12  # ours: number of operators listed


def profile(config: DictConfig) -> dict[str, Any]:
    """Return a row for each model, backend and precision: shares of the families, and the costliest operators.

    Raises:
        ConfigError: if a case cannot be timed.
    """
    if not config.models:
        raise ConfigError("profile is true, but models is empty; expected one or more models")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the workers' profiler
    rows = []
    for case in (case for group in model_groups(config, textbook=False) for case in group):
        with Worker(case.label) as worker:
            rows.append(
                {**case.row, **worker.call(profile_case, case, config.steps * config.rounds)}
            )
    return {"rows": rows}


def profile_case(case: Case, steps: int) -> dict[str, Any]:
    """In a worker: run steps under torch's profiler, after two without."""
    step = build_step(case)
    for _ in range(2):  # ours: as in timing.CaseTimer
        take_step(step)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (case.device == "cuda")
    with profiler_of(activities=activities, acc_events=True) as profiler:
        for _ in range(steps):
            take_step(step)
    time = "self_device_time_total" if case.device == "cuda" else "self_cpu_time_total"
    operators = {
        event.key: getattr(event, time) / 1e6 / steps
        for event in profiler.key_averages()
        if event.device_type
        == DeviceType.CPU  # kernels of a GPU count for the operators that launched them
    }
    return break_down(operators)


def break_down(operators: dict[str, float]) -> dict[str, Any]:
    """Compute a step's seconds, the share of each family and the costliest operators from the seconds of operators."""
    total = sum(operators.values()) or 1.0
    shares: dict[str, float] = defaultdict(float)
    for name, seconds in operators.items():
        shares[family_of(name)] += seconds / total
    costliest = sorted(operators.items(), key=lambda item: -item[1])[:LISTED]
    return {
        "seconds": total,
        "shares": {family: shares[family] for family in FAMILIES},
        "operators": [
            {"name": name, "family": family_of(name), "seconds": seconds, "share": seconds / total}
            for name, seconds in costliest
        ],
    }


def family_of(operator: str) -> str:
    return next(
        family
        for family, parts in FAMILIES.items()
        if any(part in operator.lower() for part in parts)
    )
