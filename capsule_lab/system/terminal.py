"""Standard output and standard error, whatever they are: closed, full, cut off, or of few characters."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_CANNOT_WRITE = 2  # the status of a user's mistake


@contextmanager
def usable_streams() -> Iterator[None]:
    """Let a command end without a traceback where nothing, or not everything, can be written to its streams.

    A reader that has read enough (``| head``) ends it with the status that a shell gives to SIGPIPE; a full disk with
    one line on standard error. Characters that the encoding lacks become question marks.
    """
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell: >&-
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # for the rest of the process
            with suppress(OSError):
                os.dup2(getattr(sys, name).fileno(), number)  # so that no file of ours gets this number
        elif isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="replace")
    raises, logging.raiseExceptions = logging.raiseExceptions, False  # a traceback for each line that is not written
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        if _can_write():
            raise
        _drop_output()
        with suppress(OSError):
            sys.stderr.write(f"capsule_lab: standard output cannot be written to ({error.strerror})\n")
        sys.exit(_CANNOT_WRITE)
    finally:
        logging.raiseExceptions = raises


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


def _can_write() -> bool:
    """Whether a line break can be written; what could not be is no longer in the buffer."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except (OSError, ValueError):
        return False
    return True


def _drop_output() -> None:
    """What is left in the buffer goes nowhere, which else Python tries to write when it ends."""
    with suppress(OSError, ValueError, io.UnsupportedOperation):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
