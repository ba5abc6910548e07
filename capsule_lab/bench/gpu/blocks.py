"""Search the fastest block sizes of the kernels that the papers' networks launch, and store them."""

from __future__ import annotations

from typing import Any

import torch

from capsule_lab.bench.cases import Case, model_groups
from capsule_lab.bench.gpu.timings import Size, bench_config
from capsule_lab.bench.models import build_step
from capsule_lab.errors import one_line
from capsule_lab.kernels.backends import fused_kernels

GPU_KERNELS = "capsule_lab.kernels.gpu"


def tune_blocks(device: torch.device, size: Size, limit: float) -> dict[str, Any]:
    """Run a training step of each network, in which every kernel that has no stored blocks yet is measured.

    Args:
        device: that the blocks are for.
        size: of the networks and batches, see ``capsule_lab.bench.gpu.timings``.
        limit: seconds, after which no other kernel is measured; the next call goes on with those.

    Returns:
        ``rows``, for each kernel, its shape and candidate: ``first_seconds`` of the first launch, in which it was
        compiled unless Triton had it in its cache, ``microseconds``, ``chosen``; ``compile_seconds``, all first
        launches; ``stored``, the file; ``skipped``, kernels for which there was no time; ``failures``, sentences. On a
        CPU no rows but a ``note``.
    """
    kernels: Any = fused_kernels(device.type)
    if getattr(kernels, "__name__", "") != GPU_KERNELS:
        return {"rows": [], "failures": [], "note": f"there are no Triton kernels on {device.type}: nothing to tune"}
    config = bench_config(device, size, "backends=[fused]")
    failures = []
    with kernels.tuning.searching(limit) as search:
        for group in model_groups(config, textbook=False):
            failures += [failure for case in group if (failure := _run(case))]
    return {
        "rows": search.rows,
        "compile_seconds": sum(row["first_seconds"] or 0.0 for row in search.rows),
        "stored": str(kernels.tuning.path()),
        "skipped": sorted(search.skipped),
        "failures": failures,
    }


def _run(case: Case) -> str | None:
    """A forward and a backward pass; what went wrong."""
    try:
        build_step(case).loss().backward()
    except Exception as error:  # of the device or a compiler: other networks go on
        return f"{case.label}: {type(error).__name__}: {one_line(error)}"
    return None
