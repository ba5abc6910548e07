"""Facts about this process that are stored with a result: machine, command, commit and versions."""

from __future__ import annotations

import functools
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsule_lab.system import protocol

if TYPE_CHECKING:
    import torch


def is_gpu(device: torch.device) -> bool:
    """Return whether a device is a GPU, which can replay CUDA graphs; the stand-in for graphs on a CPU replaces it."""
    return device.type == "cuda"


def runs_per_gpu() -> int:
    """Return how many runs share the GPU of this process."""
    return int(os.environ.get(protocol.PER_GPU, "1"))


def package_version() -> str:
    """Return the version of this package, defined in its ``__init__``: importing it from there would point up."""
    return str(sys.modules["capsule_lab"].__version__)


def is_first_process() -> bool:
    """Return whether this is the first or only process of a run, from the ranks of Lightning, torchrun and SLURM."""
    names = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
    return all(os.environ.get(name, "0") == "0" for name in names)


def hardware(device: torch.device, count: int = 1) -> str:
    """Return the name and number of devices, for results. Times are comparable only if it is the same.

    A CPU has details that affect speed and precision: ``AMD EPYC (family 26 model 2, AVX-512, bfloat16)``. Of a GPU,
    the number of runs that share it is added.
    """
    import torch  # slow to import

    if device.type != "cuda":
        threads = torch.get_num_threads()
        return f"{_processor()}, {os.cpu_count()} cores, {count} x {threads} threads"
    name = f"{count} x {torch.cuda.get_device_name(device)}"
    runs = runs_per_gpu()
    return f"{name}, shared by {runs} runs" if runs > 1 else name


def facts_of_trainer(trainer: Any) -> dict[str, Any]:
    """Return what a ``lightning.Trainer`` runs on in this process: device, hardware, precision and commit."""
    device = trainer.strategy.root_device
    return {
        "device": device.type,
        "hardware": hardware(device, trainer.world_size),
        "precision": trainer.precision,
        "commit": commit(),
    }


def _processor(info: Path = Path("/proc/cpuinfo")) -> str:
    facts = _facts_of_first_core(info)
    details = []
    if "cpu family" in facts and "model" in facts:
        details.append(f"family {facts['cpu family']} model {facts['model']}")
    flags = facts.get("flags", "").split()
    if "avx512f" in flags:
        details.append("AVX-512")
    elif "avx2" in flags:
        details.append("AVX2")
    if "avx512_bf16" in flags or "amx_bf16" in flags:
        details.append("bfloat16")
    name = facts.get("model name") or platform.processor() or platform.machine()
    return f"{name} ({', '.join(details)})" if details else name


def _facts_of_first_core(info: Path) -> dict[str, str]:
    if not info.is_file():
        return {}
    first, _, _ = info.read_text(encoding="utf-8").partition("\n\n")
    facts = {}
    for line in first.splitlines():
        key, _, value = line.partition(":")
        facts[key.strip()] = value.strip()
    return facts


def of_this_process() -> dict[str, Any]:
    """Return command, commit and versions, which are needed to repeat a result."""
    arguments = [each for each in sys.argv[1:] if not each.startswith("train.resume=")]
    return {
        "command": _as_typed(arguments),
        "commit": commit(),
        "versions": {
            "capsule-lab": package_version(),
            "torch": version("torch"),
            "lightning": version("lightning"),
        },
        "python": platform.python_version(),
    }


def command_line(*more: str) -> str:
    """Return the command of this process, quoted for a shell, with ``more`` arguments unless it has them."""
    if Path(sys.argv[0]).stem == "ipykernel_launcher":
        return f"the same cell with {' '.join(more)}"
    added = [argument for argument in more if argument not in sys.argv]
    return _as_typed([*sys.argv[1:], *added])


def set_program(*words: str) -> None:
    """Record how the command of this process is typed: ``set_program("capsule-lab", "train")``."""
    _PROGRAM[:] = words


_PROGRAM: list[str] = []


def _as_typed(arguments: Iterable[str]) -> str:
    return shlex.join([*(_PROGRAM or [Path(sys.argv[0]).name]), *arguments])


@functools.cache
def commit() -> str | None:
    """Return the commit of this code at the first call; with ``-dirty`` if files differ from it, or are new."""
    tree = Path(__file__).parents[2]
    if not (tree / ".git").exists():
        return None  # installed from a wheel
    described = _git(tree, "describe", "--always", "--dirty", "--abbrev=12")
    if not described:
        return None
    if described.endswith("-dirty"):
        return described
    new_files = _git(tree, "status", "--porcelain", "--", *_CODE)  # ``describe`` ignores them
    return f"{described}-dirty" if new_files else described


_CODE = ("capsule_lab", "conf", "hydra_plugins", "sweeps", "toynorb")
"""Folders whose files decide what a run does."""


def _git(tree: Path, *arguments: str) -> str:
    try:
        process = subprocess.run(
            ["git", *arguments], cwd=tree, capture_output=True, text=True, timeout=10, check=False
        )
    except OSError:
        return ""  # no git on this machine
    return process.stdout.strip()
