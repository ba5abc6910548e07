"""Cases of a parametrised test that only ``make test-all`` runs."""

from collections.abc import Iterable
from typing import Any

import pytest


def whole_but(cases: Iterable[Any], *first: Any) -> list[Any]:
    """The cases as parameters, tuples for several names; all but ``first`` have the mark ``whole``."""

    found = []
    for case in cases:
        if case not in first:
            values = case if isinstance(case, tuple) else (case,)
            case = pytest.param(*values, marks=pytest.mark.whole)
        found.append(case)
    return found
