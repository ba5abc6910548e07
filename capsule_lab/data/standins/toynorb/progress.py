"""How far the rendering is."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_TOYS_A_LINE = 5  # ours: ten lines in all

log = logging.getLogger(__name__)


@contextmanager
def reporting() -> Iterator[Callable[[int, int], None]]:
    """Something to tell how many toys are done, of how many: a bar on a terminal, else a line now and then."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (TextColumn("rendering toys"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _Lines:
    """A line now and then, with the time left at the pace so far."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.first: int | None = None

    def __call__(self, done: int, total: int) -> None:
        if self.first is None:
            self.first = done
        elif done % _TOYS_A_LINE == 0 or done == total:
            seconds = (time.monotonic() - self.began) / (done - self.first) * (total - done)
            log.info("rendered %d of %d toys, %s to go", done, total, timedelta(seconds=round(seconds)))
