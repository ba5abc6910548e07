"""What commands print: through a pipe that may be closed, in aligned columns, with short paths."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def usable_streams() -> Iterator[None]:
    """End a command quietly, with the status of SIGPIPE, when its reader has read enough (``| head``)."""
    logging.raiseExceptions = False  # a traceback for each line that cannot be written
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # where Python writes the rest when it ends
        sys.exit(128 + signal.SIGPIPE)


def as_typed(path: Path) -> Path:
    """Relative to the current directory, if it is inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines whose columns are below each other; words are never broken, and empty columns left out."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    lines = zip(*columns, strict=True)
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def differences(overrides: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Overrides that all of several runs have, and the others of each run."""
    shared = [each for each in overrides[0] if len(overrides) > 1 and all(each in others for others in overrides)]
    return shared, [[each for each in own if each not in shared] for own in overrides]
