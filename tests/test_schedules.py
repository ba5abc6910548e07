"""Schedules: values, durations and arguments, and the schedules of ``conf/schedule``."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
from hydra.utils import instantiate

from capsule_lab import Constant, Drops, Exponential, Linear, OneCycle, SigmoidRamp, Staircase
from capsule_lab.commands import compose
from capsule_lab.schedules import (
    Duration,
    Schedule,
    check_learning_rate,
    check_schedules,
    duration_in_steps,
)

CAPSNET_LEARNING_RATE = Exponential(1e-3, 0.96, "2000 steps", 1e-6)
EM_MARGIN = SigmoidRamp(0.2, 0.79, "50000 steps", -4, 10)

VALUES: list[tuple[Schedule, dict[int, float]]] = [
    (Constant(0.3), {0: 0.3, 7: 0.3, 10**6: 0.3}),
    (Linear(0.2, 0.9, 10), {0: 0.2, 5: 0.55, 10: 0.9, 11: 0.9}),
    (
        Staircase(0.2, 0.1, "10 steps", 0.9),
        {0: 0.2, 9: 0.2, 10: 0.3, 25: 0.4, 69: 0.8, 70: 0.9, 10_000: 0.9},
    ),
    (Staircase(1.0, -0.25, 1, 0.5), {0: 1.0, 1: 0.75, 2: 0.5, 3: 0.5}),
    (
        CAPSNET_LEARNING_RATE,
        {0: 1e-3, 2_000: 0.96e-3, 1_000: 1e-3 * 0.96**0.5, 339_000: 1e-6, 10**6: 1e-6},
    ),
    (Exponential(1.0, 0.5, 1), {100: 2.0**-100}),
    (
        EM_MARGIN,  # no steeper after 700,000 steps
        {
            0: 0.2 + 0.79 / (1 + math.exp(4)),
            200_000: 0.595,
            900_000: 0.2 + 0.79 / (1 + math.exp(-10)),
        },
    ),
    # half way down a cosine is the mean of peak and end
    (
        OneCycle(1.0, 100, warmup=0.1, start=0.1, end=0.2),
        {0: 0.1, 5: 0.55, 10: 1.0, 55: 0.6, 100: 0.2, 10_000: 0.2},
    ),
    (OneCycle(1.0, 100, warmup=0), {0: 1.0}),
    (Drops(1.0, 0.5, "10 steps", "20 steps"), {9: 1.0, 10: 0.5, 19: 0.5, 20: 0.25, 90: 0.25}),
]


@pytest.mark.parametrize(("schedule", "values"), VALUES, ids=lambda case: type(case).__name__)
def test_schedule_has_the_expected_values(schedule: Schedule, values: dict[int, float]) -> None:
    assert {step: schedule(step) for step in values} == pytest.approx(values, rel=1e-12)


def test_schedules_of_the_papers_have_the_published_values() -> None:
    rates = [CAPSNET_LEARNING_RATE(step) for step in (30_000, 300_000)]
    assert rates == pytest.approx([5.42e-4, 2.19e-6], rel=2e-3)
    assert CAPSNET_LEARNING_RATE(338_000) > 1e-6, "its floor comes later"
    stairs = Staircase(0.0, 1.0, "1/150 run", 1e6).for_run(steps_per_epoch=390, total_steps=300_000)
    for step in (1, 49, 98, 150):
        assert (stairs(2000 * step - 1), stairs(2000 * step)) == (step - 1, step)
    assert Staircase(0.2, 0.1, 1, 0.9)(7) == 0.9  # 0.2 + 7 * 0.1 is more in floating point


def test_stairs_and_drops_come_at_the_exact_share_of_every_run() -> None:
    """A share of a run, as a float, may be a little longer than the whole number of steps that it is."""
    for parts in range(1, 40):
        for steps in range(parts, 40 * parts, parts):
            of_run = {"steps_per_epoch": 1, "total_steps": steps}
            stairs = Staircase(0.0, 1.0, f"{1 / parts} run", 1e6).for_run(**of_run)
            share = steps // parts
            assert [stairs(part * share) for part in range(parts)] == [*range(parts)]
            assert stairs(share - 1) == 0
            drops = Drops(1.0, 0.5, f"{1 / parts} run", "1 run").for_run(**of_run)
            assert drops(share) == (0.25 if parts == 1 else 0.5)


DURATIONS: dict[str | int | float, float] = {
    2000: 2000,
    12.5: 12.5,
    "2000 steps": 2000,
    "1 step": 1,
    "2e3 steps": 2000,
    "  7steps ": 7,
    "3 epochs": 1170,
    "1/2 epoch": 195,
    "0.5 epochs": 195,
    "1 run": 300_000,
    "1/150 run": 2000,
}
WRONG_DURATIONS = [
    "",
    "steps",
    "3",
    "3 hours",
    "0 steps",
    "-1 epochs",
    "1/0 run",
    "1.2.3 steps",
    0,
    -5,
    math.inf,
]


def test_duration_is_converted_to_steps() -> None:
    for duration, steps in DURATIONS.items():
        found = duration_in_steps(duration, steps_per_epoch=390, total_steps=300_000)
        assert found == pytest.approx(steps, rel=1e-12), duration


@pytest.mark.parametrize("duration", WRONG_DURATIONS)
def test_invalid_duration_is_refused(duration: Any) -> None:
    with pytest.raises(ValueError, match="duration is"):
        duration_in_steps(duration, steps_per_epoch=1, total_steps=1)
    for schedule, _ in VALUES:
        for field in dataclasses.fields(schedule):
            if field.type == "Duration":
                with pytest.raises(ValueError, match="duration is"):
                    dataclasses.replace(schedule, **{field.name: duration})


@pytest.mark.parametrize(
    ("schedule", "step", "same"),
    [
        (Exponential(1e-3, 0.96, "1/150 run", 1e-6), 30_000, CAPSNET_LEARNING_RATE),
        (Staircase(0.2, 0.1, "1 epoch", 0.9), 800, Staircase(0.2, 0.1, 390, 0.9)),
        (Constant(0.3), 5, Constant(0.3)),
    ],
)
def test_for_run_converts_durations_to_steps(schedule: Schedule, step: int, same: Schedule) -> None:
    before = dataclasses.replace(schedule)
    once = schedule.for_run(steps_per_epoch=390, total_steps=300_000)
    assert once(step) == pytest.approx(same(step), rel=1e-12)
    assert schedule == before
    assert once.for_run(7, 7) == once


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Constant(math.nan), "value is nan; expected a finite number"),
        (lambda: Exponential(0.001, -1, "1 run"), "rate is -1; expected more than 0"),
        (lambda: Exponential(0.001, 0.9, "1 run", 0.1), "floor is 0.1; expected 0 to 0.001"),
        (lambda: OneCycle(1.0, 100, warmup=1.0), "warmup is 1.0; expected 0 or more, less than 1"),
        (
            lambda: Linear(0.0, 1.0, "3 epochs")(0),
            "Linear(start=0.0, end=1.0, duration='3 epochs') lasts '3 epochs'; ",
        ),
        (
            lambda: check_schedules({"learning_rate": None}),
            "the schedule has no entry; expected one named learning_",
        ),
        (
            lambda: check_schedules({"margin": Constant(0.9)}),
            "the schedule has margin; expected one named learning_",
        ),
        (
            lambda: check_learning_rate(Constant(0), 500),
            "schedule.learning_rate is 0 at all 500 steps, which trains nothing; expected",
        ),
        (
            lambda: check_learning_rate(Linear(0.1, -0.2, 1000), 1000),
            "schedule.learning_rate is -0.002 at step 340 of 1000; expected 0 or more",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_arguments_of_schedules_are_refused(
    build: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=r"expected|for_run") as caught:
        build()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "rate",
    [
        Staircase(0.0, 1e-3, "100 steps", 1e-2),
        Staircase(0.0, 1e-3, "3 epochs", 1e-2),
        OneCycle(1e-3, "30 epochs"),
        OneCycle(1e-3, "1 run"),
        Exponential(1e-7, 10, "100 steps"),
    ],
    ids=str,
)
def test_a_rate_that_is_above_0_in_a_part_of_the_run_is_accepted(rate: Schedule) -> None:
    schedule = check_schedules({"learning_rate": rate})
    check_learning_rate(schedule["learning_rate"].for_run(390, 12_000), 12_000)


@dataclasses.dataclass(frozen=True)
class Alternating(Schedule):
    """A schedule of a user, whose annotations are types and not texts."""

    every: Duration

    def __call__(self, step: int) -> float:
        return float(int(self._progress(step, self.every)) % 2)


def test_a_schedule_of_ones_own_has_durations() -> None:
    (field,) = dataclasses.fields(Alternating)
    assert not isinstance(field.type, str)
    alternating = Alternating("2 epochs").for_run(steps_per_epoch=10, total_steps=100)
    assert [alternating(step) for step in (0, 19, 20, 40)] == [0, 0, 1, 0]
    with pytest.raises(ValueError, match="duration is 'often'"):
        Alternating("often")


@functools.cache
def shipped(name: str, total_steps: int = 300_000) -> dict[str, Schedule]:
    """The schedules of ``schedule=<name>`` in a run of this length with 380 steps per epoch."""
    schedules = instantiate(compose("train", [f"schedule={name}"]).schedule, _convert_="all")
    return {name: schedule.for_run(380, total_steps) for name, schedule in schedules.items()}


# section 4 of the notes on EM routing: values of the official code
MARGIN = {
    0: 0.2142,
    50_000: 0.2375,
    100_000: 0.2942,
    150_000: 0.4125,
    200_000: 0.595,
    250_000: 0.7775,
    300_000: 0.8958,
    400_000: 0.976,
    500_000: 0.988,
    700_000: 0.98996,
    2_000_000: 0.98996,
}


def sooner(values: dict[int, float], times: int) -> dict[int, float]:
    """The first 300,000 steps in a run that is so many times as short."""
    return {step // times: value for step, value in values.items() if step <= 300_000}


@pytest.mark.parametrize(
    ("name", "schedule", "total_steps", "values", "bound"),
    [
        ("hinton2018", "margin", 300_000, MARGIN, 3e-4),
        (
            "hinton2018",
            "learning_rate",
            300000,
            {0: 3e-3, 100_000: 2.45e-3, 500_000: 1.08e-3, 2_000_000: 5.1e-5},
            2e-5,
        ),
        ("hinton2018_scaled", "margin", 300, sooner(MARGIN, 1000), 6e-5),
        ("hinton2018_scaled", "margin", 6_000, sooner(MARGIN, 50), 6e-5),
        ("hinton2018_scaled", "learning_rate", 5_000, {0: 3e-3, 5_000: 3e-5}, 3e-7),
        ("em_linear_margin", "learning_rate", 5_000, {0: 3e-3, 5_000: 3e-5}, 3e-7),
        (
            "cosine_warmup",
            "learning_rate",
            1_000,
            {0: 3e-5, 25: 5.15e-4, 50: 1e-3, 525: 5e-4, 1_000: 0.0},
            1e-9,
        ),
        ("em_linear_margin", "margin", 5_000, {0: 0.2, 2_500: 0.55, 5_000: 0.9}, 1e-9),
    ],
)
def test_shipped_schedule_has_the_expected_values(
    name: str, schedule: str, total_steps: int, values: dict[int, float], bound: float
) -> None:
    value_at = shipped(name, total_steps)[schedule]
    assert {step: value_at(step) for step in values} == pytest.approx(values, rel=0, abs=bound)
