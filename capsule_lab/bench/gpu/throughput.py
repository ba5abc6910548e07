"""Images per second and peak memory of every model's training step, by size of the batch."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from typing import Any

import torch

from capsule_lab.bench.cases import FULL, Case, model_groups
from capsule_lab.bench.gpu.parts import Size
from capsule_lab.bench.models import build_step, take_step
from capsule_lab.bench.workers import memory_now, peak_memory
from capsule_lab.config.compose import compose, options_of
from capsule_lab.errors import one_line

BATCHES: dict[Size, tuple[int, ...]] = {"full": (64, 128, 256, 512, 1024), "small": (1, 2)}
FIRST = ("em_caps_paper", "em_caps_small", "capsnet")  # should there be no time for all
SMALL = ("cnn_small",)
LEAST_SECONDS: dict[Size, float] = {"full": 0.4, "small": 0.0}  # ours: of the steps that are timed
WARM_UP = 3  # ours: steps in which kernels are compiled and convolutions chosen
LEAST_STEPS = 3  # ours: between which nothing waits


def measure_throughput(device: torch.device, size: Size, limit: float) -> dict[str, Any]:
    """A row for each model and size of the batch; a model's rows end where the memory does."""
    began, rows, failures = time.monotonic(), list[dict[str, Any]](), []
    names = SMALL if size == "small" else (*FIRST, *(name for name in options_of("model") if name not in FIRST))
    for name in names:
        if time.monotonic() - began > limit:
            failures.append(f"{name}: not reached within {limit:.0f} seconds")
            continue
        case = case_of(name, device)
        for batch in BATCHES[size]:
            row = {"model": name, "batch": batch, "images_per_second": None, "peak_memory_bytes": None, "state": "done"}
            rows.append(row)
            try:
                row |= measure_case(of_size(case, batch), size)
            except torch.OutOfMemoryError:
                row["state"] = "out of memory"
            except Exception as error:  # of a kernel, too: the other models are measured all the same
                row["state"] = "failed"
                failures.append(f"{name}, batch of {batch}: {type(error).__name__}: {one_line(error)}")
            _free(device)
            if row["state"] != "done":
                break
    return {"step": "forward, backward, Adam; images are on the device", "rows": rows, "failures": failures}


def case_of(name: str, device: torch.device) -> Case:
    """A model's training step as it is trained: fused routing, bfloat16 convolutions on a GPU."""
    precision = "bf16-mixed" if device.type == "cuda" else FULL
    overrides = [f"models=[{name}]", "backends=[fused]", f"precisions=[{precision}]", f"device={device.type}"]
    ((case,),) = model_groups(compose("bench", overrides), textbook=False)
    return case


def of_size(case: Case, batch: int) -> Case:
    """The same with another size of the batch."""
    return replace(case, sizes={**case.sizes, "batch_size": batch})


def measure_case(case: Case, size: Size) -> dict[str, Any]:
    """Images per second, and bytes at the peak.

    Raises:
        torch.OutOfMemoryError: if it does not fit.
    """
    device = torch.device(case.device)
    step = build_step(case)
    memory_now(device)
    for _ in range(WARM_UP):
        take_step(step)
    steps, seconds = 0, 0.0
    while steps < LEAST_STEPS or seconds < LEAST_SECONDS[size]:
        seconds += _timed(step, device)
        steps += LEAST_STEPS
    return {
        "images_per_second": steps * case.sizes["batch_size"] / seconds,
        "peak_memory_bytes": peak_memory(device),
        "precision": case.precision,
        "image_shape": "x".join(map(str, case.sizes["image_shape"])),
    }


def _timed(step: Any, device: torch.device) -> float:
    """Seconds of ``LEAST_STEPS`` steps, between which nothing waits."""
    _synchronise(device)
    began = time.perf_counter()
    for _ in range(LEAST_STEPS):
        take_step(step)
    _synchronise(device)
    return time.perf_counter() - began


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _free(device: torch.device) -> None:
    """Give memory back, so that the next case starts from none."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
