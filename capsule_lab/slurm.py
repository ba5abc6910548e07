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


def this_job() -> str:
    """What ``scontrol`` calls the job that this process belongs to; one of an array has a number of its own there."""
    array = [os.environ.get(key, "") for key in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")]
    return "_".join(array) if all(array) else os.environ["SLURM_JOB_ID"]


def in_queue(job: str) -> bool:
    """Whether a job waits, runs or is about to end; accounting, which not every cluster has, is not asked."""
    if shutil.which("squeue") is None:
        return False  # as where a report is made on a machine beside the cluster
    found = subprocess.run(
        ["squeue", "--noheader", "--jobs", job, "--format", "%T"],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    return bool(found.stdout.strip())


def cancel() -> None:
    """End the job of this process, and so the processes beside it, which would wait for this one in vain."""
    subprocess.run(["scancel", this_job()], capture_output=True, timeout=_SECONDS, check=False)


def goes_back(signum: int) -> bool:
    """Whether a signal that ends this process sends its batch job back into the queue.

    Pre-emption sends SIGTERM, the end of the time limit what ``--signal`` says, which is SIGUSR1 with
    ``launcher=slurm``. Ctrl-C and jobs at a terminal are left alone; of several processes, the first one asks.
    """
    at_a_terminal = os.environ.get("SLURM_JOB_NAME", "") in ("bash", "interactive")
    if "SLURM_JOB_ID" not in os.environ or at_a_terminal or signum not in (signal.SIGTERM, signal.SIGUSR1):
        return False
    return os.environ.get("SLURM_PROCID", "0") == "0"


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
