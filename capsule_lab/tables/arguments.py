"""Arguments of a table's commands: options of the command, and overrides for the runs of the table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta

from capsule_lab.config.declaration import Options
from capsule_lab.config.overrides import quoted
from capsule_lab.errors import ConfigError


def for_hydra(arguments: Sequence[str], options: type[Options]) -> list[str]:
    """Convert arguments for Hydra: keep the ``options`` of the command, and collect all others in ``overrides``.

    Otherwise Hydra would apply the overrides to the configuration of the command. ``launcher=`` and arguments that
    begin with ``hydra`` or a dash stay unchanged; ``--dry-run`` becomes ``dry_run=true``.
    """
    own = {*options.model_fields} - {"overrides"}
    kept, overrides = [], []
    for argument in arguments:
        key, is_pair, _ = argument.partition("=")
        key = key.lstrip("+")
        is_override = is_pair or argument.startswith("~")
        if argument == "--dry-run":
            kept.append("dry_run=true")
        elif is_override and key not in own and not key.startswith(("-", "hydra")):
            overrides.append(argument)
        else:
            kept.append(argument)
    return [*kept, f"overrides=[{','.join(map(quoted, overrides))}]"] if overrides else kept


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
