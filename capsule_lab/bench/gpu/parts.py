"""The parts of ``python -m capsule_lab.gpu``, in the order in which they run."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast

import torch

Size = Literal["full", "small"]
"""``full``: sizes of the papers; ``small``: sizes that a CPU works through in seconds."""

Measure = Callable[[torch.device, Size, float], dict[str, Any]]
"""What a part does: ``(device, size, limit)`` to what it found.

It begins nothing new once ``limit`` seconds are over. What it returns fits JSON: ``rows``, dictionaries of one table;
``failures``, sentences about what it proved to be wrong; any other numbers and texts.
"""


class Part(NamedTuple):
    """Something to prove or to measure.

    Attributes:
        name: by which it is asked for.
        sentence: what it answers.
        seconds: planned at full size on a large GPU, the start of its process included; ours, estimates.
        function: ``module:name`` of a ``Measure``; only the process of the part imports it.
    """

    name: str
    sentence: str
    seconds: int
    function: str

    def measure(self) -> Measure:
        """The function of the part."""
        return cast(Measure, pkgutil.resolve_name(self.function))


_HERE = "capsule_lab.bench.gpu"

PARTS = (
    Part("device", "What the device, its driver and the versions are.", 10, f"{_HERE}.device:describe_device"),
    Part(
        "correctness",
        "Whether every routing, backend and precision gives the numbers and gradients of float64 on a CPU.",
        75,
        f"{_HERE}.correctness:check_routings",
    ),
    Part(
        "memcheck",
        "Whether compute-sanitizer sees a kernel read or write outside of its arrays.",
        40,
        f"{_HERE}.memcheck:check_memory",
    ),
    Part("blocks", "Which sizes of blocks are fastest, and what a launch costs.", 120, f"{_HERE}.blocks:tune_blocks"),
    Part(
        "timings",
        "How long layers and steps take beside other forms, and at what share of the device's limits.",
        110,
        f"{_HERE}.timings:time_layers_and_steps",
    ),
    Part("steps", "Where the time of a step goes.", 30, f"{_HERE}.steps:take_steps_apart"),
    Part(
        "synchronisations",
        "Whether training waits for the device in a step.",
        20,
        f"{_HERE}.synchronisations:count_synchronisations",
    ),
    Part("graphs", "Whether steps as CUDA graphs are faster, and the same.", 90, f"{_HERE}.graphs:compare_graphs"),
    Part("batches", "What a loader costs, with data on the device or not.", 15, f"{_HERE}.batches:compare_loaders"),
    Part(
        "throughput",
        "Images per second and peak memory of every model, by size of the batch.",
        55,
        f"{_HERE}.throughput:measure_throughput",
    ),
)
