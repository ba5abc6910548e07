"""The length of a run in optimizer steps."""

from __future__ import annotations

from typing import Any

import pytest

from capsule_lab.lit.training_length import training_length


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"max_epochs": 3}, (4, 12)),
        ({"max_epochs": 0}, (4, 4)),  # Lightning trains none, schedules need a length
        ({"max_epochs": 2, "max_steps": [6]}, (4, 6)),
        ({"max_epochs": 2, "max_steps": [10]}, (4, 8)),
        ({"max_steps": [6]}, (4, 6)),
        ({"max_steps": [-1, 6]}, (4, 6)),
        ({"max_steps": [5, 6]}, (4, 5)),
        ({"max_epochs": 2, "max_steps": [-1, -1]}, (4, 8)),
        ({"max_epochs": 2, "accumulate": 2}, (2, 4)),
        ({"max_epochs": 2, "accumulate": 3}, (2, 4)),
        ({"max_epochs": 2, "accumulate": 5}, (1, 2)),
    ],
    ids=str,
)
def test_steps_per_epoch_and_in_all(arguments: dict[str, Any], expected: tuple[int, int]) -> None:
    assert training_length(4, **arguments) == expected


@pytest.mark.parametrize("arguments", [{}, {"max_epochs": -1}, {"max_steps": [-1, -1]}], ids=str)
def test_run_without_end_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no end: .*trainer\.max_epochs or trainer\.max_steps"):
        training_length(4, **arguments)
