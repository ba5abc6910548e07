"""Signals that stop a command, which then exits with 128 plus the number of the signal, as in a shell."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from capsule_lab.errors import InterruptError
from capsule_lab.system.slurm import is_batch_job

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Signals that stop a run: Ctrl-C, pre-emption, the end of SLURM's time limit, a closed terminal."""

_TO_ORPHANS = ((signal.SIGTERM, 8.0), (signal.SIGKILL, 0.0))
"""Signals for a process whose parent has ended, and the seconds after each; ours: it ends within 10."""
_POLL_SECONDS = 0.5  # ours


def install(handler: Callable[[int, Any], None] | signal.Handlers) -> dict[int, Any]:
    """Handle ``SIGNALS``, except an ignored SIGHUP, as under nohup; return the previous handlers.

    Only the main thread can install handlers; in any other thread, nothing happens.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    previous: dict[int, Any] = {}
    for signum in SIGNALS:
        is_ignored = signal.getsignal(signum) is signal.SIG_IGN
        if signum is signal.SIGHUP and is_ignored:
            continue
        previous[signum] = signal.signal(signum, handler)
    return previous


def restore(handlers: dict[int, Any]) -> None:
    """Restore the handlers that ``install`` replaced."""
    for signum, handler in handlers.items():
        signal.signal(signum, handler)


@contextmanager
def interruptible(message: str = "") -> Iterator[None]:
    """Raise ``InterruptError`` for ``SIGNALS`` in this block, which has nothing to save.

    By default the message names the signal. The error is raised again at the end of the block if it was suppressed, for
    example in a destructor.
    """
    received: list[InterruptError] = []

    def interrupt(signum: int, _: object) -> None:
        error = InterruptError(message or f"stopped by {signal.Signals(signum).name}", signum)
        received.append(error)
        raise error

    before = install(interrupt)
    try:
        yield
    finally:
        restore(before)
    if received:
        raise received[0]


class StopRequest:
    """Handler that stores the first signal in ``received``, so that training stops after a step; a second raises.

    In a SLURM batch job it does not: SLURM warns, sends SIGTERM at the time limit, and kills only some time later.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        self._before = install(self._handle)

    def restore(self) -> None:
        restore(self._before)
        self._before = {}

    def _handle(self, signum: int, _: object) -> None:
        if self.received is None:
            self.received = signum
            name = signal.Signals(signum).name
            log.warning("%s: stopping after this step; repeat the signal to stop immediately", name)
        elif not is_batch_job():
            self.restore()
            raise InterruptError(
                "stopped immediately; train.resume=true continues from the last checkpoint", signum
            )


def end_with_parent(grace: float = 0.0, parent: int | None = None) -> None:
    """Stop this process, which may save, when its parent has ended; kill it after another 8 seconds.

    It first has ``grace`` seconds to end on its own. ``parent`` is a process id; by default that of the current parent,
    which may have adopted this process.
    """
    parent = os.getppid() if parent is None else parent

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        time.sleep(grace)
        for signum, seconds in _TO_ORPHANS:
            os.kill(os.getpid(), signum)
            time.sleep(seconds)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
