"""Arguments of a table's commands: options of the command, and overrides for the runs of the table."""

from __future__ import annotations

import re
from datetime import timedelta

from capsule_lab.errors import ConfigError

_BUDGET = re.compile(r"(?:(?P<hours>\d+)h)?(?:(?P<minutes>\d+)m)?(?:(?P<seconds>\d+)s)?")


def budget_seconds(text: object) -> float:
    """Convert ``budget=``, such as ``9m``, ``90s`` or ``1h30m``, to seconds.

    Raise a ``ConfigError`` if it is not a time, or is zero.

    >>> budget_seconds("1h30m")
    5400.0
    """
    match = _BUDGET.fullmatch(str(text))
    parts = (
        {unit: int(number) for unit, number in match.groupdict().items() if number} if match else {}
    )
    try:
        seconds = timedelta(**parts).total_seconds()
    except OverflowError:
        seconds = 0.0
    if not seconds > 0:
        raise ConfigError(
            f"budget is {text}; expected hours, minutes and seconds, such as 9m, 90s or 1h30m"
        )
    return seconds
