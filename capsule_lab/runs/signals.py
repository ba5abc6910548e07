"""Signals that stop a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from capsule_lab.errors import InterruptError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""They stop a run: Ctrl-C, pre-emption, the end of SLURM's time limit."""


@contextmanager
def interruptible(message: str) -> Iterator[None]:
    """Signals that stop a run raise ``InterruptError(message)`` in this block, where there is nothing to save.

    By default SIGTERM and SIGUSR1 kill the process, and with it SLURM's job, without a message; Lightning handles
    SIGINT with ``sys.exit(1)``.
    """

    def interrupt(signum: int, _: object) -> None:
        raise InterruptError(message, signum)

    main = threading.current_thread() is threading.main_thread()
    before = {signum: signal.signal(signum, interrupt) for signum in SIGNALS} if main else {}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
