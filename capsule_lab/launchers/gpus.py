"""GPUs of this machine: which there are, how many a run asks for, and a lock on each."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capsule_lab.errors import DeviceError


def visible_gpus() -> list[str]:
    """Names of the GPUs that CUDA would show to a process; none on a machine without."""
    import torch  # takes seconds, and a report needs none of it

    count = torch.cuda.device_count()
    names = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return names[:count] if names else [str(number) for number in range(count)]


def gpus_of_a_run(accelerator: str, devices: Any, gpus: Sequence[str]) -> int:
    """How many of this machine's GPUs a run asks for by ``accelerator`` and ``devices`` of ``lightning.Trainer``."""
    if not gpus or accelerator not in ("auto", "gpu", "cuda"):
        return 0
    if str(devices) in ("auto", "-1"):
        return len(gpus)
    if isinstance(devices, bool) or not str(devices).isdecimal() or int(devices) < 1:
        raise DeviceError(
            f"trainer.devices is {devices}; expected how many GPUs the run takes, 1 to {len(gpus)}, or auto for all; "
            "it gets those that are free"
        )
    if int(devices) > len(gpus):
        raise DeviceError(
            f"trainer.devices is {devices}, and the sweep sees {len(gpus)} GPUs ({', '.join(gpus)}); expected as "
            "many or fewer, or launcher=slurm for a larger machine"
        )
    return int(devices)


def lock_gpus(gpus: Sequence[str], count: int) -> dict[str, int] | None:
    """Lock ``count`` free GPUs, also against other sweeps of the user: descriptors by name; ``None`` if fewer are free.

    The kernel keeps a lock until all processes that have its descriptor, such as a run, have closed it or ended.
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
