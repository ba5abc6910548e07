"""Processes that time one case each, whenever they are asked to, and otherwise sleep."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from capsule_lab.bench.cases import Case
from capsule_lab.bench.layers import build_layer, small
from capsule_lab.bench.models import build_step
from capsule_lab.config import user_message
from capsule_lab.errors import ConfigError

Seconds = tuple[float, float]
"""Of the forward pass, and of all."""


@dataclass(frozen=True)
class Refused:
    """What a worker answers when its case cannot be built."""

    sentence: str


class Worker:
    """A process that runs ``task(pipe, *arguments)``.

    Args:
        name: for people.
        task: a function of a module.
    """

    def __init__(self, name: str, task: Callable[..., None], *arguments: Any) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=serve, args=(there, task, *arguments), daemon=True)
        self.process.start()
        there.close()  # so that a worker that dies is noticed

    def receive(self) -> Any:
        """Its next answer.

        Raises:
            ConfigError: if there is none.
        """
        try:
            answer = self.pipe.recv()
        except EOFError as error:
            raise ConfigError(
                f"{self.name} could not be timed; its error is above (out of memory? try batch_size=32)"
            ) from error
        if isinstance(answer, Refused):
            raise ConfigError(f"{self.name}: {answer.sentence}")
        return answer

    def ask(self, question: Any) -> Any:
        self.pipe.send(question)
        return self.receive()

    def end(self) -> None:
        self.process.join()


def serve(pipe: Connection, task: Callable[..., None], *arguments: Any) -> None:
    """In the worker: the task, or in one sentence why not."""
    try:
        task(pipe, *arguments)
    except Exception as error:
        sentence = str(error) if isinstance(error, ValueError) else user_message(error)
        if sentence is None:
            raise
        pipe.send(Refused(" ".join(sentence.split())))
    finally:
        pipe.close()


def time_case(pipe: Connection, case: Case) -> None:
    """In the worker: time as many steps as are asked for, until none are; then answer with the peak memory."""
    run, before = prepare(case)
    for _ in range(2):  # ours: the first may build kernels, the second the optimiser's state
        run()
    pipe.send("ready")
    while steps := pipe.recv():
        pipe.send([run() for _ in range(steps)])
    peak = peak_memory(torch.device(case.device))
    pipe.send({"peak_memory_bytes": peak, "memory_above_bytes": max(peak - before, 0)})


def prepare(case: Case) -> tuple[Callable[[], Seconds], int]:
    """One step to call, and how much memory was taken before the first."""
    device = torch.device(case.device)

    def synchronise() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    def run() -> Seconds:
        synchronise()
        started = time.perf_counter()
        result = forward()
        synchronise()
        between = time.perf_counter()
        backward(result)
        synchronise()
        return between - started, time.perf_counter() - started

    forward: Callable[[], Any]
    backward: Callable[[Any], None]
    if case.kind == "layer":
        forward, inputs = build_layer(case, small(case))  # compiles what has to be
        torch.autograd.grad([output.sum() for output in forward()], inputs)
        forward, inputs = build_layer(case)

        def backward(outputs: Any) -> None:
            torch.autograd.grad(outputs, inputs, [torch.ones_like(output) for output in outputs])
    else:
        step = build_step(case)
        forward = step.loss

        def backward(loss: Any) -> None:
            step.optimizer.zero_grad()
            loss.backward()
            step.optimizer.step()

    return run, memory_now(device)


def memory_now(device: torch.device) -> int:
    """Bytes that are taken; the peak is measured from here."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: forgets the peak so far
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return peak_memory(device)


def peak_memory(device: torch.device) -> int:
    """The most bytes that were taken: by tensors on a GPU, by the whole process otherwise."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    with suppress(OSError):  # Linux; a process that was forked starts with its parent's ru_maxrss
        found = re.search(r"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024  # KiB
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes on macOS, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
