"""Helpers for error messages: the closest name, numbers out of range, printable text."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from capsule_lab.errors import check_number, check_sizes, closest, printable
from capsule_lab.networks import CapsNet


def test_closest_finds_the_name_that_was_meant() -> None:
    options = ["trainer.max_epochs", "trainer.max_steps"]
    assert closest("trainer.max_epoch", options) == "trainer.max_epochs"
    assert closest("sgd", ["adam"]) is None


@pytest.mark.parametrize(
    ("value", "bounds", "message"),
    [
        (-1, {"least": 0}, "x is -1; expected 0 or more"),
        (2, {"least": 0, "most": 1}, "x is 2; expected 0 to 1"),
        (2, {"above": 0, "most": 1}, "x is 2; expected more than 0, at most 1"),
        (math.nan, {}, "x is nan; expected a finite number"),
        ("3", {"least": 0}, "x is 3; expected 0 or more"),
    ],
)
def test_number_out_of_range_is_refused_with_its_bounds(
    value: Any, bounds: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        check_number("x", value, **bounds)


def test_number_at_a_bound_is_accepted() -> None:
    check_number("x", 0, least=0)
    check_number("x", 1.0, least=0, most=1)


def test_printable_removes_control_characters() -> None:
    hostile = "\x1b]0;title\x07 \x9b31mred \u202edrawkcab\r\n\0"
    assert printable(hostile) == " ]0;title   31mred  drawkcab "
    harmless = "π ± 日本 [/b] \\ <b>"
    assert printable(harmless) == harmless


@pytest.mark.usefixtures("unchecked_types")
def test_numbers_of_numpy_are_sizes() -> None:
    check_sizes("a layer", channels=np.int64(3))
    network = CapsNet((1, np.int64(28), 28), np.array([3, 5]).max())
    assert network.image_shape == (1, 28, 28)
    assert network(torch.zeros(1, 1, 28, 28)).scores.shape == (1, 5)


@pytest.mark.parametrize("value", [True, False])
def test_true_and_false_are_no_numbers(value: bool) -> None:
    message = f"size is {value}; expected 0 to 2"
    with pytest.raises(ValueError, match=message):
        check_number("size", value, 0, 2)
    message = f"a layer has channels {value}; expected a whole number"
    with pytest.raises(ValueError, match=message):
        check_sizes("a layer", channels=value)
