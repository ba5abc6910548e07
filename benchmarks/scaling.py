"""The cost of a convolutional EM layer as a function of its sizes."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from benchmarks.cases import AXES, FULL, Case, device_named, sizes_of
from benchmarks.roofline import votes_of
from benchmarks.timing import time_in_turn

QUARTERS = (1, 2, 4, 8, 16)  # ours: quarters of the layer's size, from 1/4 to 4 times
EDGES = (2, 3, 4, 6, 8)  # ours: quarters of a grid's edge; the area grows from 1/4 to 4 times
ITERATIONS = (1, 2, 3, 4, 6)  # ours: around the papers' 3


def scale(config: DictConfig) -> dict[str, Any]:
    """Return a row for each chosen axis, size and backend, with the seconds per vote and iteration."""
    rows = []
    for axis in AXES if config.scaling == "all" else [config.scaling]:
        cases = scaled(config, axis)
        for case, row in zip(
            cases, time_in_turn(cases, rounds=config.rounds, steps=config.steps), strict=True
        ):
            votes = votes_of(case)
            seconds = row["seconds_median"] / (votes * case.sizes["iterations"])
            rows.append(
                {
                    "axis": axis,
                    "value": case.sizes[AXES[axis]],
                    "votes": votes,
                    **row,
                    "seconds_per_vote": seconds,
                }
            )
    return {"rows": rows}


def scaled(config: DictConfig, axis: str) -> list[Case]:
    """Return the layer at every size along ``axis``, in each backend."""
    sizes, device = sizes_of(config, "scaling"), str(device_named(config.device))
    option = AXES[axis]
    values: set[int] = set(ITERATIONS)
    if axis != "iterations":
        least = sizes["kernel_size"] if axis == "image_size" else 1
        quarters = EDGES if axis == "image_size" else QUARTERS
        values = {max(sizes[option] * quarter // 4, least) for quarter in quarters}
    return [
        Case("layer", "em_all_parents", backend, FULL, device, {**sizes, option: value})
        for value in sorted(values)
        for backend in config.backends
    ]
