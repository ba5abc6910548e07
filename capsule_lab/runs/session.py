"""What holds while a run is under way: its log, and what Ctrl-C means."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capsule_lab.command import InterruptError


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Everything that is logged also goes to ``path``, with the time."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


@contextmanager
def interruptible(message: str) -> Iterator[None]:
    """Ctrl-C ends with ``message``; Lightning catches it and leaves with ``sys.exit(1)`` and no word."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        raise InterruptError(message, signal.SIGINT) from error
