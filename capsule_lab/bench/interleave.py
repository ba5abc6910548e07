"""Cases in turn, round after round, so that changes of the machine's load affect all alike."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import Any

from omegaconf import DictConfig

from capsule_lab.bench.cases import FULL, Case, check_bench, layer_groups, model_groups
from capsule_lab.bench.roofline import beside_roofline, measure_roofline
from capsule_lab.bench.workers import Seconds, Worker, build_timer, read_memory, time_steps

PAUSE = 0.05  # ours: OpenMP's threads wait for more work in a loop for some milliseconds


def measure(config: DictConfig) -> dict[str, Any]:
    """Rates of the machine, and a row for each case: seconds, memory, lower bounds, ratios to the first of its group.

    Raises:
        ConfigError: for what cannot be timed.
    """
    check_bench(config)
    groups = [group for group in layer_groups(config) + model_groups(config) if group]
    bfloat16 = any(case.precision != FULL for group in groups for case in group)
    with Worker("the machine") as worker:
        rates, works = worker.call(measure_roofline, [group[-1] for group in groups], bfloat16)
    rows = []
    for group, work in zip(groups, works, strict=True):
        measured = time_in_turn(group, rounds=config.rounds, steps=config.steps)
        first = dict(measured[0])
        for row in measured:
            row |= beside_roofline(row, work, rates)
            row["speedup"] = first["seconds_median"] / row["seconds_median"]
            for memory in ("peak_memory", "memory_above"):
                row[f"{memory}_share"] = row[f"{memory}_bytes"] / max(first[f"{memory}_bytes"], 1)
        rows += measured
    return {"rates": rates, "rows": rows}


def time_in_turn(cases: list[Case], *, rounds: int, steps: int) -> list[dict[str, Any]]:
    """Seconds per step and memory of every case."""
    seconds: list[list[Seconds]] = [[] for _ in cases]
    with ExitStack() as stack:
        workers = []
        for case in cases:
            workers.append(stack.enter_context(Worker(case.label)))
            workers[-1].call(build_timer, case)
        for _ in range(rounds):
            for worker, of_case in zip(workers, seconds, strict=True):
                time.sleep(PAUSE)
                of_case += worker.call(time_steps, steps)
        memory = [worker.call(read_memory) for worker in workers]
    return [{**row_of(case, times), **peak} for case, times, peak in zip(cases, seconds, memory, strict=True)]


def row_of(case: Case, times: list[Seconds]) -> dict[str, Any]:
    """A case, and the seconds of its steps."""
    forward, both = zip(*times, strict=True)
    row = {
        "kind": case.kind,
        "name": case.name,
        "form": case.form,
        "precision": case.precision,
        "device": case.device,
        **case.sizes,
        "seconds_median": statistics.median(both),
        "seconds_fastest": min(both),
        "seconds_slowest": max(both),
        "forward_seconds_median": statistics.median(forward),
    }
    if case.kind == "model":
        row["images_per_second"] = case.sizes["batch_size"] / row["seconds_median"]
    return row
