"""Arguments of a command about a table: its own, and the overrides for the runs of the table."""

from __future__ import annotations

from collections.abc import Sequence

from capsule_lab.config import quoted

SELECTION = ("rows", "columns", "seeds")
FOR_SWEEP = ("table", *SELECTION, "dry_run")
FOR_REPORT = ("table", *SELECTION, "out")


def for_hydra(arguments: Sequence[str], own: Sequence[str], prefix: str = "") -> list[str]:
    """Arguments as Hydra takes them: ``own`` ones with a prefix, overrides of runs together as the list ``overrides``.

    That list keeps them from Hydra, which would apply them to the configuration of the command. ``launcher=`` and what
    begins with ``hydra`` or a dash stay as they are; ``--dry-run`` is ``dry_run=true``.
    """
    kept, overrides = [], []
    for argument in arguments:
        key, is_pair, _ = argument.partition("=")
        key = key.lstrip("+")
        if argument == "--dry-run":
            kept.append(f"{prefix}dry_run=true")
        elif key in own:
            kept.append(f"{prefix}{argument}")
        elif not (is_pair or argument.startswith("~")) or key == "launcher" or key.startswith(("-", "hydra")):
            kept.append(argument)
        else:
            overrides.append(argument)
    return [*kept, f"{prefix}overrides=[{','.join(map(quoted, overrides))}]"] if overrides else kept
