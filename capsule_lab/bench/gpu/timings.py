"""Layers and whole training steps in every form: time, memory, and percent of the roofline of the same device."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from omegaconf import DictConfig

from capsule_lab.bench.cases import FULL, Case, check_bench, layer_groups, model_groups
from capsule_lab.bench.interleave import row_of
from capsule_lab.bench.roofline import Work, beside_roofline, count, machine_rates
from capsule_lab.bench.workers import CaseTimer
from capsule_lab.config.compose import compose
from capsule_lab.errors import one_line

Size = Literal["full", "small"]
Row = dict[str, Any]

OVERRIDES: dict[Size, list[str]] = {
    "full": [
        "backends=[matmul,compiled,fused]", "precisions=[bf16-mixed]", "models=[em_caps_paper,em_caps_small,capsnet]",
        "sizes.em_window.rows=2304", "sizes.em_all_parents.batch_size=64",  # 64 images of 6x6 positions
        "sizes.dynamic.batch_size=512", "sizes.em_caps_paper.batch_size=64", "sizes.em_caps_small.batch_size=512",
        "+sizes.capsnet={batch_size: 512, image_shape: [1, 28, 28], num_classes: 10}",
    ],
    "small": [
        "backends=[matmul,fused]", f"precisions=[{FULL}]", "models=[em_caps_paper,capsnet]",  # compiling takes too long
        "batch_size=2", "image_shape=[1,21,21]", "options=['model.channels=4','model.primary_types=2']",
        "sizes.em_window={rows: 2, children: 9, parents: 3, iterations: 2}",
        "sizes.em_all_parents={grid: 5, child_types: 2, parents: 3, iterations: 2}",
        "sizes.dynamic={children: 6, child_dim: 4, parents: 3, parent_dim: 5, iterations: 2}",
    ],
}  # fmt: skip
"""Of the benchmark's configuration: those of ``TARGETS``, and others that take seconds on a CPU."""

SECONDS, FEWEST, MOST = 1.0, 3, 50  # ours: of steps that are timed, after three that warm up

OUT_OF_MEMORY = "out of memory"

TARGETS = [
    ("em_caps_paper", "speedup", 10.0, "EMCaps 32/32/32/32, batch 64: images/s, times the textbook's"),
    ("em_caps_paper", "peak_memory_bytes", -8e9, "EMCaps 32/32/32/32, batch 64: bytes at the peak, at most"),
    ("em_caps_small", "images_per_second", 20_000.0, "EMCaps 64/8/16/16, batch 512: images/s"),
    ("capsnet", "images_per_second", 40_000.0, "CapsNet, batch 512, bf16 convolutions: images/s"),
    ("em_window", "roofline_percent", 50.0, "EM layer: percent of the roofline"),
]
"""Of the fused form: model or layer, quantity, least value, or if it is negative the greatest, and what it says."""


def bench_config(device: torch.device, size: Size, *overrides: str) -> DictConfig:
    """The benchmark's configuration for these measurements.

    Raises:
        ConfigError: for what cannot be timed.
    """
    config = compose("bench", [*OVERRIDES[size], f"device={device.type}", *overrides])
    check_bench(config)
    return config


def time_layers_and_steps(device: torch.device, size: Size, limit: float) -> dict[str, Any]:
    """Every layer and model in every form, one after the other in this process.

    Times are medians, by events on a GPU, of a forward pass and of a whole step.

    Args:
        device: to measure.
        size: ``"full"``, or ``"small"``, which takes seconds on a CPU and is without ``torch.compile``.
        limit: seconds; a case that would end later, were it as slow as the slowest before, is left out.

    Returns:
        ``rates`` of the device; ``rows``; ``skipped``, labels of cases that found no time; ``targets``, for
        ``"full"``, with ``met``; ``failures``, sentences. A case for which memory does not suffice is no failure; its
        row has ``error``, and null for numbers.
    """
    started = time.monotonic()
    config = bench_config(device, size)
    groups = [*layer_groups(config), *model_groups(config)]
    rates = machine_rates(device, bfloat16=FULL not in config.precisions)
    works: dict[str, Work] = {}
    found: dict[str, Row] = {}
    skipped: list[str] = []
    longest = 0.0
    cases = [case for group in groups for case in group]
    for case in sorted(cases, key=lambda case: case.form == "compiled"):  # the slowest to build come last
        before = time.monotonic()
        if before - started + longest > limit:
            skipped.append(case.label)
            continue
        found[case.label] = measured(case, rates, works)
        longest = max(longest, time.monotonic() - before)
    rows = []
    for group in groups:
        rows += _beside_textbook([found[case.label] for case in group if case.label in found])
    failures = [f"{row['name']} ({row['form']}): {row['error']}" for row in rows if _failed(row)]
    report = {"rates": rates, "rows": rows, "skipped": skipped, "failures": failures}
    return report | ({"targets": beside_targets(rows)} if size == "full" else {})


def measured(case: Case, rates: dict[str, float], works: dict[str, Work]) -> Row:
    """One case: times, memory, rates and lower bounds, or ``error``; ``works``, by name, are counted where missing."""
    row: Row = {"kind": case.kind, "name": case.name, "form": case.form, "precision": case.precision}
    row |= {"device": case.device, **case.sizes}
    try:
        if case.name not in works:  # the same for all forms; this one needs the least memory
            works[case.name] = count(replace(case, form="fused"))
        return row | _timed(case, works[case.name], rates)
    except torch.OutOfMemoryError:
        return row | {"error": OUT_OF_MEMORY}
    except Exception as error:  # of a compiler or a kernel: other cases go on
        return row | {"error": f"{type(error).__name__}: {one_line(error)}"}
    finally:
        gc.collect()
        if case.form == "compiled":
            torch.compiler.reset()
        if case.device == "cuda":
            torch.cuda.empty_cache()


def _failed(row: Row) -> bool:
    return row.get("error") not in (None, OUT_OF_MEMORY)


def _timed(case: Case, work: Work, rates: dict[str, float]) -> Row:
    timer = CaseTimer(case)
    ((_, seconds),) = timer.run(1)
    times = timer.run(max(FEWEST, min(MOST, int(SECONDS / max(seconds, 1e-6)))))
    row = {**row_of(case, times), **timer.memory(), "first_seconds": timer.first_seconds, "steps": len(times)}
    return {**row, **beside_roofline(row, work, rates), "error": None}


def _beside_textbook(rows: list[Row]) -> list[Row]:
    """Rows of one layer or model, with ``speedup`` over its textbook form, where both were measured."""
    textbook = next((row for row in rows if row["form"] == "textbook" and row["error"] is None), None)
    for row in rows:
        if textbook is not None and row["error"] is None:
            row["speedup"] = textbook["seconds_median"] / row["seconds_median"]
    return rows


def beside_targets(rows: Sequence[Row]) -> list[Row]:
    """What was asked for and what the fused form has, null where it was not measured."""
    fused = {row["name"]: row for row in rows if row["form"] == "fused"}
    found = []
    for name, quantity, bound, text in TARGETS:
        value = fused.get(name, {}).get(quantity)
        met = None if value is None else value <= -bound if bound < 0 else value >= bound
        found.append({"target": text, "wanted": abs(bound), "measured": value, "met": met})
    return found
