"""GPUs of this machine: which there are, and one of them for a process alone."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

_EVERY = 0.5  # ours: seconds between two looks for a free one

_held: list[FileLock] = []


def visible_gpus() -> list[str]:
    """Names of the GPUs that CUDA would show to a process; none on a machine without."""
    import torch

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


def lease(gpus: Sequence[str]) -> str | None:
    """Make one GPU that nobody else has leased the only one that this process sees, until it ends.

    Waits until one is free. The lock is the kernel's, which gives it back however the process ends.

    Args:
        gpus: names to choose from; with none, nothing is done.

    Returns:
        Its name.
    """
    folder = Path(tempfile.gettempdir()) / f"capsule_lab-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    while gpus:
        for gpu in gpus:
            lock = FileLock(folder / f"gpu-{gpu}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            _held.append(lock)
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu
            return gpu
        time.sleep(_EVERY)
    return None
