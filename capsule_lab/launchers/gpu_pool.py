"""The runs of a sweep side by side on this machine, each on GPUs of its own.

Whatever becomes of one run, the others go on; what failed is in the ``JobReturn`` of each.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, filter_overrides, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from capsule_lab.launchers.results import failed, plain

log = logging.getLogger(__name__)


class GPUPool(Launcher):
    """One process per run, each on ``trainer.devices`` GPUs of its own; as many at a time as there are GPUs for.

    Processes are forked from a server that has imported torch and Lightning and done nothing else, which takes
    milliseconds instead of seconds. A run holds a lock on its GPUs for as long as its process lives, so that sweeps
    beside each other share the machine; on a machine without GPU runs are only counted.

    Args:
        jobs: at a time; ``None`` for one on each GPU, without any half as many as cores, two at least.
        logs: the folder for what each run says.
    """

    def __init__(self, jobs: int | None = None, logs: str = "logs") -> None:
        if jobs is not None and jobs < 1:
            raise ValueError(f"hydra.launcher.jobs is {jobs}; expected 1 or more, or null")
        self.jobs = jobs
        self.logs = Path(logs).absolute()

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Start the server, which imports while this process goes on."""
        import multiprocessing
        from multiprocessing import forkserver

        self.since = time.monotonic()
        self.job = (hydra_context, task_function, config)
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["capsule_lab.launchers.preload"])
        forkserver.ensure_running()

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run all, at most ``jobs`` at a time; the results are in the order of ``job_overrides``."""
        from multiprocessing.connection import wait

        from capsule_lab.launchers.gpu_lease import visible_gpus

        setup_globals()
        gpus, cores = visible_gpus(), len(os.sched_getaffinity(0))
        places = self.jobs or len(gpus) or max(2, cores // 2)  # ours: see above
        threads = max(1, cores // min(places, len(job_overrides)))
        self.logs.mkdir(parents=True, exist_ok=True)
        on = f"on GPUs {', '.join(gpus)}" if gpus else f"each on {threads} of {cores} cores"
        log.info("%d runs, %d at a time, %s", len(job_overrides), places, on)
        results: dict[int, JobReturn] = {}
        running: dict[Any, tuple[int, Any]] = {}
        left = list(enumerate(job_overrides))
        began = time.monotonic()
        own = shares = 0.0  # seconds that runs took; the same, times GPUs
        with _stopping(running):
            while left or running:
                while left and len(running) < places:
                    number, overrides = left.pop(0)
                    log.info("run %d: %s", initial_job_idx + number, " ".join(filter_overrides(overrides)))
                    receiver, process = self._start(list(overrides), initial_job_idx + number, gpus, threads)
                    running[receiver] = number, process
                for receiver in wait(list(running)):
                    number, process = running.pop(receiver)
                    overrides = list(job_overrides[number])
                    results[number], seconds, leased = _received(receiver, process, overrides, self._log(overrides))
                    own, shares = own + seconds, shares + seconds * leased
                    state = _in_words(results[number])
                    log.info("run %d %s; %d of %d", initial_job_idx + number, state, len(results), len(job_overrides))
        before, wall, self.since = began - self.since, time.monotonic() - began, time.monotonic()
        if all(result.status is JobStatus.COMPLETED for result in results.values()):  # one that is killed tells no time
            at_once = min(places, len(results))
            least = max(own / at_once, shares / max(1, len(gpus)))
            log.info(
                "%d runs in %.1f s, of which %.1f s are their own, %d at a time: %.1f %% more for starting, queueing "
                "and ending processes; %.1f s went before, for setting up the sweep",
                *(len(results), wall, least, at_once, 100 * (wall / least - 1), before),  # per cent
            )
        return [results[number] for number in range(len(job_overrides))]

    def _start(self, overrides: list[str], number: int, gpus: list[str], threads: int) -> tuple[Any, Any]:
        import cloudpickle

        receiver, sender = self.context.Pipe(duplex=False)
        job = cloudpickle.dumps((*self.job, overrides, number, Singleton.get_state()))
        arguments = (job, sender, str(self._log(overrides)), gpus, threads)
        process = self.context.Process(target=_run_in_child, args=arguments)
        process.start()
        sender.close()
        return receiver, process

    def _log(self, overrides: Sequence[str]) -> Path:
        return self.logs / f"{hashlib.sha256(' '.join(overrides).encode()).hexdigest()[:8]}.log"  # 8: tells them apart


def _run_in_child(job: bytes, sender: Any, log_file: str, gpus: list[str], threads: int) -> None:
    """One run in a process of its own; sends its ``JobReturn``, seconds and GPUs, if it comes to that."""
    import cloudpickle
    import torch

    from capsule_lab.launchers.gpu_lease import gpus_of_a_run, lease
    from capsule_lab.runs import lock

    os.setpgrp()  # Ctrl-C is for the sweep, which tells its runs
    with open(log_file, "ab", buffering=0) as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ[lock.LOG_VARIABLE] = log_file
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # of processes that this one starts
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    hydra_context, task_function, config, overrides, number, state = cloudpickle.loads(job)
    log.info("%s", " ".join(overrides))
    Singleton.set_state(state)
    setup_globals()
    began, seconds, leased = time.monotonic(), 0.0, 0
    try:
        sweep_config = hydra_context.config_loader.load_sweep_config(config, overrides)
        with open_dict(sweep_config):
            sweep_config.hydra.job.id = sweep_config.hydra.job.num = number
        trainer = sweep_config.get("trainer") or {}
        wanted = gpus_of_a_run(trainer.get("accelerator", "auto"), trainer.get("devices", 1), gpus)
        composed = time.monotonic()
        leased = len(lease(gpus, wanted))
        waited = time.monotonic() - composed
    except Exception as error:  # whatever Hydra says of words that do not fit together
        result = JobReturn(overrides=overrides, status=JobStatus.FAILED, _return_value=error)
    else:
        result = run_job(
            task_function=task_function,
            config=sweep_config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
            hydra_context=hydra_context,
        )
        seconds = time.monotonic() - began - waited
    sender.send_bytes(cloudpickle.dumps((plain(result, overrides), seconds, leased)))
    sender.close()


def _received(receiver: Any, process: Any, overrides: list[str], log_file: Path) -> tuple[JobReturn, float, int]:
    """What a run sent, or how its process ended without a word; the seconds that it took, and on how many GPUs."""
    import cloudpickle

    seconds, leased = 0.0, 0
    try:
        result, seconds, leased = cloudpickle.loads(receiver.recv_bytes())
    except EOFError:
        process.join()
        status = process.exitcode
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        result = failed(overrides, f"a run {how}; its log is {log_file}")
    receiver.close()
    process.join()
    return result, seconds, leased


def _in_words(result: JobReturn) -> str:
    return "completed" if result.status is JobStatus.COMPLETED else f"failed: {result._return_value}"


@contextmanager
def _stopping(running: dict[Any, tuple[int, Any]]) -> Iterator[None]:
    """A sweep that is stopped by a signal stops its runs, which save, and waits for them."""
    from capsule_lab.errors import InterruptError

    received: list[int] = []

    def stop(signum: int, _: Any) -> None:
        received.append(signum)
        raise KeyboardInterrupt

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    main = threading.current_thread() is threading.main_thread()
    before = {signum: signal.signal(signum, stop) for signum in signals} if main else {}
    try:
        yield
    except KeyboardInterrupt as error:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join()
        name = signal.Signals(received[0]).name
        raise InterruptError(
            f"stopped by {name}, and {len(running)} runs with it, which saved what they had trained; the same command "
            "goes on",
            received[0],
        ) from error
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
