"""SLURM: a job that is pre-empted or runs out of time goes back into the queue, and goes on where it was."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess

log = logging.getLogger(__name__)

_SECONDS = 30  # ours: what a busy controller may take


def was_requeued() -> bool:
    """Whether this job has run before, so that it has to go on rather than begin."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0")) > 0


def is_batch_job() -> bool:
    """Whether this process belongs to a job that nobody sits in front of."""
    return "SLURM_JOB_ID" in os.environ and os.environ.get("SLURM_JOB_NAME", "") not in ("bash", "interactive")


def this_job() -> str:
    """What ``scontrol`` calls the job that this process belongs to; one of an array has a number of its own there."""
    array = [os.environ.get(key, "") for key in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")]
    return "_".join(array) if all(array) else os.environ["SLURM_JOB_ID"]


def in_queue(job: str) -> bool:
    """Whether a job waits, runs or is about to end; accounting, which not every cluster has, is not asked."""
    if shutil.which("squeue") is None:
        return False  # as where a report is made on a machine beside the cluster
    question = ["squeue", "--noheader", "--jobs", job, "--format", "%T"]
    try:
        found = subprocess.run(question, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return True  # a busy controller is no news of the job
    if found.returncode:
        return "Invalid job id" not in found.stderr  # which is how SLURM speaks of one that ended a while ago
    return bool(found.stdout.strip())


def cancel() -> None:
    """End the job of this process, and so the processes beside it, which would wait for this one in vain."""
    subprocess.run(["scancel", this_job()], capture_output=True, timeout=_SECONDS, check=False)


def goes_back(signum: int) -> bool:
    """Whether a signal that ends this process sends its batch job back into the queue.

    Pre-emption sends SIGTERM, the end of the time limit what ``--signal`` says, which is SIGUSR1 with
    ``launcher=slurm``. Ctrl-C and jobs at a terminal are left alone; of several processes, the first one asks.
    """
    asked = signum in (signal.SIGTERM, signal.SIGUSR1)
    return asked and is_batch_job() and os.environ.get("SLURM_PROCID", "0") == "0"


def requeue(signum: int) -> bool:
    """Put this job back into the queue if it ``goes_back`` after a signal; whether it was."""
    if not goes_back(signum):
        return False
    job = this_job()
    asked = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, timeout=_SECONDS, check=False)
    if asked.returncode:
        log.warning("job %s was not requeued: %s", job, asked.stderr.strip())
    else:
        log.info("job %s goes back into the queue and will go on from here", job)
    return not asked.returncode
