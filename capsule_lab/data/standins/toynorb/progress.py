"""Progress of the rendering: a bar on a terminal, lines in a log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_FIRST, _TOYS_PER_LINE = 2, 5  # ours: how long it will take is said early; ten lines more

log = logging.getLogger(__name__)


@contextmanager
def show_progress() -> Iterator[Callable[[int, int], None]]:
    """A function to call with the number of finished toys and of all toys.

    Rich's bar on a terminal; elsewhere, where rich would print its last state only, a line after two toys and for every
    five.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _log_lines()
        return
    columns = (TextColumn("rendering toys"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _log_lines() -> Callable[[int, int], None]:
    started = time.monotonic()
    first: int | None = None

    def update(done: int, total: int) -> None:
        nonlocal first
        if first is None:
            first = done
        elif done - first == _FIRST or done % _TOYS_PER_LINE == 0 or done == total:
            seconds = (time.monotonic() - started) / (done - first) * (total - done)
            log.info("rendered %d of %d toys, %s to go", done, total, timedelta(seconds=round(seconds)))

    return update
