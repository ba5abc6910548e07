"""Errors of capsule_lab. Their messages state what arrived, what was expected and what to do."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, SupportsFloat


class CapsuleLabError(Exception):
    """Base class of all errors that address the user; commands print their message without a traceback."""


class ConfigError(CapsuleLabError, ValueError):
    """A configuration that cannot work."""


class DataError(CapsuleLabError, ValueError):
    """A data set that is missing, incomplete or damaged."""


class MissingDataError(DataError):
    """A data set that is missing and cannot be downloaded; stand-in data may replace it."""


class DeviceError(CapsuleLabError, ValueError):
    """GPUs that this machine does not have or cannot assign."""


class MissingPackageError(CapsuleLabError, ValueError):
    """A package that is not installed, of an extra; the message has the command that installs it."""


class RunError(CapsuleLabError, ValueError):
    """A run directory or checkpoint that cannot be used."""


class TableError(CapsuleLabError, ValueError):
    """A table that cannot be read, or that refers to a row, column or result that does not exist."""


class InterruptError(BaseException):
    """The signal ``signum`` stopped the command; not an ``Exception``, so that handlers of errors do not catch it."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.signum = signum


class PauseError(BaseException):
    """The time limit of a command is reached and the run is saved; not an ``Exception``, see ``InterruptError``."""


def one_line(error: BaseException) -> str:
    """Return the message of another package's error without line breaks and indentation."""
    return " ".join(str(error).split())


def closest(unknown: str, options: Iterable[str]) -> str | None:
    """Return the option that was probably meant, regardless of case; exchanged letters count less than other errors.

    >>> closest("modle", ["model", "module"]), closest("MNIST", ["mnist"]), closest("mnist", ["sabour2017/mnist"])
    ('model', 'mnist', 'sabour2017/mnist')
    """
    by_lower = {option.casefold(): option for option in options}
    lower = unknown.casefold()
    if lower in by_lower:
        return by_lower[lower]
    for lower_option, option in by_lower.items():
        if sorted(lower_option) == sorted(lower):
            return option
    for lower_option, option in by_lower.items():
        if lower_option.rpartition("/")[2] == lower:
            return option
    close = difflib.get_close_matches(lower, by_lower, n=1)
    return by_lower[close[0]] if close else None


_CONTROL = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff"  # all but tab and line feed


def printable(text: str) -> str:
    """Return ``text`` in one line without control characters, which may come from a file and affect a terminal.

    Bytes of a file's name that are not UTF-8, which Python keeps as surrogates, are left out, too.
    """
    return re.sub(rf"[\t\n{_CONTROL}]+", " ", text)


def is_unicode(text: str) -> bool:
    """Return whether ``text`` can be written as UTF-8: names of files may contain other bytes, JSON lone surrogates."""
    return re.search("[\ud800-\udfff]", text) is None


def cleaned(value: Any) -> Any:
    """Return a value from a file without control characters and lone surrogates in its texts, which cannot be encoded.

    The value consists of plain containers and of numbers; tabs and line feeds stay.
    """
    if isinstance(value, str):
        return re.sub(rf"[{_CONTROL}]", "\ufffd", value)
    if isinstance(value, dict):
        return {cleaned(key): cleaned(item) for key, item in value.items()}
    return [cleaned(item) for item in value] if isinstance(value, list) else value


def suggest(unknown: str, options: Iterable[str]) -> str:
    """Return ``did you mean …? Options: …`` for a name that is not in ``options``."""
    options = sorted(options)
    close = closest(unknown, options)
    meant = f"did you mean {close}? " if close else ""
    return f"{meant}Options: {', '.join(options)}"


def size_option(height: int, width: int) -> str:
    """Return the option that makes images of a folder this size, for messages that advise it.

    >>> size_option(64, 64), size_option(48, 160)
    ('data.size=64', 'data.size=[48,160]')
    """
    return f"data.size={height}" if height == width else f"data.size=[{height},{width}]"


def check_choice(option: str, value: object, choices: tuple[object, ...]) -> None:
    """Check that ``value`` is one of ``choices``. All checks in this file raise ``ValueError``."""
    if value not in choices:
        *others, last = (repr(choice) for choice in choices)
        raise ValueError(f"{option} is {value!r}; expected {', '.join(others)} or {last}")


def check_number(
    option: str,
    value: float,
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: float = -math.inf,
    below: float = math.inf,
) -> None:
    """Check that ``value`` is finite, from ``least`` to ``most``, more than ``above`` and less than ``below``."""
    # a bool is an int for Python
    is_number = isinstance(value, SupportsFloat) and not isinstance(value, bool)
    if is_number and math.isfinite(value) and least <= value <= most and above < value < below:
        return
    bounds = []
    if above > -math.inf:
        bounds.append(f"more than {above}")
    if least > -math.inf and most < math.inf:
        bounds.append(f"{least} to {most}")
    elif least > -math.inf:
        bounds.append(f"{least} or more")
    elif most < math.inf:
        bounds.append(f"at most {most}")
    if below < math.inf:
        bounds.append(f"less than {below}")
    raise ValueError(f"{option} is {value}; expected {', '.join(bounds) or 'a finite number'}")


def check_sizes(owner: str, **sizes: int) -> None:
    """Check that sizes, such as the number of channels, are positive whole numbers."""
    for size, value in sizes.items():
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)  # also of NumPy
        if not is_whole or value < 1:
            expected = "1 or more" if is_whole else "a whole number"
            raise ValueError(f"{owner} has {size} {value!r}; expected {expected}")


def check_widths(owner: str, **widths: Sequence[int]) -> None:
    """Check that widths, such as those of layers, are lists of positive whole numbers, which may be empty."""
    for option, values in widths.items():
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise ValueError(  # noqa: TRY004
                f"{owner} has {option} {values!r}; expected a list of whole numbers, such as [64]"
            )
        for value in values:
            check_sizes(owner, **{option: value})
