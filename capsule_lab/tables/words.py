"""Words of a command that is about a table: its own, and those for the training runs."""

from __future__ import annotations

import json
from collections.abc import Sequence

OWN = ("table", "rows", "columns", "seeds")


def for_hydra(words: Sequence[str], own: Sequence[str], prefix: str = "") -> list[str]:
    """Words as Hydra takes them: ``own`` ones with a prefix, the others together as the list ``overrides``.

    ``launcher=`` and what begins with ``hydra`` or a dash stay as they are; ``--dry-run`` is ``dry_run=true``.
    """
    kept, for_runs = [], []
    for word in words:
        key = word.partition("=")[0].lstrip("+")
        if word == "--dry-run":
            kept.append(f"{prefix}dry_run=true")
        elif key in own:
            kept.append(f"{prefix}{word}")
        elif word.startswith("-") or "=" not in word or key == "launcher" or key.startswith("hydra"):
            kept.append(word)
        else:
            for_runs.append(word)
    return [*kept, f"{prefix}overrides={json.dumps(for_runs, ensure_ascii=False)}"] if for_runs else kept
