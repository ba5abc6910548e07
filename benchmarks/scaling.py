"""The cost of a convolutional EM layer as a function of its sizes."""

from __future__ import annotations

import itertools
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
        measured = time_in_turn(cases, rounds=config.rounds, steps=config.steps)
        for case, row in zip(cases, measured, strict=True):
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
    sizes = sizes_of(config, "scaling")
    device = str(device_named(config.device))
    option = AXES[axis]
    if axis == "iterations":
        values = {*ITERATIONS}
    elif axis == "image_size":
        values = {max(sizes[option] * quarter // 4, sizes["kernel_size"]) for quarter in EDGES}
    else:
        values = {max(sizes[option] * quarter // 4, 1) for quarter in QUARTERS}
    cases = []
    for value, backend in itertools.product(sorted(values), config.backends):
        scaled_sizes = {**sizes, option: value}
        cases.append(Case("layer", "em_all_parents", backend, FULL, device, scaled_sizes))
    return cases
