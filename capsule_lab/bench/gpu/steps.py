"""Where the time of a training step goes, and how many kernels it launches."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from capsule_lab.bench.breakdown import profile_case
from capsule_lab.bench.cases import Case
from capsule_lab.bench.gpu.parts import Size
from capsule_lab.bench.gpu.throughput import case_of, measure_case, of_size
from capsule_lab.errors import one_line

MODELS: dict[Size, tuple[tuple[str, int], ...]] = {
    "full": (("em_caps_paper", 64), ("em_caps_small", 512), ("capsnet", 512), ("cnn_baseline", 512)),
    "small": (("cnn_small", 2),),
}
"""With the sizes of their batches."""
PROFILED = 5  # ours: steps under the profiler
LISTED = 6  # ours: operators


def take_steps_apart(device: torch.device, size: Size, limit: float) -> dict[str, Any]:
    """A row for each model: how long a step takes, how long of it the device is busy, launches, and shares of the time.

    What a step takes is measured without the profiler, which makes it slower.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the profiler
    began, rows, costliest, failures = time.monotonic(), [], dict[str, list[str]](), []
    for name, batch in MODELS[size]:
        if time.monotonic() - began > limit:
            failures.append(f"{name}: not reached within {limit:.0f} seconds")
            continue
        try:
            row, operators = _of_model(of_size(case_of(name, device), batch), size)
        except Exception as error:  # of a kernel, too: the other models are measured all the same
            failures.append(f"{name}: {type(error).__name__}: {one_line(error)}")
            continue
        rows.append({"model": name, "batch": batch, **row})
        costliest[f"costliest operators of {name}"] = operators
    of_what = "idle_share: of a step, in which no kernel runs; others: of the time of kernels, on a CPU of operators"
    return {"columns": of_what, **costliest, "rows": rows, "failures": failures}


def _of_model(case: Case, size: Size) -> tuple[dict[str, Any], list[str]]:
    """A row, and the costliest operators."""
    seconds = case.sizes["batch_size"] / measure_case(case, size)["images_per_second"]
    profiled = profile_case(case, PROFILED)
    on_gpu = case.device == "cuda"
    row = {
        "milliseconds": 1000 * seconds,
        "idle_share": max(0.0, 1 - profiled["seconds"] / seconds) if on_gpu else None,
        "launches": profiled["launches"] if on_gpu else None,
        **{f"share of {family}": share for family, share in profiled["shares"].items()},
    }
    return row, [f"{each['name']} {each['share']:.0%}" for each in profiled["operators"][:LISTED]]
