"""Random numbers that stay the same: on every machine, with every version of Python and numpy."""

from __future__ import annotations

from random import Random

from capsule_lab.data.standins.toynorb.shapes import Number

Range = tuple[Number, Number]
"""Least and most."""


class Draws:
    """The numbers that make one toy what it is, from a stream of its own.

    Only ``Random.random`` is used, whose results Python guarantees; the order of the draws is part of the toy.

    Args:
        category: of the toy.
        instance: of the toy.
        seed: of the whole set.
    """

    def __init__(self, category: int, instance: int, seed: int) -> None:
        # ours: one stream per toy; the factors keep the streams of 10 instances and of all seeds apart
        self._stream = Random(seed * 1000003 + category * 101 + instance)  # noqa: S311

    def __call__(self, least: Number, most: Number) -> float:
        """A number between ``least`` and ``most``."""
        return least + (most - least) * self._stream.random()

    def chance(self, probability: Number) -> bool:
        """Whether something is there that a share ``probability`` of the toys has."""
        return self._stream.random() < probability
