"""NVIDIA's compute-sanitizer around small shapes: does a kernel read or write outside of its arrays?"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from capsule_lab.bench.gpu.correctness import PRINCIPAL, Case, Shape, outputs_and_gradients
from capsule_lab.bench.gpu.part_process import python, started
from capsule_lab.bench.gpu.parts import Size

SHOWN = 10  # ours: lines of errors
SHAPES = (Shape(5, 65, 3, 2, 2, 2), Shape(3, 31, 2, 1, 3, 4), Shape(1, 513, 1, 1, 2, 2))  # ours: nothing fills a block
PLACES = ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer")


def check_memory(device: torch.device, size: Size, limit: float) -> dict[str, Any]:
    """Errors that the tool counts while ``launch_kernels`` runs; a note where there is no such tool, or no GPU."""
    program = next(filter(None, map(shutil.which, PLACES)), None)
    if device.type != "cuda" or program is None:
        missing = "compute-sanitizer is not installed" if program is None else "this is no GPU"
        return {"note": f"not checked: {missing}"}
    with tempfile.TemporaryDirectory() as folder:
        output, result = Path(folder) / "output.txt", Path(folder) / "result.json"
        module = launch_kernels.__module__
        command = python("capsule_lab.bench.gpu", f"{module}:launch_kernels", "cuda", size, str(limit), str(result))
        no_cache = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # each array by itself, so that its end is known
        tool = [program, "--tool", "memcheck", "--print-limit", str(SHOWN)]
        with output.open("w") as file, started([*tool, *command], file, **no_cache) as process:
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                return {"note": f"not checked: compute-sanitizer was not ready within {limit:.0f} seconds"}
        return summary_of(output.read_text(errors="replace"), finished=result.is_file())


def summary_of(output: str, *, finished: bool) -> dict[str, Any]:
    """What the tool has printed.

    Args:
        output: of the tool and of the program under it.
        finished: whether that program came to its end.
    """
    found = re.search(r"ERROR SUMMARY: (\d+) errors?", output)
    lines = [line.removeprefix("========= ").strip() for line in output.splitlines() if line.startswith("=========")]
    if "Device not supported" in output or "not supported on this" in output:
        return {"note": "not checked: compute-sanitizer does not support this device", "printed": lines[:SHOWN]}
    if found is None or not finished:
        last = next((line for line in reversed(output.splitlines()) if line.strip()), "nothing was printed")
        return {"failures": [f"the kernels did not come to their end under compute-sanitizer: {last}"]}
    errors = int(found[1])
    failures = [f"compute-sanitizer counts {errors} errors: {'; '.join(lines[1:SHOWN])}"] if errors else []
    return {"errors": errors, "failures": failures}


def launch_kernels(device: torch.device, size: Size, limit: float) -> dict[str, Any]:
    """Every fused kernel, forward and backward, in both precisions; called under the tool."""
    del size, limit  # as small as can be
    cases = [
        Case(name, "fused", dtype, shape)
        for name in PRINCIPAL
        for shape in SHAPES
        for dtype in (torch.float32, torch.float64)
    ]
    for case in cases:
        outputs_and_gradients(case, device)
    return {"cases": len(cases)}
