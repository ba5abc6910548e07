"""Output of commands: closed pipes, aligned columns and short paths."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn


@contextmanager
def usable_streams() -> Iterator[None]:
    """End a command silently, with the status of SIGPIPE, when the reader closes the pipe (``| head``).

    Characters that a terminal's encoding does not have are written as escapes.
    """
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if stream.errors == "strict" or stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="backslashreplace")
    logging.raiseExceptions = False  # else a traceback for each line that cannot be written
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        exit_after_closed_pipe()


def exit_after_closed_pipe() -> NoReturn:
    """End the process with the status of SIGPIPE; nothing more is written to the standard output."""
    # Python flushes the rest there at exit
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(128 + signal.SIGPIPE)


def shows_tracebacks() -> bool:
    """Return whether commands show the traceback of a user's mistake, too: if ``HYDRA_FULL_ERROR=1`` is set."""
    return os.environ.get("HYDRA_FULL_ERROR") == "1"


def as_typed(path: Path) -> Path:
    """Return a path relative to the current directory if it is inside, else unchanged."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def aligned(rows: Sequence[Sequence[str]], *, numbers: bool = False) -> list[str]:
    """Format rows as lines with aligned columns; words are never broken, and empty columns are left out.

    With ``numbers``, all columns but the first are numbers and their headings, which are aligned at the right.
    """
    padded = []
    for position, column in enumerate(zip(*rows, strict=True)):
        if not any(column[1:]):
            continue
        width = max(len(cell) for cell in column)
        is_right = numbers and position > 0
        padded.append([cell.rjust(width) if is_right else cell.ljust(width) for cell in column])
    return ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]


def cut(line: str, width: int | None) -> str:
    """Return a line, with an ellipsis at its end if it is longer than the terminal, whose width may be unknown."""
    if width is None or len(line) <= width:
        return line
    return f"{line[: width - 1]}…"


def differences(overrides: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Return the overrides that several runs share, and the other overrides of each run."""
    first, *others = overrides
    in_all = set(first).intersection(*others) if others else set()
    shared = [override for override in first if override in in_all]
    own = [[override for override in run if override not in in_all] for run in overrides]
    return shared, own
