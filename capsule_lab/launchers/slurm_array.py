"""The jobs of a sweep as a job array of SLURM.

A job that fails or is killed does not affect the others; its error is in its ``JobReturn``.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import Any

import submitit

from capsule_lab.errors import RunError, one_line
from capsule_lab.launchers import submitit_internals
from capsule_lab.launchers.hydra_internals import (
    JobReturn,
    Task,
    error_of,
    failed,
    process_state,
    restore_process,
    without_hydra,
)
from capsule_lab.launchers.job_results import portable
from capsule_lab.runs import lock
from capsule_lab.system import slurm

log = logging.getLogger(__name__)

_POLL_SECONDS = 5  # ours: between two polls of SLURM's queue


class SlurmArray(submitit_internals.SlurmLauncher):
    """The jobs as one job array; ``launch`` waits for all of them, also if some fail.

    Options are those of hydra-submitit-launcher's ``submitit_slurm``.
    """

    def __call__(
        self, sweep_overrides: list[str], job_dir_key: str, job_num: int, job_id: str, singleton_state: dict[type, Any]
    ) -> JobReturn:
        """One process of a job, on its node; if the job has several and one fails, it cancels the job."""
        environment = submitit.JobEnvironment()
        os.environ[lock.LOG_VARIABLE] = submitit_internals.output_log(environment)
        os.environ["LOCAL_RANK"] = str(environment.local_rank)  # as Lightning does for processes that it starts itself
        try:
            returned = super().__call__(sweep_overrides, job_dir_key, job_num, job_id, singleton_state)
        except Exception as error:  # Hydra raises many kinds for overrides that do not fit together
            returned = failed(sweep_overrides, error)
        result = portable(returned, sweep_overrides)
        if error_of(result) and environment.num_tasks > 1:
            slurm.cancel()
        return result

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Submit all and wait until the last has ended.

        Raises:
            RunError: if there is no SLURM, or it does not take them.
        """
        restore_process()
        state = process_state()
        arguments = [
            (list(overrides), "hydra.sweep.dir", number, str(number), state)
            for number, overrides in enumerate(job_overrides, initial_job_idx)
        ]
        try:
            jobs = submitit_internals.submit(self.params, self, arguments)
        except RuntimeError as error:
            raise RunError(
                f"SLURM did not take the runs ({one_line(error)}); launcher=slurm needs a machine on which sbatch and "
                "srun work, and options that your cluster has, see hydra.launcher.partition and the like"
            ) from error
        log.info("%d jobs of SLURM, from %s; output in %s", len(jobs), jobs[0].job_id, jobs[0].paths.folder)
        for job, overrides in zip(jobs, job_overrides, strict=True):
            self._record_queued(job.task(0), overrides)
        return [_result(job.task(0), overrides) for job, overrides in zip(jobs, job_overrides, strict=True)]

    def _record_queued(self, job: Any, overrides: Sequence[str]) -> None:
        """Tell other sweeps that a job is in the queue, where it stays if this process ends."""
        assert self.hydra_context is not None
        assert self.task_function is not None
        assert self.config is not None
        try:
            config = without_hydra(Task(self.hydra_context, self.task_function, self.config).compose(overrides))
            lock.record_queued(config, job.job_id, submitit_internals.output_log(job))
        except Exception as error:  # Hydra raises many kinds; the job will fail with the same error, and report it
            log.debug("%s cannot be composed: %s", overrides, error)


def _result(job: Any, overrides: Sequence[str]) -> JobReturn:
    """What the first process of a job returned, or a failure if the job is gone from the queue without a result."""
    while not submitit_internals.has_result(job) and slurm.in_queue(job.job_id):
        time.sleep(_POLL_SECONDS)
    if not submitit_internals.has_result(job):
        time.sleep(_POLL_SECONDS)  # a shared file system may show the file late
    if not submitit_internals.has_result(job):
        log_file = submitit_internals.error_log(job)
        return failed(overrides, RunError(f"job {job.job_id} ended without a result; its log is {log_file}"))
    try:
        result: JobReturn = submitit_internals.result_of(job)
    except RunError as error:
        return failed(overrides, error)
    return result
