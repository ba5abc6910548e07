"""Random numbers that stay the same: on every machine, with every version of Python and numpy."""

from __future__ import annotations

from random import Random

from capsule_lab.data.standins.toynorb.shapes import Number

Range = tuple[Number, Number]
"""Smallest and largest value."""


class ToyRandom:
    """Random numbers of one toy.

    Only ``Random.random`` is used, whose results Python guarantees. The toy depends on the order of the calls.

    Args:
        category: of the toy.
        instance: of the toy.
        seed: of the whole set.
    """

    def __init__(self, category: int, instance: int, seed: int) -> None:
        # ours: factors that give every toy of every seed a seed of its own
        self._random = Random(seed * 1000003 + category * 101 + instance)  # noqa: S311

    def __call__(self, least: Number, most: Number) -> float:
        """A number between ``least`` and ``most``."""
        return least + (most - least) * self._random.random()

    def chance(self, probability: Number) -> bool:
        """``True`` with this probability."""
        return self._random.random() < probability
