"""One job of a sweep in a process of its own, with its output in a log file."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle

from capsule_lab.errors import RunError, one_line
from capsule_lab.launchers.gpu_assignment import assign_gpus, gpus_of_a_run
from capsule_lab.launchers.hydra_internals import JobReturn, Task, failed, process_state, restore_process
from capsule_lab.launchers.job_results import portable
from capsule_lab.runs import lock
from capsule_lab.system.signals import end_with_parent


class Finished(NamedTuple):
    """What became of a job; of one that was killed, the cost is unknown and 0.

    Attributes:
        seconds: without the time in which it waited for GPUs.
        gpus: how many it was assigned.
    """

    result: JobReturn
    seconds: float = 0.0
    gpus: int = 0


class JobProcess:
    """Starts at once.

    Args:
        context: of multiprocessing.
        task: what to run.
        overrides: of this job.
        number: of this job.
        log_file: for standard output and standard error, appended to.
        gpus: names of GPUs to choose from.
        threads: for computing on the CPU.

    Raises:
        RunError: if the server that the process is forked from has ended.
    """

    def __init__(
        self,
        context: Any,
        task: Task,
        overrides: Sequence[str],
        number: int,
        log_file: Path,
        gpus: Sequence[str],
        threads: int,
    ) -> None:
        self.overrides, self.log_file = overrides, log_file
        self.connection, sender = context.Pipe(duplex=False)
        job = cloudpickle.dumps((tuple(task), list(overrides), number, process_state()))
        self.process = context.Process(target=_child, args=(job, sender, str(log_file), [*gpus], threads))
        try:
            self.process.start()
        except (EOFError, OSError) as error:
            raise RunError(
                f"the server of launcher=gpus has ended ({one_line(error)}), out of memory or by a signal; the same "
                "command goes on"
            ) from error
        sender.close()

    def send_signal(self, signum: int) -> None:
        """Unless it has ended."""
        if self.process.is_alive():
            os.kill(self.process.pid, signum)

    def join(self) -> Finished:
        """Wait for its end. A process that is killed closes the connection, so that there is nothing to receive."""
        try:
            finished: Finished = cloudpickle.loads(self.connection.recv_bytes())
        except EOFError:
            self.process.join()
            status = self.process.exitcode
            how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            finished = Finished(failed(self.overrides, RunError(f"a run {how}; its log is {self.log_file}")))
        self.connection.close()
        self.process.join()
        return finished


def _child(job: bytes, sender: Connection, log_file: str, gpus: list[str], threads: int) -> None:
    """The main function of the process; sends a ``Finished``."""
    import torch  # slow, and there already where the server of gpu_pool has imported it

    os.setpgrp()  # Ctrl-C is for the sweep, which stops its jobs
    end_with_parent()
    os.environ.pop("SLURM_JOB_ID", None)  # it is the job of the sweep, which requeues it when all its runs have saved
    with open(log_file, "ab", buffering=0) as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    stdout: Any = sys.stdout  # a TextIOWrapper, for typeshed a TextIO
    stdout.reconfigure(line_buffering=True)
    os.environ[lock.LOG_VARIABLE] = log_file
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # of processes that this one starts
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    task, overrides, number, state = cloudpickle.loads(job)
    restore_process(state)
    finished = _run(Task(*task), overrides, number, gpus)
    result = portable(finished.result, overrides)
    sender.send_bytes(cloudpickle.dumps(finished._replace(result=result)))
    sender.close()


def _run(task: Task, overrides: list[str], number: int, gpus: list[str]) -> Finished:
    began = time.monotonic()
    try:
        config = task.compose(overrides, number)
        trainer = config.get("trainer") or {}
        wanted = gpus_of_a_run(trainer.get("accelerator", "auto"), trainer.get("devices", 1), gpus)
        composed = time.monotonic()
        assigned = len(assign_gpus(gpus, wanted))
        waited = time.monotonic() - composed
    except Exception as error:  # Hydra raises many kinds for overrides that do not fit together
        return Finished(failed(overrides, error))
    result = task.run(config)
    return Finished(result, time.monotonic() - began - waited, assigned)
