"""Compiles the GPU kernels for Hopper without a GPU, and reads the resources that they use."""

import re
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from capsule_lab.kernels.em_arguments import FitInputs, FitOptions, FitOutputs, Parents

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {torch.float32: "*fp32", torch.float64: "*fp64", torch.bfloat16: "*bf16"}
POINTERS |= {torch.int32: "*i32", torch.int64: "*i64"}


class Report(NamedTuple):
    """Of one kernel's machine code: registers of a thread, bytes of its stack (spills), bytes of shared memory."""

    kernel: str
    children: int
    warps: int
    registers: int
    spilled: int
    shared: int


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
    "EMCaps 64/8/16/16, first windows": Layer(512 * 25, 16, 72),
    "EMCaps 64/8/16/16, second windows": Layer(512 * 9, 16, 144),
    "CapsNet": Layer(512, 10, 1152, 1, 8, 16),
}


class Compiler:
    """Compiles in place of launching.

    Attributes:
        reports: of every kernel, in order.
    """

    def __init__(self, gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reports: list[Report] = []
        for module in (gpu.em, gpu.em_backward, gpu.dynamic, gpu.votes, gpu.child_softmax):
            monkeypatch.setattr(module, "launch", self.compile)

    def compile(
        self, kernel: Any, grid: Any, given: Any, out: Any, *numbers: int, num_warps: int, maxnreg: int | None = None,
        **constants: Any,
    ) -> None:  # fmt: skip
        signature, constexprs = dict.fromkeys(constants, "constexpr"), dict(constants)
        any_number = {param.name for param in kernel.params if param.do_not_specialize}
        for name, value in zip(kernel.arg_names, (*given, *out, *numbers), strict=False):
            signature[name] = "i32" if value is None or isinstance(value, int) else POINTERS[value.dtype]
            is_one = isinstance(value, int) and value == 1 and name not in any_number
            if value is None or is_one:  # as Triton does
                signature[name], constexprs[name] = "constexpr", value
        in_order = {name: signature[name] for name in kernel.arg_names}
        aligned = {
            (n,): [["tt.divisibility", 16]] for n, kind in enumerate(in_order.values()) if kind.startswith("*")
        }  # as torch allocates
        source = ASTSource(kernel, in_order, constexprs=constexprs, attrs=aligned)
        options = {"num_warps": num_warps, "maxnreg": maxnreg, "enable_fp_fusion": True}
        compiled = triton.compile(source, target=HOPPER, options=options)
        used = resources(compiled.asm["cubin"])
        report = Report(kernel.fn.__name__, constants["BLOCK"], num_warps, used["REG"], used["STACK"], used["SHARED"])
        self.reports.append(report)


def resources(cubin: bytes) -> dict[str, int]:
    """What NVIDIA's cuobjdump, which comes with Triton, says about machine code."""
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        ended = subprocess.run([program, "-res-usage", file.name], capture_output=True, check=True, text=True)
    return {name: int(number) for name, number in re.findall(r"(\w+):(\d+)", ended.stdout)}


def launch_all(gpu: ModuleType, layer: Layer, *, em: bool, dynamic: bool) -> None:
    """Every operator of EM or dynamic routing, on tensors without memory."""
    row, parent, child, rows, inner, columns = layer
    empty = partial(torch.empty, device="meta")
    poses, weight, couplings = empty(row, rows * inner, child), empty(parent, inner * columns, child), empty(layer[:3])
    mass, parents = empty(row, parent), empty(row, parent, rows * columns)
    inputs, fitted = FitInputs(poses, weight, empty(row, child), couplings, parents), Parents(mass, parents, parents)
    if em:
        gpu.fit(inputs, FitOptions(inner, 0.0, 5e-4, 1e-7, True))
        gpu.fit_backward(inputs, fitted, FitOutputs(*fitted, couplings), inner, 0.3, 5e-4)
        gpu.distances(poses, weight, parents, parents, inner)
        windows = torch.arange(child).expand(4, child)  # every position sees all children
        shares = gpu.softmax_by_child(empty(4 * row, parent, child), windows, child)
        gpu.softmax_by_child_backward(shares, shares, windows, child)
    if dynamic:
        gpu.weighted_sum(poses, weight, couplings, inner)
        gpu.agreement(poses, weight, parents, inner)
        gpu.contraction(poses, weight, [couplings] * 5, [parents] * 5, inner)
