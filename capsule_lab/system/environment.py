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


def runs_per_gpu() -> int:
    """Return how many runs share the GPU of this process."""
    return int(os.environ.get(protocol.PER_GPU, "1"))


def package_version() -> str:
    """Return the version of this package, which stands at its top: an import from there would point up."""
    return str(sys.modules["capsule_lab"].__version__)


def is_first_process() -> bool:
    """Return whether this is the first or only process of a run, from the ranks of Lightning, torchrun and SLURM."""
    return all(
        os.environ.get(name, "0") == "0"
        for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
    )


def hardware(device: torch.device, count: int = 1) -> str:
    """Return the name and number of devices, for results. Times are comparable only if it is the same.

    A CPU has details that affect speed and precision: ``AMD EPYC (family 26 model 2, AVX-512, bfloat16)``. Of a GPU,
    the number of runs that share it is added.
    """
    import torch  # slow to import

    if device.type == "cuda":
        runs = runs_per_gpu()
        return f"{count} x {torch.cuda.get_device_name(device)}{f', shared by {runs} runs' if runs > 1 else ''}"
    return f"{_processor()}, {os.cpu_count()} cores, {count} x {torch.get_num_threads()} threads"


def facts_of_trainer(trainer: Any) -> dict[str, Any]:
    """Return on what a ``lightning.Trainer`` computes in this process: device, hardware, precision and commit."""
    device = trainer.strategy.root_device
    return {
        "device": device.type,
        "hardware": hardware(device, trainer.world_size),
        "precision": trainer.precision,
        "commit": commit(),
    }


def _processor(info: Path = Path("/proc/cpuinfo")) -> str:
    text = (
        info.read_text(encoding="utf-8").partition("\n\n")[0] if info.is_file() else ""
    )  # of the first core
    facts = {
        key.strip(): value.strip()
        for key, _, value in (line.partition(":") for line in text.splitlines())
    }
    flags = {*facts.get("flags", "").split()}
    simd = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else ""
    family = (
        f"family {facts['cpu family']} model {facts['model']}"
        if {"cpu family", "model"} <= facts.keys()
        else ""
    )
    details = filter(
        None, (family, simd, "bfloat16" if flags & {"avx512_bf16", "amx_bf16"} else "")
    )
    name = facts.get("model name") or platform.processor() or platform.machine()
    return f"{name} ({described})" if (described := ", ".join(details)) else name


def of_this_process() -> dict[str, Any]:
    """Return command, commit and versions, which are needed to repeat a result."""
    return {
        "command": _as_typed(
            argument for argument in sys.argv[1:] if not argument.startswith("train.resume=")
        ),
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
    return _as_typed([*sys.argv[1:], *(argument for argument in more if argument not in sys.argv)])


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
    if (
        described
        and not described.endswith("-dirty")
        and _git(tree, "status", "--porcelain", "--", *_CODE)
    ):
        described += "-dirty"  # ``describe`` ignores new files
    return described or None


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
