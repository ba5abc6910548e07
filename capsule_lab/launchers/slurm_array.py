"""The runs of a sweep as a job array of SLURM.

Whatever becomes of one run, the others go on; what failed is in the ``JobReturn`` of each.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra_plugins.hydra_submitit_launcher import submitit_launcher
from omegaconf import OmegaConf, flag_override

from capsule_lab.launchers.results import failed, plain

log = logging.getLogger(__name__)

_EVERY = 5  # ours: seconds between two looks at the queue of SLURM


class SlurmArray(submitit_launcher.SlurmLauncher):
    """The runs as one job array; ``launch`` waits for all of them, whatever becomes of one.

    Options are those of hydra-submitit-launcher's ``submitit_slurm``.
    """

    def __call__(
        self, sweep_overrides: list[str], job_dir_key: str, job_num: int, job_id: str, singleton_state: dict[type, Any]
    ) -> JobReturn:
        """One process of one run, in the job; of several, one that fails ends them all."""
        import submitit

        from capsule_lab.runs import lock
        from capsule_lab.slurm import cancel

        environment = submitit.JobEnvironment()
        os.environ[lock.LOG_VARIABLE] = str(environment.paths.stdout)
        os.environ["LOCAL_RANK"] = str(environment.local_rank)  # as Lightning tells processes that it starts itself
        try:
            returned = super().__call__(sweep_overrides, job_dir_key, job_num, job_id, singleton_state)
        except Exception as error:  # whatever Hydra says of words that do not fit together
            returned = JobReturn(overrides=sweep_overrides, status=JobStatus.FAILED, _return_value=error)
        result = plain(returned, sweep_overrides)
        if result.status is JobStatus.FAILED and environment.num_tasks > 1:
            cancel()
        return result

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Hand all to SLURM and wait until the last has ended.

        Raises:
            RunError: if there is no SLURM, or it does not take them.
        """
        from capsule_lab.errors import RunError

        setup_globals()
        try:
            jobs = self._submit(job_overrides, initial_job_idx)
        except RuntimeError as error:  # of submitit, whatever is wrong
            reason = " ".join(str(error).split())
            raise RunError(
                f"SLURM did not take the runs ({reason}); launcher=slurm needs a machine on which sbatch and srun "
                "work, and options that your cluster has, see hydra.launcher.partition and the like"
            ) from error
        log.info("%d jobs of SLURM, from %s; output in %s", len(jobs), jobs[0].job_id, jobs[0].paths.folder)
        for job, overrides in zip(jobs, job_overrides, strict=True):
            self._note_queued(job.task(0), list(overrides))
        return [_awaited(job, list(overrides)) for job, overrides in zip(jobs, job_overrides, strict=True)]

    def _submit(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[Any]:
        import submitit

        logging.getLogger("submitit").setLevel(logging.ERROR)  # it warns of every look where there is no accounting
        executor = submitit.AutoExecutor(cluster=self._EXECUTOR, folder=self.params["submitit_folder"])
        common = {*OmegaConf.structured(submitit_launcher.BaseQueueConf)}
        executor.update_parameters(
            **{
                name if name in common else f"{self._EXECUTOR}_{name}": value
                for name, value in self.params.items()
                if name not in ("submitit_folder", "max_num_timeout")
            }
        )
        numbers = range(initial_job_idx, initial_job_idx + len(job_overrides))
        state = Singleton.get_state()
        with executor.batch():
            return [
                executor.submit(self, list(overrides), "hydra.sweep.dir", number, str(number), state)
                for number, overrides in zip(numbers, job_overrides, strict=True)
            ]

    def _note_queued(self, job: Any, overrides: list[str]) -> None:
        """Let other sweeps know of a job that waits; it will do so whatever becomes of this process."""
        from capsule_lab.runs import lock

        assert self.hydra_context is not None
        try:
            config = self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
            with flag_override(config, ["readonly", "struct"], False):
                config.pop("hydra")
            lock.record_queued(config, job.job_id, str(job.paths.stdout))
        except Exception as error:  # whatever Hydra says of words that do not fit together; so will the job
            log.debug("%s cannot be composed: %s", overrides, error)


def _awaited(job: Any, overrides: list[str]) -> JobReturn:
    """What a job's first process returned, or a failure in its place once the job is no longer in the queue."""
    import submitit

    from capsule_lab.slurm import in_queue

    job = job.task(0)
    while not job.paths.result_pickle.exists() and in_queue(job.job_id):
        time.sleep(_EVERY)
    time.sleep(0 if job.paths.result_pickle.exists() else _EVERY)  # a file system that is shared may be late
    if job.paths.result_pickle.exists():
        try:
            result: JobReturn = job.result()
        except (submitit.core.utils.UncompletedJobError, submitit.core.utils.FailedJobError) as error:
            return failed(overrides, f"job {job.job_id}: {' '.join(str(error).split())}")
        return result
    return failed(overrides, f"job {job.job_id} ended without a result; its log is {job.paths.stderr}")
