"""GPUs of this machine: which there are, how many a run asks for, and a lock on each for one process."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from capsule_lab.errors import DeviceError

_POLL_SECONDS = 0.5  # ours: between two attempts to find free GPUs

_held: list[FileLock] = []


def visible_gpus() -> list[str]:
    """Names of the GPUs that CUDA would show to a process; none on a machine without."""
    import torch  # slow, and Hydra imports this module in every command

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


def gpus_of_a_run(accelerator: str, devices: Any, gpus: Sequence[str]) -> int:
    """How many GPUs a run asks for.

    Args:
        accelerator: of ``lightning.Trainer``.
        devices: of ``lightning.Trainer``, too: a number, ``"auto"`` or ``-1`` for all that there are.
        gpus: names of those of this machine.

    Raises:
        DeviceError: if there are not so many, or particular ones are asked for.
    """
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


def assign_gpus(gpus: Sequence[str], count: int = 1) -> tuple[str, ...]:
    """Lock so many free GPUs for this process until it ends, and make them the only ones that it sees.

    Waits until they are free, all at once: no process keeps some of them while it waits for others. The locks are the
    kernel's, which releases them also if the process is killed.

    Args:
        gpus: names to choose from.
        count: how many; with none, nothing is done.

    Returns:
        Their names.

    Raises:
        DeviceError: if there are not so many to choose from.
    """
    if count > len(gpus):
        raise DeviceError(f"{count} GPUs are wanted of {len(gpus)} ({', '.join(gpus)}); expected as many or fewer")
    folder = Path(tempfile.gettempdir()) / f"capsule_lab-{os.getuid()}"
    while count:
        try:
            folder.mkdir(exist_ok=True)
            with FileLock(folder / "search.lock"):  # two processes might each find half of what they need
                taken = _free(folder, gpus, count)
        except OSError as error:
            raise DeviceError(
                f"the locks of GPUs cannot be kept in {folder} ({error.strerror}); remove what is in its place, or "
                "name another directory: TMPDIR=…"
            ) from error
        if len(taken) == count:
            _held.extend(taken.values())
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(taken)
            return tuple(taken)
        time.sleep(_POLL_SECONDS)
    return ()


def _free(folder: Path, gpus: Sequence[str], count: int) -> dict[str, FileLock]:
    """Locks of so many GPUs by name, which are held now; none if there are not so many."""
    taken: dict[str, FileLock] = {}
    for gpu in gpus:
        lock = FileLock(folder / f"gpu-{gpu}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        taken[gpu] = lock
        if len(taken) == count:
            return taken
    for lock in taken.values():
        lock.release()
    return {}
