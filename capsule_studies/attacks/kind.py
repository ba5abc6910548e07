"""Properties of an attack in addition to its function: its name in figures and its default strengths."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from capsule_studies.names import name_of

Function = TypeVar("Function", bound=Callable[..., Any])

PIXEL_STRENGTHS = {
    "l2": (0.25, 0.5, 1.0, 1.5, 2.0, 3.0),  # ours
    "grey_levels": (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0),  # ours: of 255
    "unit": (0.02, 0.05, 0.1, 0.15, 0.2, 0.3),  # ours: of pixels in [0, 1]
    "photograph": (1 / 255, 2 / 255, 4 / 255, 8 / 255, 16 / 255),  # ours: levels of 8 bits
    "standardised": (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5),  # Hinton 2018, figure 3
}
"""Strengths of attacks that change pixels, by norm, space, range of the pixels and kind of the images."""


class Kind(NamedTuple):
    """An attack's label in titles, its default strengths (if empty, ``PIXEL_STRENGTHS``), and their unit.

    ``along_gradients`` is true for attacks that follow the gradient, to which ``checks`` apply; ``queries`` for those
    that only use the network's outputs.
    """

    label: str
    strengths: tuple[float, ...] = ()
    unit: str = ""
    along_gradients: bool = False
    queries: bool = False


KINDS: dict[str, Kind] = {}
"""The kinds of all imported attacks by the name of the function."""


def attack(label: str, **facts: Any) -> Callable[[Function], Function]:
    """Register a function with the signature of ``gradient.fgsm``; its keyword-only arguments are its options."""

    def register(function: Function) -> Function:
        KINDS[function.__name__] = Kind(label, **facts)
        return function

    return register


def kind_of(options: Mapping[str, Any]) -> Kind:
    """Return the kind of an attack from its options; for an attack that no longer exists, a kind with its name."""
    name = name_of(options)
    if name not in KINDS:
        folder = Path(__file__).parent
        for file in pkgutil.iter_modules([str(folder)]):  # attacks register themselves
            importlib.import_module(f"{__package__}.{file.name}")
    return KINDS.get(name, Kind(name.replace("_", " ")))
