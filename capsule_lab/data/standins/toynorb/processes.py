"""Jobs in several processes; threads would wait for each other, as numpy's calls are so short."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Literal

from capsule_lab.system.signals import end_with_parent

START: Literal["spawn"] = "spawn"
"""How processes start; forked ones would inherit locks of torch's threads, locked or not."""


class WorkerError(RuntimeError):
    """A process ended before its work did."""


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(work: Callable[[Any], None], jobs: Sequence[Any], workers: int, finished: Callable[[], None]) -> None:
    """Do all jobs, in this process or in several new ones, which end when this returns or raises.

    Args:
        work: does one job; a function that pickles.
        jobs: its arguments; they pickle too.
        workers: number of processes; 1 is this one.
        finished: called after each job, in this process.

    Raises:
        WorkerError: if a process is killed, or cannot start.
        Exception: any error of ``work``, with the traceback of its process as its cause.
    """
    if workers == 1:
        for job in jobs:
            work(job)
            finished()
        return
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, multiprocessing.get_context(START), end_with_parent) as pool:
        try:
            with _without_interrupts():
                futures = [pool.submit(work, job) for job in jobs]
            for future in as_completed(futures):
                future.result()
                finished()
        except BaseException as error:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            pool.shutdown(cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                raise WorkerError(
                    "a rendering process ended before its work did: was it out of memory (try workers=1), or does the "
                    'main script lack its `if __name__ == "__main__":`?'
                ) from error
            raise


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes that start in this block ignore Ctrl-C, which a terminal sends to all: this process ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
