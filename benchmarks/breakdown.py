"""The time of a training step by operator."""

from __future__ import annotations

import itertools
import os
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
    # without fused kernels, votes and their sums are batched products
    "routing": ("capsule_lab::", "_linear", "_contractpending", "_emstep", "bmm"),
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
    for case in itertools.chain(*model_groups(config, textbook=False)):
        with Worker(case.label) as worker:
            measured = worker.call(profile_case, case, config.steps * config.rounds)
        rows.append(case.row | measured)
    return {"rows": rows}


def profile_case(case: Case, steps: int) -> dict[str, Any]:
    """In a worker: run steps under torch's profiler, after two without."""
    step = build_step(case)
    for _ in range(2):  # ours: as in timing.CaseTimer
        take_step(step)
    activities = [ProfilerActivity.CPU]
    time = "self_cpu_time_total"
    if case.device == "cuda":
        activities.append(ProfilerActivity.CUDA)
        time = "self_device_time_total"
    with profiler_of(activities=activities, acc_events=True) as profiler:
        for _ in range(steps):
            take_step(step)
    operators = {}
    for event in profiler.key_averages():
        # kernels of a GPU count for the operators that launched them
        if event.device_type == DeviceType.CPU:
            operators[event.key] = getattr(event, time) / 1e6 / steps
    return break_down(operators)


def break_down(operators: dict[str, float]) -> dict[str, Any]:
    """Compute a step's seconds, the share of each family and the costliest operators from the seconds of operators."""
    total = sum(operators.values()) or 1.0
    shares = dict.fromkeys(FAMILIES, 0.0)
    for name, seconds in operators.items():
        shares[family_of(name)] += seconds / total
    costliest = []
    for name in sorted(operators, key=lambda name: -operators[name])[:LISTED]:
        seconds = operators[name]
        costliest.append(
            {
                "name": name,
                "family": family_of(name),
                "seconds": seconds,
                "share": seconds / total,
            }
        )
    return {"seconds": total, "shares": shares, "operators": costliest}


def family_of(operator: str) -> str:
    name = operator.lower()
    for family, parts in FAMILIES.items():
        if any(part in name for part in parts):
            return family
    raise AssertionError("the last family has every operator")
