"""Names of attacks and questions in configurations and records, and of the numbers that they measure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

Value = TypeVar("Value")


def name_of(options: Mapping[str, Any]) -> str:
    """Return the name of a function from its options; older records name it in another package."""
    return str(options["_target_"]).rpartition(".")[2]


def prefixed(prefix: str, numbers: Mapping[str, Value]) -> dict[str, Value]:
    """Return the numbers as ``<prefix>/<name>``.

    >>> prefixed("digits", {"entropy": 0.5})
    {'digits/entropy': 0.5}
    """
    return {f"{prefix}/{name}": value for name, value in numbers.items()}
