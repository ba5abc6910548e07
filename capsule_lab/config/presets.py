"""What the head of a preset says about the paper that it comes from.

One sentence of the comments at the head of each model, routing, loss, schedule and experiment says whether it is as in
the paper: ``As in the paper …``, ``As in the authors' code …``, ``Differs from the paper: <what>; the paper's own:
<group=option, or: not here>``, or ``From no capsule paper: <what it is>``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile

from capsule_lab.config.folders import head, option_files

GROUPS = ("model", "routing", "experiment")
"""Groups whose differences are shown with a run. A changed loss or schedule is among the options of the run."""

_SENTENCE_END = re.compile(r"(?<!\b[A-Z])\.\s+(?=[A-Z])")  # not at J. Hui
_STARTS = ("As in the ", "Differs from ", "From no capsule paper")


def sentences(comments: Sequence[str]) -> list[str]:
    """Return the sentences of the comments at the head of a file, up to an indented or empty line."""
    text = " ".join(takewhile(lambda line: line and not line.startswith(" "), comments))
    return [sentence.removesuffix(".") for sentence in _SENTENCE_END.split(text)]


def relation(comments: Sequence[str]) -> str:
    """Return the sentence that relates a preset to its paper, or an empty text."""
    found = [each for each in sentences(comments) if each.startswith(_STARTS)]
    return found[0] if found else ""


def differs(comments: Sequence[str]) -> str:
    """Return the sentence if it states a difference, in lower case, or an empty text."""
    sentence = relation(comments)
    return f"d{sentence[1:]}" if sentence.startswith("Differs") else ""


def differences(chosen: Mapping[str, object]) -> list[str]:
    """Return a line for each chosen option of ``GROUPS`` that differs from its paper: what, and the paper's own."""
    lines = []
    for group in GROUPS:
        option = chosen.get(group)
        file = option_files(group).get(str(option))
        if file is not None and (difference := differs(head(file))):
            lines.append(f"{group}={option} {difference}")
    return lines


def differences_of_overrides(overrides: Sequence[str]) -> list[str]:
    """Return the lines of ``differences`` for the options that overrides such as ``model=em_caps`` choose."""
    chosen: dict[str, object] = {}
    for override in overrides:
        group, _, option = override.partition("=")
        chosen[group] = option
    return differences(chosen)
