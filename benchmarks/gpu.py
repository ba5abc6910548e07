"""Time kernels, layers and training steps on a GPU that is lent for minutes: ``python -m benchmarks.gpu key=value …``.

One process times the cases in turn, with those that torch compiles last, and writes all rows to a JSON file after each
case, so that nothing is lost when the time ends. Run ``pytest -m gpu`` before, which tests the results of the kernels.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from benchmarks.breakdown import profile_case
from benchmarks.cases import (
    Case,
    check_bench,
    check_writable,
    configuration,
    device_named,
    kernel_cases,
    layer_groups,
    model_groups,
)
from benchmarks.roofline import Work, beside_roofline, count, machine_rates
from benchmarks.timing import CaseTimer, row_of
from capsule_lab.config.composition import to_container
from capsule_lab.errors import ConfigError, one_line
from capsule_lab.runs import files
from capsule_lab.system import environment

PROFILED = 5  # ours: steps under the profiler


def main(config: DictConfig) -> None:
    """Time every case of ``config``, and write ``config.out`` after each.

    The row of a failed case has ``error`` instead of times, ``out of memory`` if the memory did not suffice.
    """
    end = time.monotonic() + config.limit
    cases = cases_of(config)
    device = device_named(config.device)
    out = Path(str(config.out))
    check_writable(out)
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "hardware": environment.hardware(device),
    }
    report |= facts(device)
    report |= {"gpu": to_container(config), **environment.of_this_process()}
    report["rates"] = machine_rates(device, bfloat16=True)
    report |= {"rows": [], "not_reached": []}
    full: set[str] = set()  # models with a batch that did not fit into memory
    works: dict[str, Work] = {}
    for case, batch in cases:
        if time.monotonic() > end:
            report["not_reached"].append(f"{case.label}, {dict(case.sizes)}")
        elif not (batch and case.name in full):
            row = {
                **case.row,
                "sizes": case.sizes_text,
                "batches": batch,
                **timed(case, config.steps, report["rates"], works),
            }
            if batch and row.get("error"):
                full.add(case.name)
            report["rows"].append(row)
            sys.stdout.write(line_of(row))
            sys.stdout.flush()
        files.write_record(out, report)


def cases_of(config: DictConfig) -> list[tuple[Case, bool]]:
    """Return kernels, layers and steps in every form, steps by batch size, with ``True``; compiled cases are last."""
    graphs = "graphs" in config.backends
    config.backends = [backend for backend in config.backends if backend != "graphs"]
    check_bench(config)
    groups = [kernel_cases(config), *layer_groups(config), *model_groups(config)]
    cases = [(case, False) for group in groups for case in group]
    if graphs:
        cases += [
            (with_graphs(case), False)
            for case, _ in cases
            if (case.kind, case.form) == ("model", "fused")
        ]
    cases += [(case, True) for case in by_batch(config)]
    return sorted(cases, key=lambda timing: timing[0].form == "compiled")


def with_graphs(case: Case) -> Case:
    """Return the case of a fused step as CUDA graphs."""
    return replace(case, form="graphs")


def by_batch(config: DictConfig) -> Iterator[Case]:
    """Yield the training step of each model of ``throughput`` at each batch size."""
    chosen = config.copy()
    chosen.models, chosen.backends = config.throughput, ["fused"]
    for ((*_, case),) in ([group] for group in model_groups(chosen, textbook=False)):
        for batch in config.batches:
            yield replace(case, sizes={**case.sizes, "batch_size": batch})


def timed(
    case: Case, steps: int, rates: dict[str, float], works: dict[str, Work]
) -> dict[str, Any]:
    """Return times, memory, lower bounds, and for fused and plain models the costliest operators; or ``error``."""
    try:
        key = f"{case.name} {case.sizes}"
        if key not in works:  # the same for all forms; counted in the form with the least memory
            works[key] = count(case if case.form == "plain" else replace(case, form="fused"))
        row = seconds_and_memory(case, steps)
        row |= beside_roofline(row, works[key], rates)
        profiled = case.kind == "model" and case.form in ("fused", "plain")
        return row | ({"profile": profile_case(case, PROFILED)} if profiled else {})
    except torch.OutOfMemoryError:
        return {"error": "out of memory"}
    except Exception as error:  # from a compiler or a kernel: continue with the other cases
        return {"error": f"{type(error).__name__}: {one_line(error)}"}
    finally:
        gc.collect()
        if case.form == "compiled":
            torch.compiler.reset()
        if case.device == "cuda":
            torch.cuda.empty_cache()


def seconds_and_memory(case: Case, steps: int) -> dict[str, Any]:
    timer = CaseTimer(case)
    return {
        **row_of(case, timer.run(steps)),
        **timer.memory(),
        "first_seconds": timer.first_seconds,
    }


def facts(device: torch.device) -> dict[str, Any]:
    """Return properties of a GPU."""
    if device.type != "cuda":
        return {}
    import triton  # not installed where there is no GPU

    properties = torch.cuda.get_device_properties(device)
    return {
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "cudnn": torch.backends.cudnn.version(),
    }


def line_of(row: dict[str, Any]) -> str:
    batch = row.get("batch_size", row.get("rows"))
    text = (
        row.get("error")
        or f"{1e3 * row['seconds_median']:.3g} ms, {row['roofline_percent']:.1f} % of the roofline"
    )
    return f"{row['name']} ({row['form']}, {row['precision']}), batch {batch}: {text}\n"


if __name__ == "__main__":
    try:
        main(configuration("gpu", sys.argv[1:]))
    except ConfigError as error:
        sys.exit(f"benchmarks.gpu: {error}")
