"""GPUs of this machine: which are visible, how many a run needs, and a lock for each."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capsule_lab.errors import DeviceError


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that CUDA shows to a process; an empty list without GPUs."""
    import torch  # slow to import, and reports do not need it

    count = torch.cuda.device_count()
    names = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
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


def lock_gpus(gpus: Sequence[str], count: int) -> dict[str, int] | None:
    """Lock ``count`` free GPUs, also against the user's other sweeps; return descriptors by name, or ``None``.

    ``None`` means that fewer are free. The kernel keeps a lock until all processes with its descriptor have ended.
    """
    if count == 0:
        return {}
    folder = Path(tempfile.gettempdir()) / f"capsule_lab-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    locks: dict[str, int] = {}
    for gpu in gpus:
        descriptor = os.open(folder / f"gpu-{gpu}.lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        locks[gpu] = descriptor
        if len(locks) == count:
            return locks
    for descriptor in locks.values():
        os.close(descriptor)
    return None
