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
        routings = [module for module in network.modules() if isinstance(module, AbstractRouting)]
        for name in self.names:
            if not routings:
                raise ValueError(
                    f"schedule.{name} is set, but {type(network).__name__} does not route; expected null"
                )
            for routing in routings:
                _check(name, schedule[name], routing)
        self._configured = [
            (routing, name, routing.scheduled_options()[name.removeprefix(_PREFIX)])
            for name in self.names
            for routing in routings
        ]

    def whole_numbers(self, values: Mapping[str, float]) -> tuple[int, ...]:
        """Return the values of integer options."""
        return tuple(
            round(values[name])
            for routing, name, _ in self._configured
            if routing.scheduled[name.removeprefix(_PREFIX)] is int
        )

    def real_numbers(self, values: Mapping[str, T]) -> dict[str, T]:
        """Return the entries of the other options."""
        return {
            name: values[name]
            for routing, name, _ in self._configured
            if routing.scheduled[name.removeprefix(_PREFIX)] is not int
        }

    def set(self, values: Mapping[str, float | Tensor]) -> None:
        """Set every option to its value in ``values``, by the schedule's name, or else to the configured one."""
        for routing, name, configured in self._configured:
            option = name.removeprefix(_PREFIX)
            value = values.get(name, configured)
            routing.scheduled_options()[option] = (
                round(float(value)) if routing.scheduled[option] is int else value
            )


def _check(name: str, schedule: Schedule, routing: AbstractRouting) -> None:
    option, there = name.removeprefix(_PREFIX), routing.scheduled
    if option not in there:
        expected = (
            " or ".join(f"{_PREFIX}{option}" for option in there)
            or "null, as it has no such options"
        )
        raise ValueError(
            f"schedule.{name} is set, but {type(routing).__name__} has no {option} that may change during training; "
            f"expected {expected}"
        )
    values = schedule.for_run(1, 1)
    for step in (0, 1):
        least, above = (1, -math.inf) if there[option] is int else (-math.inf, 0)
        check_number(f"schedule.{name}", values(step), least, above=above)
