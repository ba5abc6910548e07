"""The jobs of a sweep side by side on this machine, each on GPUs of its own.

A job that fails or is killed does not affect the others; its error is in its ``JobReturn``.
"""

from __future__ import annotations

import hashlib
import logging
import math
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path

from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from capsule_lab.errors import InterruptError, RunError
from capsule_lab.launchers.gpu_assignment import visible_gpus
from capsule_lab.launchers.hydra_internals import JobReturn, Task, error_of, left_out, restore_process, shown
from capsule_lab.launchers.job_process import Finished, JobProcess
from capsule_lab.system.signals import interruptible

log = logging.getLogger(__name__)


class GPUPool(Launcher):
    """One process per job, each on ``trainer.devices`` GPUs of its own; as many at a time as there are GPUs for.

    Processes are forked from a server that has imported torch and Lightning and done nothing else, which takes
    milliseconds instead of seconds. A job holds a lock on its GPUs for as long as its process lives, so that several
    sweeps can share the machine; on a machine without GPUs jobs are only counted.

    Args:
        jobs: at a time; ``None`` for one on each GPU, without any half as many as cores, two at least.
        logs: the folder for the output of jobs.
    """

    until = math.inf
    """By ``time.time``; jobs that have not started by then are left out, see ``hydra_internals.left_out``."""

    def __init__(self, jobs: int | None = None, logs: str = "logs") -> None:
        if jobs is not None and jobs < 1:
            raise ValueError(f"hydra.launcher.jobs is {jobs}; expected 1 or more, or null")
        self.jobs = jobs
        self.logs = Path(logs).absolute()

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Start the server, which imports while this process continues.

        Raises:
            RunError: if it cannot be started.
        """
        self.idle_since = time.monotonic()
        self.task = Task(hydra_context, task_function, config)
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["capsule_lab.launchers.preload"])
        try:
            forkserver.ensure_running()
        except OSError as error:
            raise RunError(
                f"the server of launcher=gpus cannot start in {tempfile.gettempdir()} ({error.strerror or error}); "
                "name a writable directory with a path of less than 60 characters: TMPDIR=…"
            ) from error

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run all, at most ``jobs`` at a time; the results are in the order of ``job_overrides``."""
        restore_process()
        gpus, cores, total = visible_gpus(), len(os.sched_getaffinity(0)), len(job_overrides)
        places = self.jobs or len(gpus) or max(2, cores // 2)  # ours: see above
        threads = max(1, cores // min(places, total))
        self.logs.mkdir(parents=True, exist_ok=True)
        on = f"on GPUs {', '.join(gpus)}" if gpus else f"each on {threads} of {cores} cores"
        log.info("%d runs, %d at a time, %s", total, places, on)
        began = time.monotonic()
        running: dict[int, JobProcess] = {}
        finished: dict[int, Finished] = {}
        left = list(enumerate(job_overrides))
        with _stopping(running):
            while left or running:
                while left and len(running) < places and time.time() < self.until:
                    number, overrides = left.pop(0)
                    log.info("run %d: %s", initial_job_idx + number, shown(overrides))
                    running[number] = JobProcess(
                        *(self.context, self.task, overrides, initial_job_idx + number, self._log(overrides)),
                        *(gpus, threads),
                    )
                if not running:  # the time is over
                    break
                for number in _ended(running):
                    finished[number] = running.pop(number).join()
                    error = error_of(finished[number].result)
                    state = f"failed: {error}" if error else "has ended"
                    log.info("run %d %s; %d of %d", initial_job_idx + number, state, len(finished), total)
        _log_times([*finished.values()], places, len(gpus), time.monotonic() - began, began - self.idle_since)
        self.idle_since = time.monotonic()
        not_started = {number: left_out(overrides) for number, overrides in left}
        return [not_started.get(number) or finished[number].result for number in range(total)]

    def _log(self, overrides: Sequence[str]) -> Path:
        return self.logs / f"{hashlib.sha256(' '.join(overrides).encode()).hexdigest()[:8]}.log"


def _ended(running: dict[int, JobProcess]) -> list[int]:
    """Wait until a job ends; the numbers of those that have."""
    numbers = {job.connection: number for number, job in running.items()}
    return [numbers[connection] for connection in wait([*numbers])]


def _log_times(finished: list[Finished], places: int, gpus: int, wall: float, before: float) -> None:
    """Compare the time of the sweep with the least that its jobs could have taken, where that is known of all."""
    if not finished or any(error_of(job.result) for job in finished):
        return
    at_once = min(places, len(finished))
    own = sum(job.seconds for job in finished) / at_once
    on_gpus = sum(job.seconds * job.gpus for job in finished) / max(1, gpus)
    least = max(own, on_gpus)
    log.info(
        "%d runs took %.1f s, %d at a time: %.1f s for the runs, and %.1f %% more for starting, queueing and ending "
        "processes; setting up the sweep took %.1f s before that",
        *(len(finished), wall, at_once, least, 100 * (wall / least - 1), before),
    )


@contextmanager
def _stopping(running: dict[int, JobProcess]) -> Iterator[None]:
    """A signal that stops the sweep stops its jobs, which save, and waits for them; a second one, without saving."""
    try:
        with interruptible():
            yield
    except InterruptError as error:
        at_once = _stop([*running.values()], error.signum)
        what = "which go on from their last checkpoints" if at_once else "which saved what they had trained"
        message = f"{error}, and {len(running)} runs with it, {what}; the same command continues"
        raise InterruptError(message, error.signum) from error


def _stop(jobs: Sequence[JobProcess], signum: int) -> bool:
    """Stop jobs, and wait for them; returns whether further signals have come, which stop them at once."""
    first = signal.SIGUSR1 if signum == signal.SIGUSR1 else signal.SIGTERM
    for number, each in enumerate((first, signal.SIGTERM, signal.SIGKILL)):
        try:
            with interruptible():
                for job in jobs:
                    job.send_signal(each)
                for job in jobs:
                    job.process.join()
        except InterruptError:
            continue
        return number > 0
    return True
