"""What the device is, and what is installed with it."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from capsule_lab.bench.gpu.parts import Size
from capsule_lab.kernels.backends import fused_kernels
from capsule_lab.system import environment

PACKAGES = ("torch", "triton", "lightning", "torchmetrics", "torchvision", "numba", "numpy")
OF_NVIDIA_SMI = (
    *("name", "driver_version", "memory.total", "memory.used", "power.limit", "temperature.gpu"),
    *("clocks.sm", "clocks.max.sm", "clocks.mem", "clocks.max.mem", "ecc.mode.current", "mig.mode.current"),
)
PATIENCE = 20.0  # ours: seconds; nvidia-smi waits where a driver hangs


def describe_device(device: torch.device, size: Size, limit: float) -> dict[str, Any]:
    """Facts of the device, of its driver and of packages; fails where fused kernels cannot be had."""
    del size, limit  # facts take no time
    kernels = fused_kernels(device.type)
    found: dict[str, Any] = {
        "hardware": environment.hardware(device),
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": {name: _version(name) for name in PACKAGES},
        "failures": [f"there are no fused kernels: {kernels}"] if isinstance(kernels, str) else [],
    }
    return found | _of_cuda(device) if device.type == "cuda" else found


def _of_cuda(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "level_2_cache_bytes": properties.L2_cache_size,
        "shared_memory_bytes_per_block": getattr(properties, "shared_memory_per_block_optin", None),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "built_for": torch.cuda.get_arch_list(),
        "computes_bfloat16": torch.cuda.is_bf16_supported(including_emulation=False),
        "nvidia_smi": query_nvidia_smi(),
    }


def query_nvidia_smi() -> dict[str, str] | None:
    """Driver, clocks (MHz), memory (MiB), power (W) of the first GPU; ``None`` where the program does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    fields = ",".join(OF_NVIDIA_SMI)
    try:
        answer = subprocess.run(
            [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    values = [value.strip() for value in answer.partition("\n")[0].split(",")]
    return dict(zip(OF_NVIDIA_SMI, values, strict=False))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
