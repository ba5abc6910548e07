"""Signals that ask a run to stop."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType
from typing import Any

from capsule_lab.errors import InterruptError
from capsule_lab.runs.signals import SIGNALS

log = logging.getLogger(__name__)


class StopSignals:
    """Handlers of Ctrl-C, SIGTERM and SIGUSR1: the first signal is kept in ``received``, a second raises at once.

    Lightning 2.6 has handlers of its own, which it installs before ``on_train_start`` and removes after
    ``on_train_end``: ``install`` and ``restore`` belong into these hooks. Only the main thread can have handlers.

    Raises:
        InterruptError: from within the main thread, at the second signal.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Replace the handlers that are there."""
        if threading.current_thread() is threading.main_thread():
            self._before = {signum: signal.signal(signum, self._handle) for signum in SIGNALS}

    def restore(self) -> None:
        """Put back the handlers that ``install`` replaced."""
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._before = {}

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.received is not None:
            self.restore()
            raise InterruptError("stopped at once; train.resume=true continues from the last checkpoint", signum)
        self.received = signum
        log.warning("%s: stopping after this step; once more to stop at once", signal.Signals(signum).name)
