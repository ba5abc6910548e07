"""Helpers for error messages: the closest name, numbers out of range, printable text."""

import math
from typing import Any

import pytest

from capsule_lab.errors import check_number, check_sizes, closest, printable


def test_closest_finds_the_name_that_was_meant() -> None:
    options = ["trainer.max_epochs", "trainer.max_steps"]
    assert closest("trainer.max_epoch", options) == "trainer.max_epochs"
    assert closest("sgd", ["adam"]) is None


def test_number_out_of_range_is_refused_with_its_bounds() -> None:
    wrong: list[tuple[Any, dict[str, float], str]] = [
        (-1, {"least": 0}, "x is -1; expected 0 or more"),
        (2, {"least": 0, "most": 1}, "x is 2; expected 0 to 1"),
        (2, {"above": 0, "most": 1}, "x is 2; expected more than 0, at most 1"),
        (math.nan, {}, "x is nan; expected a finite number"),
        ("3", {"least": 0}, "x is 3; expected 0 or more"),
    ]
    for value, bounds, message in wrong:
        with pytest.raises(ValueError, match=f"^{message}$"):
            check_number("x", value, **bounds)
    check_number("x", 0, least=0)
    check_number("x", 1.0, least=0, most=1)


def test_printable_removes_control_characters() -> None:
    hostile = "\x1b]0;title\x07 \x9b31mred \u202edrawkcab\r\n\0"
    assert printable(hostile) == " ]0;title   31mred  drawkcab "
    assert printable("π ± 日本 [/b] \\ <b>") == "π ± 日本 [/b] \\ <b>"


@pytest.mark.parametrize("value", [True, False])
def test_true_and_false_are_no_numbers(value: bool) -> None:
    with pytest.raises(ValueError, match=f"size is {value}; expected 0 to 2"):
        check_number("size", value, 0, 2)
    with pytest.raises(ValueError, match=f"a layer has channels {value}; expected a whole number"):
        check_sizes("a layer", channels=value)
