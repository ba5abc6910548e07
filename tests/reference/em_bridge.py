"""Conversions between the package and ``em_loops``: presets, options, and the order of capsules.

The package orders capsules ``(y, x, type)`` and has one transformation ``(inner, parent type, column)`` per place, in
the order ``(row, column, type)`` of the window; the loops have grids ``(b, type, component, y, x)`` and weights
``(type, kernel row, kernel column, inner, column, parent type)``.
"""

from functools import cache
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from capsule_lab.commands import compose
from capsule_lab.config.folders import conf_dir
from capsule_lab.routing.em_costs import INITIAL
from tests.reference.em_loops import betas_of_the_loops, in_terms_of_the_loops  # noqa: F401

FILES = sorted((conf_dir() / "routing").glob("em*.yaml"))
PRESETS = [file.stem for file in FILES if file.stem != "em_normalised"]


@cache
def composed(name: str) -> Any:
    return compose("train", ["model=em_caps_paper", f"routing={name}"])


@cache
def preset(name: str) -> dict[str, Any]:
    """Arguments of ``EMRouting`` in the convolutional layers. Cached: do not modify the result."""
    options: Any = OmegaConf.to_container(composed(name).routing)
    del options["_target_"], options["_partial_"]
    for option, value in INITIAL[options["cost"]].items():
        if options[option] is None:
            options[option] = value
    return options


def class_preset(name: str) -> dict[str, Any]:
    """Arguments of ``EMRouting`` in the class layer."""
    return {**preset(name), **class_options(name)}


@cache
def class_options(name: str) -> Any:
    """Arguments of the class layer that differ from the convolutional layers'. Cached: do not modify the result."""
    return OmegaConf.to_container(composed(name).class_routing)


def random(*shape: int, seed: int = 0) -> Tensor:
    """Normal random numbers in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def as_children(grid: Tensor) -> Tensor:
    """Poses ``(b, type, dim, y, x)`` or activations ``(b, type, y, x)`` in the package's order."""
    if grid.ndim == 4:
        return grid.permute(0, 2, 3, 1).flatten(1)
    return grid.permute(0, 3, 4, 1, 2).flatten(1, 3)


def as_grid(capsules: Tensor, grid: tuple[int, int]) -> Tensor:
    """The inverse: from the package's ``(b, y * x * type, …)`` to a grid."""
    by_position = capsules.unflatten(1, (*grid, -1))  # (b, y, x, type, …)
    return by_position.movedim((1, 2), (-2, -1))


def as_conv_weight(weight: Tensor) -> Tensor:
    """``(type, row, column, inner, columns, parent)`` to ``(place, inner, parent, columns)``."""
    return weight.permute(1, 2, 0, 3, 5, 4).flatten(0, 2)


def as_class_weight(weight: Tensor) -> Tensor:
    """``(type, inner, columns, class)`` to ``(type, inner, class, columns)``."""
    return weight.transpose(2, 3)
