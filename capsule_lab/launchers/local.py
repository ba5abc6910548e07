"""Launcher for runs on this machine, each in a separate process with separate GPUs."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from capsule_lab.errors import DeviceError, InterruptError
from capsule_lab.launchers import Job, environment_for
from capsule_lab.launchers.gpus import check_sharing, gpus_of_a_run, lock_gpus, visible_gpus
from capsule_lab.system import protocol
from capsule_lab.system.signals import interruptible

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1  # ours: interval between checks of the processes
_OF_SLURM = (
    "SLURM_JOB_ID",  # the sweep itself requeues its job when all runs are saved
    *("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),  # with them, Lightning would start no processes
)
"""Variables of the sweep's own job that its runs do not get."""


class LocalLauncher:
    """Launcher with one process per job; it locks ``trainer.devices`` GPUs for the process, or limits its threads.

    Args:
        jobs: how many run at once; ``None`` for ``per_gpu`` on each GPU, or without GPUs half the number of cores, at
            least two.
        per_gpu: how many share a GPU, which needs memory for all of them, see ``check_sharing``.
        logs: folder for the output of jobs, ``<fingerprint>.log``.
        show: whether to print this output, too.
    """

    has_deadline = True
    """Whether ``launch`` can end at a given time, as ``budget=`` of a sweep asks."""

    def __init__(
        self, jobs: int | None = None, per_gpu: int = 1, logs: str = "logs", show: bool = False
    ) -> None:
        if jobs is not None:
            _check_count("jobs", jobs, " or more, or null")
        _check_count("per_gpu", per_gpu, " or more runs that share a GPU")
        self.jobs = jobs
        self.per_gpu = per_gpu
        self.logs = Path(logs).absolute()
        self.show = show

    def launch(self, jobs: Sequence[Job], deadline: float = math.inf) -> dict[str, str | None]:
        """Run jobs, and start none after ``deadline``; return an error or ``None`` by fingerprint.

        Raise a ``DeviceError`` before the first one starts if the jobs that are to share a GPU do not fit on it.
        """
        gpus = visible_gpus()
        if self.per_gpu > 1:
            check_sharing(jobs, gpus, self.per_gpu)
        self.logs.mkdir(parents=True, exist_ok=True)
        cores = len(os.sched_getaffinity(0))
        at_once = self.jobs or len(gpus) * self.per_gpu or max(2, cores // 2)  # ours: see above
        places = min(at_once, len(jobs))
        environment = self._environment(places, cores, deadline)
        ended: dict[str, str | None] = {}
        minutes: list[float] = []  # of each run that succeeded
        running: list[_Process] = []
        waiting = list(enumerate(jobs, 1))
        with _stopping(running, jobs[0].to_continue):
            while running or (waiting and time.time() < deadline):
                while waiting and len(running) < places and time.time() < deadline:
                    number, job = waiting[0]
                    label = f"[{number}/{len(jobs)}] {job.name}"
                    trainer = job.config.trainer
                    try:
                        count = gpus_of_a_run(trainer.accelerator, trainer.devices, gpus)
                        locks = lock_gpus(gpus, count, self.per_gpu)
                    except DeviceError as error:
                        ended[job.fingerprint] = str(error)
                        log.info("%s: failed: %s", label, error)
                    else:
                        if locks is None:  # other jobs or sweeps use them
                            break
                        log_file = self.logs / f"{job.fingerprint}.log"
                        running.append(_start(job, label, log_file, locks, environment))
                    waiting.pop(0)
                time.sleep(_POLL_SECONDS)
                over = [process for process in running if process.popen.poll() is not None]
                if self.show:
                    for process in running:
                        sys.stdout.write(process.new_output())
                for process in over:
                    running.remove(process)
                    failure = process.error()
                    ended[process.job.fingerprint] = failure
                    if failure is None:
                        minutes.append(process.minutes)
                    remaining = len(jobs) - len(ended)
                    left = _left(remaining, len(jobs), minutes, places)
                    _log_end(process, failure, left)
        return ended

    def _environment(self, places: int, cores: int, deadline: float) -> dict[str, str]:
        """Return the variables that all jobs get."""
        variables = {protocol.PARENT: str(os.getpid())}
        if self.per_gpu > 1:
            variables[protocol.PER_GPU] = str(self.per_gpu)
        if places > 1:
            share = str(max(1, cores // places))
            variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS") or share
        if deadline < math.inf:
            variables[protocol.DEADLINE] = str(deadline)
        return variables


def _log_end(process: _Process, error: str | None, left: str) -> None:
    """Say how a process ended, and what is left to run."""
    if error:
        log.info("%s: failed: %s", process.label, error)
        return
    outcome = process.job.outcome()
    log.info("%s: %s in %.1f min%s", process.label, outcome, process.minutes, left)


def _left(left: int, count: int, minutes: Sequence[float], places: int) -> str:
    """Describe how many of ``count`` runs are left, and how long they take if they are like those that ended."""
    if not (left and minutes):
        return ""
    rounds = math.ceil(left / places)
    expected = rounds * fmean(minutes)
    return f"; {left} of {count} left, about {expected:.0f} min"


def _check_count(option: str, value: Any, expected: str) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not (is_whole and value >= 1):
        raise ValueError(f"hydra.launcher.{option} is {value}; expected 1{expected}")


@dataclass
class _Process:
    job: Job
    label: str
    log_file: Path
    popen: subprocess.Popen[bytes]
    start_time: float
    shown: int
    first_byte: int

    @property
    def minutes(self) -> float:
        """Minutes since the start."""
        return (time.monotonic() - self.start_time) / 60

    def new_output(self) -> str:
        """Return the text written to the log since the last call."""
        with self.log_file.open("rb") as file:
            file.seek(self.shown)
            text = file.read()
        self.shown += len(text)
        return text.decode(errors="replace")

    def error(self) -> str | None:
        """Return the error message that the command ended with; ``None`` if it succeeded."""
        status = self.popen.returncode
        if status == 0:
            return None
        if status < 0:
            return f"a run was killed by {signal.Signals(-status).name}; its log is {self.log_file}"
        with self.log_file.open("rb") as file:
            file.seek(self.first_byte)
            text = file.read().decode(errors="replace")
        messages: list[str] = re.findall(r"^capsule_lab: (.+)$", text, re.MULTILINE)
        if messages:
            return messages[-1]
        return f"a run ended with status {status}; its log is {self.log_file}"


def _start(
    job: Job, label: str, log_file: Path, locks: dict[str, int], more: dict[str, str]
) -> _Process:
    environment = environment_for(job.environment, **more, **{protocol.LOG: str(log_file)})
    for name in _OF_SLURM:
        environment.pop(name, None)
    if locks:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(locks)
    log.info("%s: log %s", label, log_file)
    with log_file.open("ab") as file:
        size = file.tell()
        popen = subprocess.Popen(
            job.command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            process_group=0,  # Ctrl-C reaches only the sweep, which stops its jobs
            pass_fds=tuple(locks.values()),
        )
    for descriptor in locks.values():
        os.close(descriptor)
    return _Process(job, label, log_file, popen, time.monotonic(), size, size)


@contextmanager
def _stopping(running: list[_Process], to_continue: str) -> Iterator[None]:
    """On a signal, stop the jobs, which save checkpoints, and wait; a second signal stops them without saving."""
    try:
        with interruptible():
            yield
    except InterruptError as error:
        at_once = _stop([process.popen for process in running], error.signum)
        what = "without saving" if at_once else "after saving checkpoints"
        message = f"{error}; {len(running)} runs were stopped {what}; {to_continue}"
        raise InterruptError(message, error.signum) from error


def _stop(processes: Sequence[subprocess.Popen[bytes]], signum: int) -> bool:
    """Stop jobs and wait for them; return whether a further signal arrived, which stops them without saving."""
    first = signal.SIGUSR1 if signum == signal.SIGUSR1 else signal.SIGTERM
    for number, next_signal in enumerate((first, signal.SIGTERM, signal.SIGKILL)):
        try:
            with interruptible():
                for process in processes:
                    process.send_signal(next_signal)
                for process in processes:
                    process.wait()
        except InterruptError:
            continue
        return number > 0
    return True
