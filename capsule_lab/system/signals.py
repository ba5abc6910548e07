"""Signals that stop a command, which then ends with a status of 128 plus the signal's number, as in a shell."""

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

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""They stop a run: Ctrl-C, pre-emption, the end of SLURM's time limit, a terminal that is closed."""

_TO_ORPHANS = ((signal.SIGTERM, 8.0), (signal.SIGKILL, 0.0))
"""What a process gets whose parent has died, and the seconds after each; ours: it has ended within 10."""
_POLL_SECONDS = 0.5  # ours


def install(handler: Callable[[int, Any], None]) -> dict[int, Any]:
    """Handle ``SIGNALS``, but not a SIGHUP that is ignored, as under nohup; returns the handlers that were there.

    Only the main thread can have handlers: any other gets none.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return {each: signal.signal(each, handler) for each in SIGNALS if not (ignored and each is signal.SIGHUP)}


def restore(handlers: dict[int, Any]) -> None:
    """Put back what ``install`` replaced."""
    for signum, handler in handlers.items():
        signal.signal(signum, handler)


@contextmanager
def interruptible(message: str = "") -> Iterator[None]:
    """Signals that stop a run raise ``InterruptError`` in this block, where there is nothing to save.

    It is raised at the end of the block if it was dropped before, as by destructors.

    Args:
        message: of the error; by default it names the signal.
    """
    received: list[InterruptError] = []

    def interrupt(signum: int, _: object) -> None:
        received.append(InterruptError(message or f"stopped by {signal.Signals(signum).name}", signum))
        raise received[-1]

    before = install(interrupt)
    try:
        yield
    finally:
        restore(before)
    if received:
        raise received[0]


class StopRequest:
    """Keeps the first of ``SIGNALS`` in ``received``, so that training stops between two steps; a second raises."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        self._before = install(self._handle)

    def restore(self) -> None:
        restore(self._before)
        self._before = {}

    def _handle(self, signum: int, _: object) -> None:
        if self.received is not None:
            self.restore()
            raise InterruptError("stopped at once; train.resume=true continues from the last checkpoint", signum)
        self.received = signum
        log.warning("%s: stopping after this step; once more to stop at once", signal.Signals(signum).name)


def end_with_parent(grace: float = 0.0, parent: int | None = None) -> None:
    """Stop this process, which may save, when the one that started it is gone; kill it if it lives 8 seconds longer.

    Args:
        grace: seconds in which it may end by itself.
        parent: the one that started it; by default that of now, which may have adopted it.
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
