"""Reads YAML files from other people: plain values only.

Tags create objects, interpolations read the environment, and aliases of aliases multiply without end.
"""

from __future__ import annotations

from typing import Any

import yaml
from omegaconf import OmegaConf

from capsule_lab.errors import one_line

_LARGEST = 200_000  # ours: characters, aliases replaced by what they stand for; our tables have at most 20 thousand

_DEEPEST = 50  # ours: levels; PyYAML's time grows with the square of their number


def parse(text: str) -> Any:
    """Return the content in plain containers, read as Hydra reads its files: ``1e-3`` is a number.

    Raises:
        ValueError: with a message of one line, if it is not YAML, is too large, or has a tag, ``${…}`` or an alias of
            its own part.
    """
    try:
        _check_size(len(text))
        _check_events(text)
        return OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except Exception as error:  # PyYAML and OmegaConf raise many types of errors
        raise ValueError(one_line(error)[:200] or type(error).__name__) from error


def _check_events(text: str) -> None:
    """Check scalars, and count characters in the same way as if every alias were written out."""
    open_anchors: list[str | None] = []
    open_sizes = [0]
    sizes: dict[str, int] = {}
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            open_sizes[-1] += _size_of_alias(event.anchor, sizes)
        elif isinstance(event, yaml.ScalarEvent):
            _check_scalar(event.value)
            size = len(event.value) + 1
            open_sizes[-1] += size
            sizes |= {anchor: size} if anchor else {}
        elif isinstance(event, yaml.CollectionStartEvent):
            open_anchors.append(anchor)
            open_sizes.append(1)
            if len(open_anchors) > _DEEPEST:
                raise ValueError(f"it is nested more than {_DEEPEST} levels deep; expected a few")
        elif isinstance(event, yaml.CollectionEndEvent):
            size = open_sizes.pop()
            anchor = open_anchors.pop()
            open_sizes[-1] += size
            sizes |= {anchor: size} if anchor else {}
        if tag := getattr(event, "tag", None):
            raise ValueError(
                f"line {event.start_mark.line + 1} has the tag {tag[:80]}; expected a value without a tag"
            )
        _check_size(open_sizes[-1])


def _size_of_alias(anchor: str, sizes: dict[str, int]) -> int:
    if anchor not in sizes:
        raise ValueError(
            f"the alias *{anchor[:40]} stands for nothing above, or for what contains it; expected a value"
        )
    return sizes[anchor]


def _check_size(characters: int) -> None:
    if characters > _LARGEST:
        raise ValueError(
            f"it has {characters} characters, with its aliases written out; expected at most {_LARGEST}"
        )


def _check_scalar(value: str) -> None:
    if "${" in value:
        raise ValueError(
            f"it contains {value[:80]!r}; expected text without ${{…}}, which depends on the machine"
        )
