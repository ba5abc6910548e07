"""Timing of cases in interleaved rounds, so that changes of the machine's load affect all cases alike.

Every case has a separate process, so that its peak memory can be measured; only one process works at a time.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import torch
from omegaconf import DictConfig
from torch import Tensor

from benchmarks.cases import FULL, Case, layer_groups, model_groups
from benchmarks.kernels import build_kernel
from benchmarks.layers import build_layer, small
from benchmarks.models import Step, build_step, take_step
from benchmarks.roofline import beside_roofline, measure_roofline
from capsule_lab.errors import ConfigError, one_line
from capsule_lab.lit.optimizers import use_device_values

PAUSE = 0.05  # ours: OpenMP's threads busy-wait for some milliseconds after work

Seconds = tuple[float, float]
"""Seconds of the forward pass and of the whole step."""


def measure(config: DictConfig) -> dict[str, Any]:
    """Measure the machine's rates, and for each case seconds, memory, lower bounds, and ratios to its group's first.

    Raises:
        ConfigError: if a case cannot be timed.
    """
    groups = [*filter(None, layer_groups(config) + model_groups(config))]
    bfloat16 = any(case.precision != FULL for case in itertools.chain(*groups))
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
                of_first = max(first[f"{memory}_bytes"], 1)
                row[f"{memory}_share"] = row[f"{memory}_bytes"] / of_first
        rows += measured
    return {"rates": rates, "rows": rows}


def time_in_turn(cases: list[Case], *, rounds: int, steps: int) -> list[dict[str, Any]]:
    """Measure seconds per step and memory of every case."""
    workers: list[Worker] = []
    seconds: list[list[Seconds]] = []
    with ExitStack() as stack:
        for case in cases:
            worker = stack.enter_context(Worker(case.label))
            worker.call(build_timer, case)
            workers.append(worker)
            seconds.append([])
        for _ in range(rounds):
            for worker, of_case in zip(workers, seconds, strict=True):
                time.sleep(PAUSE)
                of_case += worker.call(time_steps, steps)
        memory = [worker.call(read_memory) for worker in workers]
    rows = []
    for case, times, of_case in zip(cases, seconds, memory, strict=True):
        rows.append(row_of(case, times) | of_case)
    return rows


def row_of(case: Case, times: list[Seconds]) -> dict[str, Any]:
    """Return the table row of a case and the seconds of its steps."""
    forward, step_seconds = zip(*times, strict=True)
    row = {
        **case.row,
        "seconds_median": statistics.median(step_seconds),
        "seconds_fastest": min(step_seconds),
        "seconds_slowest": max(step_seconds),
        "forward_seconds_median": statistics.median(forward),
    }
    if case.kind == "model":
        row["images_per_second"] = case.sizes["batch_size"] / row["seconds_median"]
    return row


class Worker:
    """A process whose state persists between calls.

    Args:
        name: name for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function``, defined at module level, in the process and return its result.

        Raises:
            ConfigError: if it raises, or if the process dies.
        """
        try:
            return self._pool.submit(function, *arguments).result()
        except ValueError as error:  # ours, or from a network that rejects its sizes
            raise ConfigError(f"{self.name}: {one_line(error)}") from error
        except (BrokenProcessPool, RuntimeError) as error:  # the latter are torch's own
            raise ConfigError(
                f"{self.name} could not be timed: {one_line(error)} (out of memory? try batch_size=32)"
            ) from error


class Marks:
    """Events of a step on a GPU: before the forward pass, after it, and at the end."""

    def __init__(self) -> None:
        self.start = torch.cuda.Event(enable_timing=True)
        self.between = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)

    def seconds(self) -> Seconds:
        """Return seconds of the forward pass and of the whole step, after the GPU has reached the end."""
        forward = self.start.elapsed_time(self.between) / 1e3
        return forward, self.start.elapsed_time(self.end) / 1e3


class CaseTimer:
    """A case, built and warmed up in this process.

    On a GPU, times are between events on the device, and the CPU does not wait between steps, as in training.
    """

    def __init__(self, case: Case) -> None:
        self.device = torch.device(case.device)
        self.forward, self.backward = build_passes(case)
        self.memory_before = memory_now(self.device)
        start_time = time.perf_counter()
        self.run(1)
        self.first_seconds = time.perf_counter() - start_time
        # ours: the first run may build kernels and optimiser state, the second allocates gradients
        self.run(1)

    def run(self, steps: int) -> list[Seconds]:
        """Time ``steps`` steps."""
        if self.device.type != "cuda":
            return [self._step() for _ in range(steps)]
        marks = [self._step_on_gpu() for _ in range(steps)]
        torch.cuda.synchronize()
        return [mark.seconds() for mark in marks]

    def memory(self) -> dict[str, int]:
        """Return peak memory in bytes, and its increase over the memory before the first step."""
        peak = peak_memory(self.device)
        return {"peak_memory_bytes": peak, "memory_above_bytes": max(peak - self.memory_before, 0)}

    def _step(self) -> Seconds:
        start = time.perf_counter()
        result = self.forward()
        between = time.perf_counter()
        self.backward(result)
        return between - start, time.perf_counter() - start

    def _step_on_gpu(self) -> Marks:
        marks = Marks()
        marks.start.record()
        result = self.forward()
        marks.between.record()
        self.backward(result)
        marks.end.record()
        return marks


_timer: CaseTimer  # of a worker's process


def build_timer(case: Case) -> None:
    """In a worker, before all other calls: build the timer of a case."""
    global _timer
    _timer = CaseTimer(case)


def time_steps(steps: int) -> list[Seconds]:
    """In a worker: time steps."""
    return _timer.run(steps)


def read_memory() -> dict[str, int]:
    """In a worker, after all steps: return the memory."""
    return _timer.memory()


def build_passes(case: Case) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Return the forward pass of a case, and a function of its result for the rest of the step."""
    if case.kind == "kernel":
        return build_kernel(case.name, torch.device(case.device), case.sizes)[0], lambda _: None
    if case.kind == "layer":
        if case.device == "cpu" and case.form != "compiled":  # others compile for each size
            forward, inputs = build_layer(case, small(case))  # compiles kernels
            torch.autograd.grad([output.sum() for output in forward()], inputs)
        forward, inputs = build_layer(case)

        def backward(outputs: Any) -> None:
            torch.autograd.grad(outputs, inputs, [torch.ones_like(output) for output in outputs])

        return forward, backward

    step = build_step(case)
    if case.form == "graphs":
        return replayed_passes(step, torch.device(case.device))

    def backward_and_update(loss: Any) -> None:
        step.optimizer.zero_grad()
        loss.backward()
        step.optimizer.step()

    return step.loss, backward_and_update


def replayed_passes(
    step: Step, device: torch.device
) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Return the passes of a step as CUDA graphs; an optimizer that cannot be captured runs as it is."""
    # optional: the other forms are timed without these files
    from capsule_lab.lit.captured_step import EAGER_STEPS, CapturedStep, has_device_values
    from capsule_lab.system import cuda_graphs

    cuda_graphs.use_side_stream(device)
    use_device_values(step.optimizer, device)
    for _ in range(EAGER_STEPS):
        take_step(step)

    def forward() -> tuple[Tensor, Tensor]:
        loss = step.loss()
        return loss, loss.detach()

    update = step.optimizer.step if has_device_values(step.optimizer) else None
    captured = CapturedStep(forward, step.network.parameters(), update, device)

    def backward_and_update(_: Any) -> None:
        captured.backward()
        if captured.without_update:
            step.optimizer.step()
        else:
            captured.update()

    return captured.forward, backward_and_update


def memory_now(device: torch.device) -> int:
    """Return the memory in use in bytes, and reset the peak; on a CPU only on Linux, 0 elsewhere."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    with suppress(OSError):
        _, resident_pages, *_ = Path("/proc/self/statm").read_text(encoding="utf-8").split()
        return int(resident_pages) * os.sysconf("SC_PAGE_SIZE")
    return 0


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: of tensors on a GPU, otherwise of the whole process (on Linux)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    with suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        match = re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)
        return int(match[1]) * 1024 if match else 0
    return 0
