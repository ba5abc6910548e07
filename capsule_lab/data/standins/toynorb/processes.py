"""Work spread over processes; threads would only wait for each other, numpy's calls being so short."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal

START: Literal["spawn"] = "spawn"
"""How processes start; forked ones would inherit the locks of torch's threads, in whatever state they are."""


class WorkerError(RuntimeError):
    """A process ended before its work did."""


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(work: Callable[[Any], None], jobs: Sequence[Any], workers: int, finished: Callable[[], None]) -> None:
    """Do all jobs, in this process or in several new ones, which end when this returns or raises.

    Args:
        work: does one job; a function that pickles.
        jobs: what to do; they pickle too.
        workers: how many processes; 1 is this one.
        finished: called after each job, in this process.

    Raises:
        WorkerError: if a process is killed, or cannot start.
        Exception: whatever ``work`` raised, here or there.
    """
    if workers > 1:
        _run_in_processes(work, jobs, workers, finished)
        return
    for job in jobs:
        work(job)
        finished()


def _run_in_processes(
    work: Callable[[Any], None], jobs: Sequence[Any], workers: int, finished: Callable[[], None]
) -> None:
    waiting = list(reversed(jobs))
    processes: dict[Connection, BaseProcess] = {}
    busy: set[Connection] = set()
    try:
        for _ in range(min(workers, len(jobs))):
            connection = _start(work, processes)
            connection.send(waiting.pop())
            busy.add(connection)
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                _receive(ready)
                if waiting:
                    ready.send(waiting.pop())
                else:
                    busy.remove(ready)
                finished()
    finally:
        for process in processes.values():
            process.terminate()
        for connection, process in processes.items():
            connection.close()
            process.join()


def _start(work: Callable[[Any], None], processes: dict[Connection, BaseProcess]) -> Connection:
    """A new process and the connection to it, among ``processes`` from its first moment."""
    context = multiprocessing.get_context(START)
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, work), daemon=True)
    with _interrupts_held_back():
        process.start()
        processes[here] = process
    there.close()  # so that a process that dies is noticed
    return here


def _receive(connection: Connection) -> None:
    """Wait for the end of a job."""
    try:
        error = connection.recv()
    except (EOFError, OSError) as closed:
        raise WorkerError(
            "a rendering process ended before its work did: was it out of memory (try workers=1), or does the main "
            'script lack its `if __name__ == "__main__":`?'
        ) from closed
    if error is not None:
        raise error


def _serve(connection: Connection, work: Callable[[Any], None]) -> None:
    """One job after another, until the other side hangs up."""
    try:
        while True:
            job = connection.recv()
            error: Exception | None = None
            try:
                work(job)
            except Exception as raised:
                raised.add_note(f"in a rendering process:\n{traceback.format_exc()}")
                error = raised
            connection.send(error)
    except (EOFError, OSError):  # the parent is gone
        return


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Processes started here never get Ctrl-C, which a terminal sends to all: their parent ends them, quietly."""
    resource_tracker.ensure_running()  # first, for it lets interrupts through once it has started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
