"""GPUs of this machine: which are visible, how many a run needs, how many runs share one, and locks."""

from __future__ import annotations

import fcntl
import itertools
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capsule_lab.errors import DeviceError
from capsule_lab.launchers import Job
from capsule_lab.runs.directories import config_hash


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that CUDA shows to a process; an empty list without GPUs."""
    import torch  # slow to import, and reports do not need it

    count = torch.cuda.device_count()
    names = [
        name.strip()
        for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if name.strip()
    ]
    return names[:count] if names else [str(number) for number in range(count)]


def gpus_of_a_run(accelerator: str, devices: Any, gpus: Sequence[str]) -> int:
    """Return how many GPUs a run needs, from ``accelerator`` and ``devices`` of ``lightning.Trainer``."""
    if not gpus or accelerator not in ("auto", "gpu", "cuda"):
        return 0
    if str(devices) in ("auto", "-1"):
        return len(gpus)
    if isinstance(devices, bool) or not str(devices).isdecimal() or int(devices) < 1:
        raise DeviceError(
            f"trainer.devices is {devices}; expected the number of GPUs of the run, 1 to {len(gpus)}, or auto for all; "
            "the sweep chooses free ones"
        )
    if int(devices) > len(gpus):
        raise DeviceError(
            f"trainer.devices is {devices}, but the sweep sees only {len(gpus)} GPUs ({', '.join(gpus)}); expected at "
            "most that many, or launcher=slurm for a larger machine"
        )
    return int(devices)


def check_sharing(jobs: Sequence[Job], gpus: Sequence[str], per_gpu: int) -> None:
    """Check that ``per_gpu`` of these runs fit into the memory of a GPU.

    Raises:
        DeviceError: without GPUs, or if the memory that a run is estimated to need is more than its share.
    """
    import torch

    from capsule_lab.runs import memory  # imports torch

    if not gpus:
        raise DeviceError(
            f"hydra.launcher.per_gpu is {per_gpu}, but CUDA shows no GPU; expected a machine with one, or "
            f"hydra.launcher.jobs={per_gpu} for as many runs at a time on the processor"
        )
    available = min(
        torch.cuda.get_device_properties(number).total_memory for number in range(len(gpus))
    )
    share = available / per_gpu
    checked: set[str] = set()
    for job in jobs:
        config = job.config.copy()
        config.seed = 0  # runs that differ in their seed need the same memory
        fingerprint = config_hash(config)
        if job.config.trainer.accelerator == "cpu" or fingerprint in checked:
            continue
        checked.add(fingerprint)
        need = memory.need_of(job.config, share - memory.OF_CUDA)
        if need is None or sum(need) + memory.OF_CUDA <= share:
            continue
        most = max(1, int(available / (sum(need) + memory.OF_CUDA)))
        raise DeviceError(
            f"hydra.launcher.per_gpu is {per_gpu}, which leaves {share / 1e9:.1f} GB of a GPU to each run, but "
            f"{job.name} needs about {need} and {memory.OF_CUDA / 1e9:.1f} for CUDA; expected "
            f"hydra.launcher.per_gpu={most}{' or less' if most > 1 else ''}"
        )


def lock_gpus(gpus: Sequence[str], count: int, per_gpu: int = 1) -> dict[str, int] | None:
    """Lock a place on ``count`` GPUs, also against the user's other sweeps; return descriptors by name, or ``None``.

    Each GPU has ``per_gpu`` places; the first places of all GPUs are taken before the second ones. No place is free on
    a GPU where a run of another sweep needs another share. ``None`` means that fewer than ``count`` GPUs have a free
    place. The kernel keeps a lock until all processes with its descriptor have ended.
    """
    if count == 0:
        return {}
    folder = Path(tempfile.gettempdir()) / f"capsule_lab-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    locks: dict[str, int] = {}
    for place, gpu in itertools.product(range(1, per_gpu + 1), gpus):
        if gpu in locks:
            continue
        descriptor = _lock_place(folder, gpu, place, per_gpu)
        if descriptor is not None:
            locks[gpu] = descriptor
        if len(locks) == count:
            return locks
    for descriptor in locks.values():
        os.close(descriptor)
    return None


def _lock_place(folder: Path, gpu: str, place: int, per_gpu: int) -> int | None:
    """Lock a place, and return its descriptor if no run has a place of another size on this GPU; else ``None``."""
    name = f"gpu-{gpu}-{place}-of-{per_gpu}.lock"
    descriptor = _lock(folder / name)
    if descriptor is None:
        return None
    # after locking: of two sweeps that start now, at least one notices the other
    for path in folder.glob(f"gpu-{gpu}-*-of-*.lock"):
        if path.name.endswith(f"-of-{per_gpu}.lock"):
            continue
        other = _lock(path)
        if other is None:
            os.close(descriptor)
            return None
        os.close(other)
    return descriptor


def _lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
