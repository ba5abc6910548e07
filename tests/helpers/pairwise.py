"""Few combinations of switches that contain every pair of values of two of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any


def pairwise(switches: Mapping[str, Sequence[Any]], given: Iterable[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """Combinations in which every two values of different switches occur together at least once.

    Greedy, and the same in every run.

    Args:
        switches: the values of each.
        given: combinations that come first; switches that they leave open are set, other names are kept.

    >>> for row in pairwise({"a": [1, 2], "b": [1, 2], "c": [1, 2]}):
    ...     print(row)
    {'a': 1, 'b': 1, 'c': 1}
    {'a': 1, 'b': 2, 'c': 2}
    {'a': 2, 'b': 1, 'c': 2}
    {'a': 2, 'b': 2, 'c': 1}
    """
    missing = dict.fromkeys(pair for pair in _all_pairs(switches))
    rows = []

    def add(row: dict[str, Any]) -> None:
        for name in sorted(switches.keys() - row.keys(), key=lambda name: (-len(switches[name]), name)):
            row[name] = max(
                switches[name], key=lambda value: sum(pair in missing for pair in _pairs(row, name, value, switches))
            )
        for one, other in combinations([name for name in switches if name in row], 2):
            missing.pop(((one, row[one]), (other, row[other])), None)
        rows.append(row)

    for row in given:
        add(dict(row))
    while missing:
        add(dict(next(iter(missing))))
    return rows


def _all_pairs(switches: Mapping[str, Sequence[Any]]) -> Iterable[Any]:
    for one, other in combinations(switches, 2):
        for value in switches[one]:
            for second in switches[other]:
                yield (one, value), (other, second)


def _pairs(row: Mapping[str, Any], name: str, value: Any, switches: Mapping[str, Sequence[Any]]) -> Iterable[Any]:
    """Pairs of ``name=value`` with what is in the row, in the order of the switches."""
    order = list(switches)
    for other in row:
        if other in switches:
            pair = (name, value), (other, row[other])
            yield pair if order.index(name) < order.index(other) else pair[::-1]
