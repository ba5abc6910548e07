"""Signals that stop a command, which ends with a status of 128 more than their number, as shells have it.

Imports nothing heavy: ``exit_at_once`` is called before the imports of a command, which take seconds.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from capsule_lab.errors import InterruptError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""They stop a run: Ctrl-C, pre-emption, the end of SLURM's time limit, a terminal that is closed."""

_TO_ORPHANS = ((signal.SIGTERM, 6.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 0.0))
"""What a process gets whose parent has died, and the seconds after each; ours: it has ended within 10."""
_POLL_SECONDS = 0.5  # ours: between two looks for the parent, where there is nothing to wait for


def install(handler: Callable[[int, Any], None] | signal.Handlers) -> dict[int, Any]:
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

    By default SIGTERM, SIGUSR1 and SIGHUP kill the process, and with it SLURM's job, without a message; Lightning
    handles SIGINT with ``sys.exit(1)``.

    Args:
        message: of the error; by default it names the signal.

    Raises:
        InterruptError: also at the end of the block, if the first was dropped, as by destructors, or led to another
            error, as in C code that takes any error for "there is none".
    """
    received: list[int] = []

    def interrupt(signum: int, _: object) -> None:
        received.append(signum)
        raise InterruptError(message or _stopped_by(signum), signum)

    before, unraisable = install(interrupt), sys.unraisablehook
    sys.unraisablehook = lambda each: None if isinstance(each.exc_value, InterruptError) else unraisable(each)
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        if not received:
            raise
        failure = error  # of what was interrupted
    finally:
        sys.unraisablehook = unraisable
        restore(before)
    if received:
        raise InterruptError(message or _stopped_by(received[0]), received[0]) from failure


@contextmanager
def postponed() -> Iterator[None]:
    """Signals that stop a run wait for the end of this block, which must be short."""
    received: list[int] = []
    before = install(lambda signum, _: received.append(signum))  # not a mask, as other threads have their own
    try:
        yield
    finally:
        restore(before)
        for signum in received[:1]:
            signal.raise_signal(signum)


def exit_at_once() -> None:
    """Signals end this process with one line: while it imports, and while Python is leaving.

    There an exception would be printed with its traceback, or dropped.
    """

    def leave(signum: int, _: object) -> None:
        with suppress(Exception):  # a closed file, or one that is being written to
            sys.stdout.flush()
        with suppress(OSError):
            os.write(2, f"capsule_lab: {_stopped_by(signum)}\n".encode())
        os._exit(128 + signum)

    install(leave)
    # the last of Python's end, as the first that is registered: it then takes handlers away, and signals would kill
    atexit.register(install, signal.SIG_IGN)


def is_command() -> bool:
    """Whether this process runs a command of capsule_lab, as far as is known during its first import."""
    if sys.argv[0] == "-m":  # as long as Python looks for the module
        return any(word.removeprefix("-m").partition(".")[0] == "capsule_lab" for word in sys.orig_argv)
    return Path(sys.argv[0]).name == "capsule-lab"


def end_with_parent(grace: float = 0.0, parent: int | None = None) -> None:
    """Stop this process, which may save, when the one that started it is gone; kill it if it lives 8 seconds longer.

    Args:
        grace: seconds in which it may end by itself.
        parent: the one that started it; by default that of now, which may have adopted it.
    """
    import multiprocessing  # not before `exit_at_once`

    parent = os.getppid() if parent is None else parent

    def watch() -> None:
        process = multiprocessing.parent_process()
        if process is not None:
            process.join()  # of a fork server, the process that asked it for this one
        while process is None and os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        time.sleep(grace)
        for signum, seconds in _TO_ORPHANS:
            os.kill(os.getpid(), signum)
            time.sleep(seconds)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def _stopped_by(signum: int) -> str:
    return f"stopped by {signal.Signals(signum).name}"
