"""Wrong options end in one sentence: what arrived, what was expected."""

from __future__ import annotations


def check_choice(option: str, value: object, choices: tuple[object, ...]) -> None:
    """Whether an option is one of the few things it can be.

    Raises:
        ValueError: if not, naming them.
    """
    if value not in choices:
        *others, last = (repr(choice) for choice in choices)
        raise ValueError(f"{option} is {value!r}; expected {', '.join(others)} or {last}")
