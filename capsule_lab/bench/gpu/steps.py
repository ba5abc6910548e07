"""Where the time of a training step goes, and how many kernels it launches."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from capsule_lab.bench.breakdown import profile_case
from capsule_lab.bench.gpu.parts import Size
from capsule_lab.bench.gpu.throughput import case_of, measure_case, of_size

MODELS: dict[Size, tuple[tuple[str, int], ...]] = {
    "full": (("em_caps", 64), ("em_caps_small", 512), ("capsnet", 512), ("cnn_baseline", 512)),
    "small": (("cnn_small", 2),),
}
"""With the sizes of their batches."""
PROFILED = 5  # ours: steps under the profiler
LISTED = 6  # ours: operators


def take_steps_apart(device: torch.device, size: Size, limit: float) -> dict[str, Any]:
    """A row for each model: seconds of a step, how long of it the device is busy, launches, shares of the families.

    What a step takes is measured without the profiler, which makes it slower.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the profiler
    began, rows, costliest, failures = time.monotonic(), [], dict[str, list[str]](), []
    for name, batch in MODELS[size]:
        if time.monotonic() - began > limit:
            failures.append(f"{name}: not reached within {limit:.0f} seconds")
            continue
        case = of_size(case_of(name, device), batch)
        seconds = batch / measure_case(case, size)["images_per_second"]
        profiled = profile_case(case, PROFILED)
        on_gpu, busy = device.type == "cuda", profiled["seconds"]
        rows.append(
            {
                "model": name,
                "batch": batch,
                "milliseconds": 1000 * seconds,
                "idle_share": max(0.0, 1 - busy / seconds) if on_gpu else None,
                "launches": profiled["launches"] if on_gpu else None,
                **{f"share of {family}": share for family, share in profiled["shares"].items()},
            }
        )
        of_case = profiled["operators"][:LISTED]
        costliest[f"costliest operators of {name}"] = [f"{each['name']} {each['share']:.0%}" for each in of_case]
    of_what = "idle_share: of a step, in which no kernel runs; others: of the time of kernels, on a CPU of operators"
    return {"columns": of_what, **costliest, "rows": rows, "failures": failures}
