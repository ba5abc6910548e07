"""Processes that time one case each, on request; one waits while another works."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import torch

from capsule_lab.bench.cases import Case
from capsule_lab.bench.layers import build_layer, small
from capsule_lab.bench.models import build_step
from capsule_lab.errors import ConfigError, one_line

Seconds = tuple[float, float]
"""Of the forward pass, and of the whole step."""


class Worker:
    """One process; what a call leaves there, the next finds.

    Args:
        name: for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What ``function``, of a module, returns there.

        Raises:
            ConfigError: if it raises, or if the process dies.
        """
        try:
            return self._pool.submit(function, *arguments).result()
        except ValueError as error:  # ours, or of a network that refuses its sizes
            raise ConfigError(f"{self.name}: {one_line(error)}") from error
        except BrokenProcessPool as error:
            raise ConfigError(
                f"{self.name} could not be timed: its process died (out of memory? try batch_size=32)"
            ) from error
        except RuntimeError as error:  # torch's own errors
            raise ConfigError(
                f"{self.name} could not be timed: {one_line(error)} (out of memory? try batch_size=32)"
            ) from error


class CaseTimer:
    """A case, built and warmed up in this process.

    On a GPU, times are those between events on the device, with no wait of the processor between steps, as in training.
    """

    def __init__(self, case: Case) -> None:
        self.device = torch.device(case.device)
        self.forward, self.backward = build_passes(case)
        self.memory_before = memory_now(self.device)
        started = time.perf_counter()
        self.run(1)
        self.first_seconds = time.perf_counter() - started
        self.run(1)  # ours: the first may build kernels and the optimiser's state, the second a gradient's memory

    def run(self, steps: int) -> list[Seconds]:
        """Time so many steps."""
        if self.device.type != "cuda":
            return [self._step() for _ in range(steps)]
        marks = [self._step_on_gpu() for _ in range(steps)]
        torch.cuda.synchronize()
        return [(start.elapsed_time(between) / 1e3, start.elapsed_time(end) / 1e3) for start, between, end in marks]

    def memory(self) -> dict[str, int]:
        """Bytes at the peak, and how many of them are above what was taken before the first step."""
        peak = peak_memory(self.device)
        return {"peak_memory_bytes": peak, "memory_above_bytes": max(peak - self.memory_before, 0)}

    def _step(self) -> Seconds:
        started = time.perf_counter()
        result = self.forward()
        between = time.perf_counter()
        self.backward(result)
        return between - started, time.perf_counter() - started

    def _step_on_gpu(self) -> tuple[torch.cuda.Event, ...]:
        start, between, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        start.record()
        result = self.forward()
        between.record()
        self.backward(result)
        end.record()
        return start, between, end


_timer: CaseTimer  # of a worker's process


def build_timer(case: Case) -> None:
    """In a worker, before all other calls."""
    global _timer
    _timer = CaseTimer(case)


def time_steps(steps: int) -> list[Seconds]:
    """In a worker."""
    return _timer.run(steps)


def read_memory() -> dict[str, int]:
    """In a worker, after all steps."""
    return _timer.memory()


def build_passes(case: Case) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """The forward pass of a case, and the rest of its step, to call with the result of it."""
    if case.kind == "layer":
        if case.device == "cpu" and case.form != "compiled":  # others compile for each size
            forward, inputs = build_layer(case, small(case))  # compiles what has to be
            torch.autograd.grad([output.sum() for output in forward()], inputs)
        forward, inputs = build_layer(case)

        def backward(outputs: Any) -> None:
            torch.autograd.grad(outputs, inputs, [torch.ones_like(output) for output in outputs])

        return forward, backward

    step = build_step(case)

    def backward_and_update(loss: Any) -> None:
        step.optimizer.zero_grad()
        loss.backward()
        step.optimizer.step()

    return step.loss, backward_and_update


def memory_now(device: torch.device) -> int:
    """Bytes that are taken; the peak is measured from here."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: resets VmHWM
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return peak_memory(device)


def peak_memory(device: torch.device) -> int:
    """The most bytes that were taken: by tensors on a GPU, by the whole process otherwise."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    with suppress(OSError):  # Linux; ru_maxrss of a forked process starts with its parent's
        found = re.search(r"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes on macOS, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
