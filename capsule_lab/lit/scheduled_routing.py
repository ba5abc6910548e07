"""Options of routings that change during training, such as the number of iterations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor, nn

from capsule_lab.errors import check_number
from capsule_lab.routing import AbstractRouting
from capsule_lab.schedules import Schedule

T = TypeVar("T")

_PREFIX = "routing_"


class ScheduledRouting:
    """Sets options of all routings in a network: the schedule ``routing_iterations`` sets ``iterations``.

    ``AbstractRouting.scheduled`` lists the options of a routing. Values of integer options are rounded.

    Attributes:
        names: names of the schedules that begin with ``routing_``; the others are ignored.
    """

    def __init__(self, network: nn.Module, schedule: Mapping[str, Schedule]) -> None:
        self.names = [name for name in schedule if name.startswith(_PREFIX)]
        self._options: list[_Option] = []
        routings = [module for module in network.modules() if isinstance(module, AbstractRouting)]
        for name in self.names:
            if not routings:
                raise ValueError(
                    f"schedule.{name} is set, but {type(network).__name__} does not route; expected null"
                )
            for routing in routings:
                _check(name, schedule[name], routing)
                self._options.append(_Option(routing, name))

    def whole_numbers(self, values: Mapping[str, float]) -> tuple[int, ...]:
        """Return the values of integer options."""
        return tuple(round(values[option.schedule]) for option in self._options if option.is_whole)

    def real_numbers(self, values: Mapping[str, T]) -> dict[str, T]:
        """Return the entries of the other options."""
        names = [option.schedule for option in self._options if not option.is_whole]
        return {name: values[name] for name in names}

    def set(self, values: Mapping[str, float | Tensor]) -> None:
        """Set every option to its value in ``values``, by the schedule's name, or else to the configured one."""
        for option in self._options:
            option.set(values.get(option.schedule, option.configured))


class _Option:
    """An option of one routing, and the name of the schedule that sets it."""

    def __init__(self, routing: AbstractRouting, schedule: str) -> None:
        self.routing = routing
        self.schedule = schedule
        self.name = schedule.removeprefix(_PREFIX)
        self.is_whole = routing.scheduled[self.name] is int
        self.configured = routing.scheduled_options()[self.name]

    def set(self, value: float | Tensor) -> None:
        if self.is_whole:
            value = round(float(value))
        self.routing.scheduled_options()[self.name] = value


def _check(name: str, schedule: Schedule, routing: AbstractRouting) -> None:
    option = name.removeprefix(_PREFIX)
    there = routing.scheduled
    if option not in there:
        names = [f"{_PREFIX}{other}" for other in there]
        expected = " or ".join(names) or "null, as it has no such options"
        raise ValueError(
            f"schedule.{name} is set, but {type(routing).__name__} has no {option} that may change during training; "
            f"expected {expected}"
        )
    values = schedule.for_run(1, 1)
    for step in (0, 1):
        least, above = (1, -math.inf) if there[option] is int else (-math.inf, 0)
        check_number(f"schedule.{name}", values(step), least, above=above)
