"""Errors of capsule_lab, and the wording of their messages: what arrived, what was expected, what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class CapsuleLabError(Exception):
    """Base class of all errors whose message is for the user; commands print it without a traceback."""


class ConfigError(CapsuleLabError, ValueError):
    """A configuration that cannot work."""


class DataError(CapsuleLabError, ValueError):
    """A data set that is missing, incomplete or damaged."""


class MissingDataError(DataError):
    """A data set that is not there and cannot be downloaded; a stand-in may take its place."""


class DeviceError(CapsuleLabError, ValueError):
    """GPUs that this machine does not have or cannot assign."""


class RunError(CapsuleLabError, ValueError):
    """A run directory or checkpoint that cannot be used."""


class TableError(CapsuleLabError, ValueError):
    """A table that cannot be read, or that refers to a row, column or result that does not exist."""


class InterruptError(CapsuleLabError):
    """Training was stopped by a signal, after saving a checkpoint.

    Attributes:
        signum: the signal; the exit status is 128 more.
    """

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.signum = signum


def one_line(error: BaseException) -> str:
    """The message of an error of another package, without line breaks and indentation."""
    return " ".join(str(error).split())


def printable(text: str) -> str:
    """``text`` in one line, without the control characters that a terminal would obey; they may come from a file."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]+", " ", text)


def suggest(unknown: str, options: Iterable[str]) -> str:
    """``did you mean …? Options: …`` for a name that is not among ``options``."""
    options = sorted(options)
    close = difflib.get_close_matches(unknown, options, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    return f"{meant}Options: {', '.join(options)}"


def check_choice(option: str, value: object, choices: tuple[object, ...]) -> None:
    """Check that ``value`` is one of ``choices``.

    Raises:
        ValueError: if not, naming them.
    """
    if value not in choices:
        *others, last = (repr(choice) for choice in choices)
        raise ValueError(f"{option} is {value!r}; expected {', '.join(others)} or {last}")
