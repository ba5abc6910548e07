"""A small set of combinations of switches that contains every pair of values of two switches."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any


def pairwise(
    switches: Mapping[str, Sequence[Any]], given: Iterable[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Combinations in which every two values of different switches occur together at least once.

    Greedy, and the same in every run.

    Args:
        switches: the values of each.
        given: first combinations; missing switches are added to them, and other names are kept.

    >>> for row in pairwise({"a": [1, 2], "b": [1, 2], "c": [1, 2]}):
    ...     print(row)
    {'a': 1, 'b': 1, 'c': 1}
    {'a': 1, 'b': 2, 'c': 2}
    {'a': 2, 'b': 1, 'c': 2}
    {'a': 2, 'b': 2, 'c': 1}
    """
    missing = dict.fromkeys(
        ((one, first), (other, second))
        for one, other in combinations(switches, 2)
        for first, second in product(switches[one], switches[other])
    )

    def pairs(row: Mapping[str, Any]) -> Iterable[Any]:
        return combinations([(name, row[name]) for name in switches if name in row], 2)

    def add(row: dict[str, Any]) -> None:
        for name in sorted(
            switches.keys() - row.keys(), key=lambda name: (-len(switches[name]), name)
        ):
            row[name] = max(
                switches[name],
                key=lambda one: sum(pair in missing for pair in pairs({**row, name: one})),
            )
        for pair in pairs(row):
            missing.pop(pair, None)
        rows.append(row)

    rows: list[dict[str, Any]] = []
    for row in given:
        add(dict(row))
    while missing:
        add(dict(next(iter(missing))))
    return rows
