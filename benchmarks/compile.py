"""Compile the GPU kernels of the papers' layers for Hopper, without a GPU: ``python -m benchmarks.compile``.

A user meets this time in the first step of a run. The cache of Triton is empty at the beginning; a kernel that does not
depend on the sizes of a layer is compiled once. Seconds are processor time of this process and its assembler, which
other work on the machine changes little. The first line is a small fixed kernel: the ratio to it holds on other
machines, too. Instructions are those of the machine code; those of a loop count once.
"""
# ruff: noqa: N803 (Triton's constants are upper case)

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, no_type_check
from unittest.mock import patch

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from capsule_lab.kernels.em_arguments import FitInputs, FitOptions, FitOutputs, Parents

HOPPER = GPUTarget("cuda", 90, 32)
LINE = "{:34} {:18} {:>7} {:>6} {:>9} {:>6} {:>6} {:>12} {:>5} {:>5}\n"


class Layer(NamedTuple):
    """Sizes of a capsule layer."""

    row: int
    parent: int
    child: int
    rows: int = 4
    inner: int = 4
    columns: int = 4


PAPERS = {
    "EMCaps 32, windows": Layer(64 * 36, 32, 288),
    "EMCaps 32, classes": Layer(64, 5, 512),
    "EMCaps 32, with coordinates": Layer(64, 5, 512, inner=8),
    "EMCaps 64/8/16/16, first windows": Layer(512 * 25, 16, 72),
    "EMCaps 64/8/16/16, second windows": Layer(512 * 9, 16, 144),
    "CapsNet": Layer(512, 10, 1152, 1, 8, 16),
}


class Report(NamedTuple):
    """What compiling a kernel took, and what its machine code uses.

    Attributes:
        kernel: its name.
        seconds: processor time; 0 if an earlier layer has compiled it.
        layouts: share of the stage that assigns layouts, Triton's ``ttgir``, in the time.
        registers, spilled, shared: registers of a thread, bytes of its stack, bytes of shared memory of a program.
        code: the machine code.
    """

    kernel: str
    seconds: float
    layouts: float
    registers: int
    spilled: int
    shared: int
    code: bytes

    @property
    def instructions(self) -> Counter[str]:
        """Number of each in the machine code, which is disassembled each time."""
        return instructions_of(self.code)


class Driver:
    """What Triton asks a driver for in order to compile, without a GPU."""

    def get_current_target(self) -> GPUTarget:
        return HOPPER

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device


class Compiler:
    """Compiles kernels for Hopper in place of launching them.

    Attributes:
        reports: of every launch, in order.
    """

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.kernels: list[Any] = []

    @contextmanager
    def in_place_of_launching(self, gpu: ModuleType) -> Iterator[None]:
        """Replace ``launch`` in the modules of ``capsule_lab.kernels.gpu``."""
        with ExitStack() as stack:
            for module in (gpu.em, gpu.em_backward, gpu.dynamic, gpu.votes, gpu.child_softmax):
                stack.enter_context(patch.object(module, "launch", self.compile))
            yield

    def compile(
        self, kernel: Any, grid: Any, given: Any, out: Any, *numbers: int, **constants: Any
    ) -> None:
        """Compile ``kernel`` for these arguments, see ``capsule_lab.kernels.gpu.blocks.launch``."""
        if kernel not in self.kernels:
            kernel.device_caches.clear()  # what this process has compiled before
            self.kernels.append(kernel)
        # a type stands for a tensor that is aligned as torch allocates
        types = [None if tensor is None else tensor.dtype for tensor in (*given, *out)]
        report = compile_for_hopper(kernel, *types, *numbers, **constants, enable_fp_fusion=True)
        self.reports.append(report)


def compile_for_hopper(kernel: Any, *arguments: Any, **constants: Any) -> Report:
    """Compile ``kernel`` for arguments, types in place of tensors, unless Triton has done so."""
    events: list[dict[str, Any]] = []
    with (
        patch.object(driver, "_active", Driver()),  # private, read from Triton 3.8
        patch.object(triton.knobs.compilation, "listener", lambda **event: events.append(event)),
    ):
        start_time = processor_seconds()
        compiled = kernel.warmup(*arguments, grid=(1,), **constants)
        seconds = processor_seconds() - start_time
    layouts = 0.0
    if events:
        times = events[0]["times"]
        layouts = dict(times.lowering_stages)["ttgir"] / times.total
    code = compiled.asm["cubin"]
    used = resources(code)
    return Report(
        kernel=kernel.fn.__name__,
        seconds=seconds if events else 0.0,
        layouts=layouts,
        registers=used["REG"],
        spilled=used["STACK"],
        shared=used["SHARED"],
        code=code,
    )


def processor_seconds() -> float:
    """Return the processor time of this process and of the processes that it started and waited for."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def resources(cubin: bytes) -> dict[str, int]:
    """Return registers, stack and shared memory of machine code."""
    found = re.findall(r"(\w+):(\d+)", _cuobjdump("-res-usage", cubin))
    return {name: int(number) for name, number in found}


def instructions_of(cubin: bytes) -> Counter[str]:
    """Count the instructions of machine code, without padding; ``FFMA.FTZ`` counts as ``FFMA``."""
    line = r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_]+)"
    counts = Counter(re.findall(line, _cuobjdump("-sass", cubin), re.MULTILINE))
    counts.pop("NOP", None)
    return counts


def _cuobjdump(option: str, cubin: bytes) -> str:
    """Return what NVIDIA's program, which comes with Triton, says about machine code."""
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command: list[str | Path] = [program, option, file.name]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout


def launch_all(gpu: ModuleType, layer: Layer, *, em: bool, dynamic: bool) -> None:
    """Launch every kernel of a training step with EM or dynamic routing, on tensors without memory."""
    row, parent, child, rows, inner, columns = layer
    empty = partial(torch.empty, device="meta")
    poses = empty(row, rows * inner, child)
    weight = empty(parent, inner * columns, child)
    couplings = empty(row, parent, child)
    parents = empty(row, parent, rows * columns)
    inputs = FitInputs(poses, weight, empty(row, child), couplings, parents)
    fitted = Parents(empty(row, parent), parents, parents)
    if em:
        for distances in (couplings, couplings[:, :, :0]):  # the last iteration has none
            gpu.fit(inputs, FitOptions(inner, 0.0, 5e-4, 1e-7, distances.numel() > 0))
            gpu.fit_backward(inputs, fitted, FitOutputs(*fitted, distances), inner, 0.0, 5e-4)
        gpu.distances(poses, weight, parents, parents, inner)
        windows = torch.arange(child).expand(4, child)  # every position sees all children
        # of the first iteration
        shares = gpu.softmax_by_child(empty(4 * row, parent, child), windows, child)
        gpu.e_step_by_child(empty(4 * row, parent), shares, windows, child)
        gpu.e_step_by_child_backward(shares, shares, windows, child)
    if dynamic:
        gpu.weighted_sum(poses, weight, couplings, inner)
        gpu.agreement(poses, weight, parents, inner)
        gpu.contraction(poses, weight, [couplings] * 5, [parents] * 5, inner)  # of three iterations


@contextmanager
def empty_cache() -> Iterator[None]:
    """Let Triton use an empty cache."""
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, TRITON_CACHE_DIR=folder):
        yield


@triton.jit
@no_type_check
def _small(numbers, sums, COUNT: tl.constexpr):
    """A fixed kernel, whose compile time is the unit."""
    lane = tl.arange(0, 128)
    total = tl.full([128], 0.0, tl.float32)
    for k in tl.static_range(16):
        total += tl.load(numbers + k * 128 + lane) * (k + COUNT)
    tl.store(sums + tl.program_id(0), tl.sum(total, 0))


def small_kernel(count: int = 1) -> Report:
    """Compile the fixed kernel; another ``count`` compiles it anew. The first call also starts the compiler."""
    _small.device_caches.clear()
    return compile_for_hopper(_small, torch.float32, torch.float32, COUNT=count, num_warps=4)


def papers_kernels(gpu: ModuleType) -> Iterator[tuple[str, Report]]:
    """Yield layer and report of every kernel of ``PAPERS``, one layer after another."""
    compiler = Compiler()
    for name, layer in PAPERS.items():
        with compiler.in_place_of_launching(gpu):
            launch_all(gpu, layer, em=name != "CapsNet", dynamic=name == "CapsNet")
        for report in compiler.reports:
            yield name, report
        compiler.reports.clear()


def main() -> None:
    """Print a line for each kernel of each layer, and the sum."""
    from capsule_lab.kernels import gpu

    write = sys.stdout.write
    write(
        f"Triton {triton.__version__}, {HOPPER.backend} {HOPPER.arch}; seconds of processor time\n"
    )
    write(LINE.format(
        "layer", "kernel", "seconds", "ttgir", "registers", "spills", "shared", "instructions", "FFMA", "HMMA"
    ))  # fmt: skip
    total = 0.0
    with empty_cache():
        small_kernel(0)
        _print("(fixed kernel)", small_kernel())
        for layer, report in papers_kernels(gpu):
            _print(layer, report)
            total += report.seconds
    write(f"sum of seconds: {total:.2f}\n")


def _print(layer: str, report: Report) -> None:
    instructions = report.instructions
    total = instructions.total()
    seconds, layouts = "shared", ""
    if report.seconds:
        seconds = f"{report.seconds:.2f}"
        layouts = f"{report.layouts:.0%}"
    cells = [
        layer,
        report.kernel,
        seconds,
        layouts,
        report.registers,
        report.spilled,
        report.shared,
        total,
        f"{instructions['FFMA'] / total:.0%}",
        f"{instructions['HMMA'] / total:.0%}",
    ]
    sys.stdout.write(LINE.format(*cells))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
