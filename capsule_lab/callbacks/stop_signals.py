"""Signals that ask a run to stop."""

from __future__ import annotations

import logging
import signal
from types import FrameType
from typing import Any

from capsule_lab.errors import InterruptError
from capsule_lab.system import signals

log = logging.getLogger(__name__)


class StopSignals:
    """Handlers of ``system.signals.SIGNALS``: the first one is kept in ``received``, a second raises at once.

    Raises:
        InterruptError: from within the main thread, at the second signal.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Replace the handlers that are there."""
        self._before = signals.install(self._handle)

    def restore(self) -> None:
        """Put back the handlers that ``install`` replaced."""
        signals.restore(self._before)
        self._before = {}

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.received is not None:
            self.restore()
            raise InterruptError("stopped at once; train.resume=true continues from the last checkpoint", signum)
        self.received = signum
        log.warning("%s: stopping after this step; once more to stop at once", signal.Signals(signum).name)
