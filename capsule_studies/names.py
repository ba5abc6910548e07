"""Names of attacks and questions in configurations and records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def name_of(options: Mapping[str, Any]) -> str:
    """Return the name of a function from its options; older records name it in another package."""
    return str(options["_target_"]).rpartition(".")[2]
