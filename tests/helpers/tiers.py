"""Cases of a parametrised test that only ``make test-all`` runs, or that are run by hand."""

from collections.abc import Iterable
from typing import Any

import pytest


def whole_but(cases: Iterable[Any], *first: Any) -> list[Any]:
    """The cases as parameters, tuples for several names; all but ``first`` have the mark ``whole``."""
    return _marked_but(cases, first, pytest.mark.whole)


def slow_but(cases: Iterable[Any], *first: Any) -> list[Any]:
    """The same with the mark ``slow``."""
    return _marked_but(cases, first, pytest.mark.slow)


def _marked_but(
    cases: Iterable[Any], first: tuple[Any, ...], mark: pytest.MarkDecorator
) -> list[Any]:
    found = []
    for case in cases:
        if case not in first:
            values = case if isinstance(case, tuple) else (case,)
            case = pytest.param(*values, marks=mark)
        found.append(case)
    return found
