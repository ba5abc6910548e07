"""Cases in turn, round after round, so that a machine's moods fall on all alike."""

from __future__ import annotations

import statistics
import time
from typing import Any

from omegaconf import DictConfig

from capsule_lab.bench.cases import FULL, Case, check_bench, layer_groups, model_groups
from capsule_lab.bench.roofline import Work, measure_machine
from capsule_lab.bench.workers import Worker, time_case

PAUSE = 0.05  # ours: OpenMP's threads wait for more work in a loop for some milliseconds


def measure(config: DictConfig) -> dict[str, Any]:
    """Rates of the machine, and a row for each case: seconds, memory, floors, ratios to the first of its group.

    Raises:
        ConfigError: for what cannot be timed.
    """
    check_bench(config)
    groups = [group for group in layer_groups(config) + model_groups(config) if group]
    half = any(case.precision != FULL for group in groups for case in group)
    rates, works = measure_floors([group[-1] for group in groups], half=half)
    rows = []
    for group, work in zip(groups, works, strict=True):
        found = time_in_turn(group, rounds=config.rounds, steps=config.steps)
        for row in found:
            row |= work.floors(rates, row["precision"])
            row["speedup"] = found[0]["seconds_median"] / row["seconds_median"]
            for memory in ("peak_memory", "memory_above"):
                row[f"{memory}_share"] = row[f"{memory}_bytes"] / max(found[0][f"{memory}_bytes"], 1)
        rows += found
    return {"rates": rates, "rows": rows}


def measure_floors(cases: list[Case], *, half: bool) -> tuple[dict[str, float], list[Work]]:
    """Rates of the machine, and the work of each case."""
    worker = Worker("the machine", measure_machine, cases, half)
    rates, works = worker.receive(), worker.receive()
    worker.end()
    return rates, works


def time_in_turn(cases: list[Case], *, rounds: int, steps: int) -> list[dict[str, Any]]:
    """Seconds per step and memory of every case."""
    workers = []
    for case in cases:
        worker = Worker(f"{case.name} ({case.form}, {case.precision})", time_case, case)
        worker.receive()  # ready, warmed up
        workers.append(worker)
    seconds: list[list[tuple[float, float]]] = [[] for _ in cases]
    for _ in range(rounds):
        for worker, times in zip(workers, seconds, strict=True):
            time.sleep(PAUSE)
            times += worker.ask(steps)
    rows = []
    for case, worker, times in zip(cases, workers, seconds, strict=True):
        rows.append({**_row(case, times), **worker.ask(0)})
        worker.end()
    return rows


def _row(case: Case, times: list[tuple[float, float]]) -> dict[str, Any]:
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
