"""Quantities that change during training, such as learning rates, margins and temperatures.

A schedule is a frozen function of the step. Its durations have a unit, so that the same schedule fits
every run: ``"2000 steps"``, ``"3 epochs"``, ``"1/150 run"``. ``schedule.for_run(steps_per_epoch, total_steps)``
converts them to steps when the length of the run is known.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields, replace
from fractions import Fraction
from typing import Any, Self

from capsule_lab.errors import ConfigError, check_number

Duration = str | int | float
"""A number of steps, or ``"<number> steps|epochs|run"``; the number may be a fraction such as ``1/150``."""

_LOOKED_AT = 100  # ours: steps of a run

_DURATION = re.compile(r"^\s*([0-9.eE+-]+(?:/[0-9.]+)?)\s*(steps?|epochs?|runs?)\s*$")


def duration_in_steps(duration: Duration, *, steps_per_epoch: int, total_steps: int) -> float:
    """Return ``duration`` in steps; raise ``ValueError`` if it is malformed or not positive.

    >>> duration_in_steps("1/150 run", steps_per_epoch=390, total_steps=300_000)
    2000.0
    """
    number, unit = _parse(duration)
    return float(number * {"step": 1, "epoch": steps_per_epoch, "run": total_steps}[unit])


def _parse(duration: Duration) -> tuple[Fraction, str]:
    match = _DURATION.match(duration) if isinstance(duration, str) else None
    wrong = f"duration is {duration!r}; expected a duration such as '2000 steps', '3 epochs' or '1/2 run'"
    if isinstance(duration, str) and match is None:
        raise ValueError(wrong)
    try:
        number, unit = (
            (Fraction(match[1]), match[2].removesuffix("s"))
            if match
            else (Fraction(duration), "step")
        )
    except (ValueError, ZeroDivisionError, OverflowError) as error:  # 1.2.3, 1/0, infinity
        raise ValueError(wrong) from error
    if number <= 0:
        raise ValueError(f"duration is {duration!r}; expected more than 0 steps, epochs or runs")
    return number, unit


def _is_duration(field: Field[Any]) -> bool:
    """Whether a field is a ``Duration``: a text where annotations are, as in this module."""
    return field.type in ("Duration", Duration)


_ROUNDING = 1e-9  # ours: of a step divided by a duration; more than float64 loses, less than a step of any run


@dataclass(frozen=True)
class Schedule(ABC):
    """A number that depends on the step."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if _is_duration(field):
                _parse(value)
            else:
                check_number(field.name, value)

    @abstractmethod
    def __call__(self, step: int) -> float:
        """Return the value at ``step``, counted from 0; all durations must be in steps, see ``for_run``."""

    def for_run(self, steps_per_epoch: int, total_steps: int) -> Self:
        """Return the same schedule with all durations in steps."""
        durations = {
            field.name: getattr(self, field.name) for field in fields(self) if _is_duration(field)
        }
        lengths = {"steps_per_epoch": steps_per_epoch, "total_steps": total_steps}
        return replace(
            self,
            **{
                name: duration_in_steps(duration, **lengths) for name, duration in durations.items()
            },
        )

    def _progress(self, step: int, duration: Duration) -> float:
        """Return ``step`` divided by ``duration``."""
        if isinstance(duration, float):  # as from for_run, in every step; the same number as below
            return step / duration
        number, unit = _parse(duration)
        if unit != "step":
            raise ValueError(
                f"{self} lasts {duration!r}; call for_run(steps_per_epoch, total_steps) first"
            )
        return float(step / number)

    def _completed(self, step: int, duration: Duration) -> int:
        """Return how often ``duration`` has passed; a tenth of 30 steps is 3 steps, and a little more in float64."""
        return math.floor(self._progress(step, duration) + _ROUNDING)


@dataclass(frozen=True)
class Constant(Schedule):
    """Constant ``value``."""

    value: float

    def __call__(self, step: int) -> float:
        return self.value


@dataclass(frozen=True)
class Linear(Schedule):
    """Straight line from ``start`` to ``end`` over ``duration``, then ``end``.

    >>> Linear(0.2, 0.9, 10)(5)
    0.55
    """

    start: float
    end: float
    duration: Duration

    def __call__(self, step: int) -> float:
        return self.start + (self.end - self.start) * min(self._progress(step, self.duration), 1)


@dataclass(frozen=True)
class Staircase(Schedule):
    """``start``, plus ``increment`` after each duration ``every``, up to ``limit``.

    >>> Staircase(0.2, 0.1, "10 steps", 0.9)(25)
    0.4
    """

    start: float
    increment: float
    every: Duration
    limit: float

    def __call__(self, step: int) -> float:
        value = self.start + self.increment * self._completed(step, self.every)
        return min(value, self.limit) if self.increment > 0 else max(value, self.limit)


@dataclass(frozen=True)
class SigmoidRamp(Schedule):
    """``start + rise * sigmoid(min(steepest, step / every + offset))``, an S-shaped curve.

    The margin of the official EM routing code is ``SigmoidRamp(0.2, 0.79, "50000 steps", -4, 10)``.
    """

    start: float
    rise: float
    every: Duration
    offset: float = -4.0  # official code of Hinton 2018
    steepest: float = 10.0  # official code of Hinton 2018

    def __call__(self, step: int) -> float:
        x = min(self.steepest, self._progress(step, self.every) + self.offset)
        return self.start + self.rise / (1 + math.exp(-x))


@dataclass(frozen=True)
class Exponential(Schedule):
    """``initial * rate ** (step / every)``, continuous, at least ``floor``.

    The learning rate of the official CapsNet code is ``Exponential(1e-3, 0.96, "2000 steps", 1e-6)``.

    >>> Exponential(1e-3, 0.96, "2000 steps", 1e-6)(30_000)  # 5.4e-4
    0.000542...
    """

    initial: float
    rate: float
    every: Duration
    floor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("initial", self.initial, above=0)
        check_number("rate", self.rate, above=0)
        check_number("floor", self.floor, 0, self.initial)

    def __call__(self, step: int) -> float:
        return max(self.floor, self.initial * self.rate ** self._progress(step, self.every))


@dataclass(frozen=True)
class Drops(Schedule):
    """``initial``, multiplied by ``factor`` at ``first`` and again at ``second``.

    The learning rate of He 2016, section 4.2, is ``Drops(0.1, 0.1, "1/2 run", "3/4 run")``.

    >>> [Drops(1.0, 0.5, "10 steps", "20 steps")(step) for step in (9, 10, 20)]
    [1.0, 0.5, 0.25]
    """

    initial: float
    factor: float
    first: Duration
    second: Duration

    def __call__(self, step: int) -> float:
        drops = sum(self._completed(step, duration) >= 1 for duration in (self.first, self.second))
        return self.initial * self.factor**drops


@dataclass(frozen=True)
class OneCycle(Schedule):
    """Straight line up to ``peak`` during the share ``warmup`` of ``duration``, then half a cosine down to ``end``.

    Smith and Topin 2018 (arXiv 1708.07120), with the cosine of Loshchilov and Hutter 2017 (arXiv 1608.03983).

    >>> OneCycle(1.0, 100, warmup=0.1, end=0.0)(10), round(OneCycle(1.0, 100, warmup=0.1, end=0.0)(55), 6)
    (1.0, 0.5)
    """

    peak: float
    duration: Duration
    warmup: float = 0.1  # ours: a tenth of the run
    start: float = 0.0
    end: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("warmup", self.warmup, 0, below=1)

    def __call__(self, step: int) -> float:
        progress = min(self._progress(step, self.duration), 1)
        if progress < self.warmup:
            return self.start + (self.peak - self.start) * progress / self.warmup
        falling = (progress - self.warmup) / (1 - self.warmup)
        return self.end + (self.peak - self.end) * 0.5 * (1 + math.cos(math.pi * falling))


def check_schedules(schedule: Mapping[str, Schedule | None]) -> dict[str, Schedule]:
    """Return the schedules of a run by name, without those that are ``None``.

    Raise ``ValueError`` if a value is not a schedule, or if ``learning_rate`` is missing.
    """
    for name, value in schedule.items():
        if not isinstance(value, Schedule | None):
            raise ValueError(  # noqa: TRY004
                f"schedule.{name} is {value!r}; expected a schedule, such as Constant(value), or null"
            )
    given = {name: value for name, value in schedule.items() if value is not None}
    if "learning_rate" not in given:
        raise ValueError(
            f"the schedule has {', '.join(given) or 'no entry'}; expected one named learning_rate"
        )
    return given


def check_learning_rate(rate: Schedule, total_steps: int) -> None:
    """Raise a ``ConfigError`` if the learning rate is below 0 at a step, or 0 at all, of a hundred in a run.

    ``rate`` has durations in steps, see ``Schedule.for_run``.
    """
    steps = (*range(0, total_steps, max(1, total_steps // _LOOKED_AT)), total_steps)
    values = [rate(step) for step in steps]
    for step, value in zip(steps, values, strict=True):
        if not value >= 0:
            raise ConfigError(
                f"schedule.learning_rate is {value:g} at step {step} of {total_steps}; expected 0 or more"
            )
    if not any(values):
        raise ConfigError(
            f"schedule.learning_rate is 0 at all {total_steps} steps, which trains nothing; expected more than 0"
        )
