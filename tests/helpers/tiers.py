"""Cases of a parametrised test that only ``make test-all`` runs."""

from collections.abc import Iterable
from typing import Any

import pytest


def whole_but(cases: Iterable[Any], *first: Any) -> list[Any]:
    """The cases as parameters, tuples for several names; all but ``first`` have the mark ``whole``."""

    def whole(case: Any) -> Any:
        return pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.whole
        )

    return [case if case in first else whole(case) for case in cases]
