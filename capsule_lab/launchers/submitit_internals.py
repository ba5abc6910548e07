"""All that the SLURM launcher uses of submitit and its Hydra plugin beyond their documentation.

Read from submitit 1.5.4 and hydra-submitit-launcher 1.2.0.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import submitit
from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import SlurmLauncher
from omegaconf import OmegaConf

from capsule_lab.errors import RunError, one_line

__all__ = ["SlurmLauncher", "error_log", "has_result", "output_log", "result_of", "submit"]

_CLUSTER = SlurmLauncher._EXECUTOR
_NOT_FOR_JOBS = ("submitit_folder", "max_num_timeout")  # arguments of the executor


def submit(options: Mapping[str, Any], function: Any, arguments: Sequence[Sequence[Any]]) -> list[Any]:
    """Submit ``function(*arguments)`` for each arguments, as one job array.

    Args:
        options: those of ``submitit_slurm``.
        function: can be pickled.
        arguments: of each job.

    Raises:
        RuntimeError: if SLURM is not there, or does not take them.
    """
    logging.getLogger("submitit").setLevel(logging.ERROR)  # it warns at every poll if SLURM has no accounting
    executor = submitit.AutoExecutor(cluster=_CLUSTER, folder=options["submitit_folder"])
    common = {*OmegaConf.structured(BaseQueueConf)}
    executor.update_parameters(
        **{
            name if name in common else f"{_CLUSTER}_{name}": value
            for name, value in options.items()
            if name not in _NOT_FOR_JOBS
        }
    )
    with executor.batch():
        return [executor.submit(function, *each) for each in arguments]


def output_log(job_or_environment: Any) -> str:
    """The file with the standard output of a job, or of the job that this process belongs to."""
    return str(job_or_environment.paths.stdout)


def error_log(job: Any) -> str:
    """The file with the standard error of a job."""
    return str(job.paths.stderr)


def has_result(job: Any) -> bool:
    """Whether the function of a job has returned; asks the file system, not SLURM."""
    return bool(job.paths.result_pickle.exists())


def result_of(job: Any) -> Any:
    """What the function of a job returned.

    Raises:
        RunError: if it raised, or its result cannot be read.
    """
    try:
        return job.result()
    except (submitit.core.utils.UncompletedJobError, submitit.core.utils.FailedJobError) as error:
        raise RunError(f"job {job.job_id}: {one_line(error)}") from error
