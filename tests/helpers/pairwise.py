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
    missing: dict[Any, None] = {}  # pairs of (switch, value), in the order in which they are added
    for one, other in combinations(switches, 2):
        for first, second in product(switches[one], switches[other]):
            missing[(one, first), (other, second)] = None

    def pairs(row: Mapping[str, Any]) -> Iterable[Any]:
        values = [(name, row[name]) for name in switches if name in row]
        return combinations(values, 2)

    def new_pairs(row: Mapping[str, Any]) -> int:
        return sum(pair in missing for pair in pairs(row))

    def add(row: dict[str, Any]) -> None:
        absent = sorted(switches.keys() - row.keys())
        most_values_first = sorted(absent, key=lambda name: -len(switches[name]))
        for name in most_values_first:
            values = switches[name]
            counts = [new_pairs({**row, name: value}) for value in values]
            best = counts.index(max(counts))
            row[name] = values[best]
        for pair in pairs(row):
            missing.pop(pair, None)
        rows.append(row)

    rows: list[dict[str, Any]] = []
    for row in given:
        add(dict(row))
    while missing:
        add(dict(next(iter(missing))))
    return rows
