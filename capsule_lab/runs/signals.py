"""What holds while a run is under way: its log, and what signals mean."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capsule_lab.errors import InterruptError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""They stop a run: Ctrl-C, pre-emption, a time limit of SLURM that draws near."""


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
    """Signals that stop a run end with ``message`` here, where there is nothing to save.

    By themselves, two of them would kill the process without a word, and SLURM's job with it; the third Lightning
    catches to leave with ``sys.exit(1)``.
    """

    def leave(signum: int, _: object) -> None:
        raise InterruptError(message, signum)

    main = threading.current_thread() is threading.main_thread()
    before = {signum: signal.signal(signum, leave) for signum in SIGNALS} if main else {}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
