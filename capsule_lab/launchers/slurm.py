"""Launcher for the runs of a sweep as a SLURM job array."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from capsule_lab.errors import RunError, one_line
from capsule_lab.launchers import Job, environment_for
from capsule_lab.runs import lock
from capsule_lab.system import protocol, slurm
from capsule_lab.system.extras import require

if TYPE_CHECKING:
    import submitit

log = logging.getLogger(__name__)

_POLL_SECONDS = 5  # ours: interval between checks of SLURM's queue
_UNPREFIXED = (
    "timeout_min", "cpus_per_task", "gpus_per_node", "tasks_per_node", "mem_gb", "nodes", "name",
)  # fmt: skip
"""Options of ``submitit.AutoExecutor`` without the prefix ``slurm_``."""


class SlurmLauncher:
    """Launcher with one array job per run; a job that is pre-empted or out of time is requeued and continues.

    ``submitit_folder`` receives the output of jobs; ``options`` are those of submitit's executor for SLURM.
    """

    has_deadline = False
    """Jobs may wait in SLURM's queue beyond any time; they have ``timeout_min``."""

    def __init__(self, submitit_folder: str, **options: Any) -> None:
        require("launcher=slurm", "slurm", "submitit")
        self.folder = submitit_folder
        self.options = options

    def launch(self, jobs: Sequence[Job], deadline: float = math.inf) -> dict[str, str | None]:
        """Submit all jobs, and wait until they have left the queue; return an error or ``None`` by fingerprint.

        Only SLURM has the exit statuses. The error is that of a job that left no result.
        """
        # it warns where SLURM has no accounting
        logging.getLogger("submitit").setLevel(logging.ERROR)
        before = [job.record() for job in jobs]
        submitted = self._submit(jobs)
        first = submitted[0]
        log.info(
            "%d SLURM jobs, from %s; output in %s", len(jobs), first.job_id, first.paths.folder
        )
        for job, of_slurm in zip(jobs, submitted, strict=True):
            # other sweeps skip it, even after this sweep ends
            if job.in_tables:
                log_file = str(of_slurm.task(0).paths.stdout)
                lock.record_queued(job.fingerprint, of_slurm.job_id, log_file)
        failures: dict[str, str | None] = {}
        for job, of_slurm, earlier in zip(jobs, submitted, before, strict=True):
            while slurm.in_queue(of_slurm.job_id):
                time.sleep(_POLL_SECONDS)
            left = len(jobs) - len(failures) - 1
            log.info("%s: %s; %d of %d left", job.name, job.outcome(), left, len(jobs))
            ended = f"job {of_slurm.job_id} ended without a result"
            error = f"{ended}; its log is {of_slurm.task(0).paths.stderr}"
            record = job.record()
            is_new = bool(record) and record != earlier
            failures[job.fingerprint] = None if is_new else error
        return failures

    def _submit(self, jobs: Sequence[Job]) -> list[submitit.Job[None]]:
        import submitit

        parameters = {}
        for name, value in self.options.items():
            parameters[name if name in _UNPREFIXED else f"slurm_{name}"] = value
        try:
            executor = submitit.AutoExecutor(cluster="slurm", folder=self.folder)
            executor.update_parameters(**parameters)
            with executor.batch():
                return [executor.submit(become, job.command, job.environment) for job in jobs]
        except RuntimeError as error:
            raise RunError(
                f"SLURM rejected the runs ({one_line(error)}); launcher=slurm needs a machine with sbatch and srun, "
                "and options that your cluster accepts, such as hydra.launcher.partition"
            ) from error


def become(command: list[str], environment: Mapping[str, str]) -> None:
    """Replace this process of a job by the command, which then receives SLURM's signals directly."""
    import submitit

    log_file = str(submitit.JobEnvironment().paths.stdout)
    local_rank = os.environ.get("SLURM_LOCALID", "0")  # Lightning's name for the same number
    variables = {protocol.LOG: log_file, "LOCAL_RANK": local_rank}
    os.execve(command[0], command, environment_for(environment, **variables))  # noqa: S606  # it needs no shell
