"""Words of a command that is about a table: its own, and those for the training runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import unquote

OWN = ("table", "rows", "columns", "seeds")


def for_hydra(words: Sequence[str], own: Sequence[str], prefix: str = "") -> list[str]:
    """Words as Hydra takes them: ``own`` ones with a prefix, the others together as the list ``overrides``.

    ``launcher=`` and what begins with ``hydra`` or a dash stay as they are; ``--dry-run`` is ``dry_run=true``.
    """
    kept, for_runs = [], []
    for word in words:
        key, is_pair, _ = word.partition("=")
        key = key.lstrip("+")
        if word == "--dry-run":
            kept.append(f"{prefix}dry_run=true")
        elif key in own:
            kept.append(f"{prefix}{word}")
        elif not (is_pair or word.startswith("~")) or key == "launcher" or key.startswith(("-", "hydra")):
            kept.append(word)
        else:
            for_runs.append(word)
    if not for_runs:
        return kept
    hidden = [word.replace("%", "%25").replace("$", "%24") for word in for_runs]
    return [*kept, f"{prefix}overrides={json.dumps(hidden, ensure_ascii=False)}"]


def of_runs(overrides: Sequence[str]) -> list[str]:
    """The words for runs, from the list that ``for_hydra`` made of them.

    There they are in the form of addresses, %24 for $, as ${…} is to be resolved in the configuration of each run and
    not in that of the command.
    """
    return [unquote(word) for word in overrides]
