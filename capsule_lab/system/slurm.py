"""SLURM: a job that is pre-empted or runs out of time is requeued and continues from its checkpoint."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess

log = logging.getLogger(__name__)

_TIMEOUT = 30  # ours: seconds; a busy controller may take that long


def was_requeued() -> bool:
    """Return whether this job has run before, so that it must continue."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0) > 0


def is_batch_job() -> bool:
    """Return whether this process belongs to a job that is not interactive."""
    name = os.environ.get("SLURM_JOB_NAME", "")
    return "SLURM_JOB_ID" in os.environ and name not in ("bash", "interactive")


def this_job() -> str:
    """Return the id of this job for ``scontrol``; in an array, the id of the array and the index of the job."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    index = os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{index}" if array and index else os.environ["SLURM_JOB_ID"]


def in_queue(job: str) -> bool:
    """Return whether a job waits, runs or is ending, from ``squeue``, because not every cluster has accounting."""
    if shutil.which("squeue") is None:
        return False  # not on the cluster; reports can be made elsewhere
    command = ["squeue", "--noheader", "--jobs", job, "--format", "%T"]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return True  # unknown: the controller is busy
    if process.returncode:
        # SLURM's message for a job that ended some time ago
        return "Invalid job id" not in process.stderr
    return bool(process.stdout.strip())


def goes_back(signum: int) -> bool:
    """Return whether a batch job must be requeued after the signal that ended this process.

    Pre-emption sends SIGTERM; the end of the time limit sends the signal in ``--signal``, SIGUSR1 with
    ``launcher=slurm``. Ctrl-C and interactive jobs do not count; only the first of several processes requeues.
    """
    ends_the_job = signum in (signal.SIGTERM, signal.SIGUSR1)
    return ends_the_job and is_batch_job() and os.environ.get("SLURM_PROCID", "0") == "0"


def requeue(signum: int) -> None:
    """Requeue this job after a signal if ``goes_back`` returns true."""
    if not goes_back(signum):
        return
    job = this_job()
    command = ["scontrol", "requeue", job]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    if answer.returncode:
        log.warning("job %s was not requeued: %s", job, answer.stderr.strip())
    else:
        log.info("job %s is requeued and will continue from its checkpoint", job)
