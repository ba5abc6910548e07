from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
from hydra.utils import instantiate

from capsule_lab.config.compose import compose
from capsule_lab.schedules import (
    Constant,
    Drops,
    Exponential,
    Linear,
    OneCycle,
    Schedule,
    SigmoidRamp,
    Staircase,
    check_schedules,
    duration_in_steps,
)

CAPSNET_LEARNING_RATE = Exponential(1e-3, 0.96, "2000 steps", 1e-6)


@pytest.mark.parametrize(
    ("step", "value"),
    [(0, 1e-3), (2_000, 0.96e-3), (1_000, 1e-3 * 0.96**0.5), (30_000, 5.42e-4), (300_000, 2.19e-6)],
)
def test_landmarks_of_the_official_learning_rate(step: int, value: float) -> None:
    assert CAPSNET_LEARNING_RATE(step) == pytest.approx(value, rel=2e-3)


def test_official_learning_rate_reaches_its_floor_at_338k_steps() -> None:
    assert CAPSNET_LEARNING_RATE(338_000) > 1e-6
    assert CAPSNET_LEARNING_RATE(339_000) == 1e-6
    assert CAPSNET_LEARNING_RATE(1_000_000) == 1e-6


def test_exponential_without_a_floor_goes_to_zero() -> None:
    assert 0 < Exponential(1.0, 0.5, 1)(100) < 1e-30


@pytest.mark.parametrize(
    ("step", "value"), [(0, 0.2), (9, 0.2), (10, 0.3), (25, 0.4), (69, 0.8), (70, 0.9), (71, 0.9), (10_000, 0.9)]
)
def test_staircase_rises_to_its_limit(step: int, value: float) -> None:
    assert Staircase(0.2, 0.1, "10 steps", 0.9)(step) == pytest.approx(value)


@pytest.mark.parametrize(("step", "value"), [(0, 1.0), (1, 0.75), (2, 0.5), (3, 0.5)])
def test_staircase_falls_to_its_limit(step: int, value: float) -> None:
    assert Staircase(1.0, -0.25, 1, 0.5)(step) == value


def test_staircase_never_passes_its_limit() -> None:
    assert Staircase(0.2, 0.1, 1, 0.9)(7) == 0.9  # 0.2 + 7 * 0.1 is more in floating point


@pytest.mark.parametrize(("step", "value"), [(0, 0.2), (5, 0.55), (10, 0.9), (11, 0.9)])
def test_linear(step: int, value: float) -> None:
    assert Linear(0.2, 0.9, 10)(step) == pytest.approx(value)


@pytest.mark.parametrize(
    ("step", "value"),
    [
        (0, 0.2 + 0.79 / (1 + math.exp(4))),
        (200_000, 0.2 + 0.79 / 2),
        (700_000, 0.2 + 0.79 / (1 + math.exp(-10))),
        (900_000, 0.2 + 0.79 / (1 + math.exp(-10))),  # no steeper
    ],
)
def test_margin_of_the_official_em_routing(step: int, value: float) -> None:
    assert SigmoidRamp(0.2, 0.79, "50000 steps", -4, 10)(step) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("step", "value"), [(0, 0.1), (5, 0.55), (10, 1.0), (55, 0.6), (100, 0.2), (101, 0.2), (10_000, 0.2)]
)
def test_one_cycle(step: int, value: float) -> None:
    """Half way down a cosine is the mean of peak and end."""
    assert OneCycle(1.0, 100, warmup=0.1, start=0.1, end=0.2)(step) == pytest.approx(value, rel=1e-12)


def test_one_cycle_without_warm_up_begins_at_its_peak() -> None:
    assert OneCycle(1.0, 100, warmup=0)(0) == 1


def test_learning_rate_that_is_0_at_both_ends_trains_in_the_middle() -> None:
    check_schedules({"learning_rate": OneCycle(1.0, "1 run")})


@pytest.mark.parametrize("warmup", [-0.1, 1.0])
def test_warm_up_that_leaves_nothing(warmup: float) -> None:
    with pytest.raises(ValueError, match=f"warmup is {warmup}; expected 0 or more, less than 1"):
        OneCycle(1.0, 100, warmup=warmup)


@pytest.mark.parametrize("step", [0, 7, 10**6])
def test_constant(step: int) -> None:
    assert Constant(0.3)(step) == 0.3


@pytest.mark.parametrize(
    ("schedule", "changed"),
    [
        (Constant(0.3), {"value": 0.4}),
        (Linear(0.2, 0.9, 10), {"start": 0.1}),
        (Linear(0.2, 0.9, 10), {"end": 0.8}),
        (Linear(0.2, 0.9, 10), {"duration": 20}),
        (Staircase(0.2, 0.1, 2, 0.5), {"start": 0.1}),
        (Staircase(0.2, 0.1, 2, 0.5), {"increment": 0.05}),
        (Staircase(0.2, 0.1, 2, 0.5), {"every": 4}),
        (Staircase(0.2, 0.1, 2, 0.5), {"limit": 0.35}),
        (SigmoidRamp(0.2, 0.79, 2), {"start": 0.1}),
        (SigmoidRamp(0.2, 0.79, 2), {"rise": 0.7}),
        (SigmoidRamp(0.2, 0.79, 2), {"every": 3}),
        (SigmoidRamp(0.2, 0.79, 2), {"offset": -3.0}),
        (SigmoidRamp(0.2, 0.79, 2), {"steepest": -2.0}),
        (Exponential(1.0, 0.5, 2), {"initial": 2.0}),
        (Exponential(1.0, 0.5, 2), {"rate": 0.6}),
        (Exponential(1.0, 0.5, 2), {"every": 3}),
        (Exponential(1.0, 0.5, 2), {"floor": 0.9}),
        (Drops(1.0, 0.5, 2, 3), {"initial": 2.0}),
        (Drops(1.0, 0.5, 2, 3), {"factor": 0.6}),
        (Drops(1.0, 0.5, 2, 3), {"first": 6}),
        (Drops(1.0, 0.5, 2, 3), {"second": 6}),
    ],
)
def test_every_argument_does_something(schedule: Schedule, changed: dict[str, Any]) -> None:
    assert dataclasses.replace(schedule, **changed)(5) != schedule(5)


# ---------------------------------------------------------------------------------------------- durations


@pytest.mark.parametrize(
    ("duration", "steps"),
    [
        (2000, 2000),
        (12.5, 12.5),
        ("2000 steps", 2000),
        ("1 step", 1),
        ("3 epochs", 1170),
        ("1 epoch", 390),
        ("1/2 epoch", 195),
        ("0.5 epochs", 195),
        ("1 run", 300_000),
        ("1/150 run", 2000),
        ("2e3 steps", 2000),
        ("  7steps ", 7),
    ],
)
def test_duration_in_steps(duration: str | int | float, steps: float) -> None:
    assert duration_in_steps(duration, steps_per_epoch=390, total_steps=300_000) == pytest.approx(steps, rel=1e-12)


WRONG_DURATIONS = [
    *("", "steps", "3", "3 hours", "three steps", "0 steps", "-1 epochs", "1/0 run", "--3 steps", "1.2.3 steps"),
    *(0, -5, math.inf, math.nan),
]


@pytest.mark.parametrize("duration", WRONG_DURATIONS)
def test_wrong_duration_is_named(duration: Any) -> None:
    with pytest.raises(ValueError, match="duration is"):
        duration_in_steps(duration, steps_per_epoch=1, total_steps=1)


@pytest.mark.parametrize("duration", WRONG_DURATIONS)
@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(lambda duration: Linear(0.0, 1.0, duration), id="Linear"),
        pytest.param(lambda duration: Staircase(0.0, 0.1, duration, 1.0), id="Staircase"),
        pytest.param(lambda duration: SigmoidRamp(0.0, 1.0, duration), id="SigmoidRamp"),
        pytest.param(lambda duration: Exponential(1.0, 0.5, duration), id="Exponential"),
        pytest.param(lambda duration: Drops(1.0, 0.5, duration, 2), id="Drops"),
    ],
)
def test_wrong_duration_is_refused_at_construction(schedule: Any, duration: Any) -> None:
    with pytest.raises(ValueError, match="duration is"):
        schedule(duration)


# ------------------------------------------------------------------------------------------------ for_run


@pytest.mark.parametrize(
    ("schedule", "step", "same"),
    [
        (Exponential(1e-3, 0.96, "1/150 run", 1e-6), 30_000, CAPSNET_LEARNING_RATE),
        (Exponential(1e-3, 0.96, "5 epochs", 1e-6), 30_000, Exponential(1e-3, 0.96, 1950, 1e-6)),
        (Linear(0.2, 0.9, "1/2 run"), 75_000, Linear(0.2, 0.9, 150_000)),
        (Staircase(0.2, 0.1, "1 epoch", 0.9), 800, Staircase(0.2, 0.1, 390, 0.9)),
        (SigmoidRamp(0.2, 0.79, "1/6 run"), 200_000, SigmoidRamp(0.2, 0.79, 50_000)),
        (Constant(0.3), 5, Constant(0.3)),
    ],
)
def test_for_run_turns_durations_into_steps(schedule: Schedule, step: int, same: Schedule) -> None:
    assert schedule.for_run(steps_per_epoch=390, total_steps=300_000)(step) == pytest.approx(same(step), rel=1e-12)


@pytest.mark.parametrize("stairs", [1, 2, 49, 98, 149, 150])
def test_a_fraction_of_a_run_that_is_a_whole_number_of_steps_is_exactly_that(stairs: int) -> None:
    schedule = Staircase(0.0, 1.0, "1/150 run", 1e6).for_run(steps_per_epoch=390, total_steps=300_000)
    assert schedule.every == 2000
    assert [schedule(2000 * stairs - 1), schedule(2000 * stairs)] == [stairs - 1, stairs]


def test_for_run_leaves_the_schedule_as_it_was() -> None:
    schedule = Linear(0.0, 1.0, "1 run")
    schedule.for_run(10, 100)
    assert schedule == Linear(0.0, 1.0, "1 run")


def test_for_run_twice_is_for_run_once() -> None:
    once = Linear(0.0, 1.0, "1 run").for_run(10, 100)
    assert once.for_run(7, 7) == once


@pytest.mark.parametrize("duration", ["3 epochs", "1/2 run"])
def test_a_schedule_that_does_not_know_its_run_says_so(duration: str) -> None:
    with pytest.raises(ValueError, match="for_run"):
        Linear(0.0, 1.0, duration)(0)


def test_schedules_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CAPSNET_LEARNING_RATE.initial = 1.0


def test_schedules_compare_by_value() -> None:
    assert Exponential(1e-3, 0.96, "2000 steps", 1e-6) == CAPSNET_LEARNING_RATE


# ----------------------------------------------------------------------------------------------- conf/schedule


def shipped(name: str, steps_per_epoch: int = 380, total_steps: int = 300_000) -> dict[str, Schedule]:
    """What ``schedule=<name>`` gives in a run of this length."""
    schedules = instantiate(compose("train", [f"schedule={name}"]).schedule, _convert_="all")
    return {name: schedule.for_run(steps_per_epoch, total_steps) for name, schedule in schedules.items()}


# section 4 of the notes on EM routing: values of the official code
MARGIN = [
    *((0, 0.2142), (50_000, 0.2375), (100_000, 0.2942), (150_000, 0.4125), (200_000, 0.595), (250_000, 0.7775)),
    *((300_000, 0.8958), (400_000, 0.976), (500_000, 0.988), (700_000, 0.98996), (2_000_000, 0.98996)),
]


@pytest.mark.parametrize(("step", "margin"), MARGIN)
def test_margin_of_hinton2018(step: int, margin: float) -> None:
    assert shipped("hinton2018")["margin"](step) == pytest.approx(margin, abs=3e-4)


@pytest.mark.parametrize(
    ("step", "rate"),
    [(0, 3e-3), (100_000, 2.45e-3), (200_000, 1.99e-3), (500_000, 1.08e-3), (1_000_000, 3.9e-4), (2_000_000, 5.1e-5)],
)
def test_learning_rate_of_hinton2018(step: int, rate: float) -> None:
    assert shipped("hinton2018")["learning_rate"](step) == pytest.approx(rate, rel=1e-2)


@pytest.mark.parametrize("total_steps", [300, 6_000, 300_000])
@pytest.mark.parametrize(("step", "margin"), MARGIN[:7])
def test_scaled_margin_is_that_of_the_first_300_000_steps(total_steps: int, step: int, margin: float) -> None:
    scaled = shipped("hinton2018_scaled", total_steps=total_steps)["margin"]
    assert scaled(step * total_steps // 300_000) == pytest.approx(margin, abs=6e-5)


@pytest.mark.parametrize("name", ["hinton2018_scaled", "em_linear_margin", "em_margin_per_epoch"])
def test_learning_rate_of_a_run_of_any_length_falls_from_3e_3_to_a_hundredth(name: str) -> None:
    rate = shipped(name, total_steps=5_000)["learning_rate"]
    assert [rate(0), rate(5_000)] == pytest.approx([3e-3, 3e-5], rel=1e-2)


@pytest.mark.parametrize(
    ("step", "rate"), [(0, 3e-5), (25, 5.15e-4), (50, 1e-3), (525, 5e-4), (1_000, 0.0), (2_000, 0.0)]
)
def test_cosine_after_a_warm_up(step: int, rate: float) -> None:
    found = shipped("cosine_warmup", total_steps=1_000)["learning_rate"](step)
    assert found == pytest.approx(rate, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(("step", "iterations"), [(0, 1), (299, 1), (300, 2), (600, 3), (900, 3)])
def test_rising_iterations(step: int, iterations: int) -> None:
    assert shipped("rising_iterations", total_steps=900)["routing_iterations"](step) == iterations


@pytest.mark.parametrize(("step", "temperature"), [(0, 10), (250, 10**0.5), (500, 1), (1_000, 1)])
def test_falling_temperature(step: int, temperature: float) -> None:
    found = shipped("falling_temperature", total_steps=1_000)["routing_temperature"](step)
    assert found == pytest.approx(temperature)


@pytest.mark.parametrize(("step", "margin"), [(0, 0.2), (2_500, 0.55), (5_000, 0.9)])
def test_linear_margin(step: int, margin: float) -> None:
    assert shipped("em_linear_margin", total_steps=5_000)["margin"](step) == pytest.approx(margin)


@pytest.mark.parametrize(("step", "margin"), [(0, 0.2), (379, 0.2), (380, 0.3), (7 * 380, 0.9), (5_000, 0.9)])
def test_margin_per_epoch(step: int, margin: float) -> None:
    assert shipped("em_margin_per_epoch")["margin"](step) == pytest.approx(margin)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Constant(math.nan), "value is nan; expected a finite number"),
        (lambda: Exponential(-0.001, 0.9, "1 run"), "initial is -0.001; expected more than 0"),
        (lambda: Exponential(0.001, -1, "1 run"), "rate is -1; expected more than 0"),
        (lambda: Exponential(0.001, 0.9, "1 run", 0.1), "floor is 0.1; expected 0 to 0.001"),
        (lambda: SigmoidRamp(0.2, 0.7, 10, offset=-1e9), "offset is -1000000000.0; expected -700 or more"),
        (
            lambda: check_schedules({"learning_rate": Constant(0)}),
            "schedule.learning_rate is 0 from start to end, ",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_numbers_that_are_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        build()
    assert str(caught.value).startswith(message)
