"""Between the package and ``em_loops``: presets and options in the terms of both, and the order of capsules.

The package orders capsules ``(y, x, type)`` and has one transformation ``(inner, parent type, column)`` per place, in
the order ``(row, column, type)`` of the window; the loops have grids ``(b, type, component, y, x)`` and weights
``(type, kernel row, kernel column, inner, column, parent type)``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from capsule_lab.config.compose import compose, conf_dir
from capsule_lab.routing.em_costs import INITIAL
from tests.reference.em_loops import inverse_temperatures

PRESETS = sorted(file.stem for file in (conf_dir() / "routing").glob("em*.yaml") if file.stem != "em_normalised")


@cache
def preset(name: str) -> dict[str, Any]:
    """Arguments of ``EMRouting`` in the convolutional layers. Not to be changed."""
    options: Any = OmegaConf.to_container(compose("train", ["model=em_caps_paper", f"routing={name}"]).routing)
    own = INITIAL[options["cost"]]
    options |= {option: value for option, value in own.items() if options[option] is None}
    return {option: value for option, value in options.items() if not option.startswith("_")}


def class_preset(name: str) -> dict[str, Any]:
    """Arguments of ``EMRouting`` in the class layer."""
    return {**preset(name), **class_options(name)}


@cache
def class_options(name: str) -> dict[str, Any]:
    """Those that differ from the convolutional layers'."""
    options: Any = OmegaConf.to_container(compose("train", ["model=em_caps_paper", f"routing={name}"]).class_routing)
    return options


def temperatures(iterations: int, inverse_temperature: float, temperature_schedule: str) -> list[float]:
    """Inverse temperature of each iteration; the tutorial's two are those of notes 3.6, column Hui."""
    if temperature_schedule == "saturating":
        return inverse_temperatures(inverse_temperature, iterations)
    last = {"constant": 1, "increment": iterations, "linear": min(iterations, 3)}[temperature_schedule]
    if iterations == 1:
        return [inverse_temperature]
    return [inverse_temperature * (1 + t * (last - 1) / (iterations - 1)) for t in range(iterations)]


def in_terms_of_the_loops(options: dict[str, Any]) -> dict[str, Any]:
    """Options of ``em_routing_graph`` from arguments of ``EMRouting``; the betas go another way."""
    known = {
        name: options[name]
        for name in ("cost", "normalisation", "initial", "damping", "min_variance", "activation")
        if name in options
    }
    schedule = {name: options[name] for name in ("iterations", "inverse_temperature", "temperature_schedule")}
    return {**known, "mass_epsilon": options["mass_eps"], "inverse_temperatures": temperatures(**schedule)}


def betas_of_the_loops(routing: Any, parents: int, dim: int) -> tuple[Tensor, Tensor]:
    """One pair per parent; the official code's 800 is 50 times 16 components, and ``em_loops`` has the 800.

    Its 5e-4 stands where the package has ``min_variance``: ``beta_u^2 + min_variance`` is what both are given.
    """
    beta_u, beta_a = (beta.detach().double().expand(parents).clone() for beta in (routing.beta_u, routing.beta_a))
    if routing.options["cost"] == "official_fast":
        beta_a = beta_a * dim / 16
        moved = beta_u.square() + routing.options["min_variance"] - 5e-4
        assert (moved > 0).all(), "em_loops has no option for a variance this small"
        beta_u = moved.sqrt()
    return beta_u, beta_a


def random(*shape: int, seed: int = 0) -> Tensor:
    """Float64 from a normal."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---------------------------------------------------------------------------------------------------- layouts


def as_children(grid: Tensor) -> Tensor:
    """Poses ``(b, type, dim, y, x)`` or activations ``(b, type, y, x)`` as the package orders them."""
    if grid.ndim == 4:
        return grid.permute(0, 2, 3, 1).flatten(1)
    return grid.permute(0, 3, 4, 1, 2).flatten(1, 3)


def as_grid(capsules: Tensor, grid: tuple[int, int]) -> Tensor:
    """The way back, from the package's ``(b, y * x * type, …)``."""
    by_position = capsules.unflatten(1, (*grid, -1))  # (b, y, x, type, …)
    return by_position.movedim((1, 2), (-2, -1))


def as_conv_weight(weight: Tensor) -> Tensor:
    """``(type, row, column, inner, columns, parent)`` to ``(place, inner, parent, columns)``."""
    return weight.permute(1, 2, 0, 3, 5, 4).flatten(0, 2)


def as_class_weight(weight: Tensor) -> Tensor:
    """``(type, inner, columns, class)`` to ``(type, inner, class, columns)``."""
    return weight.transpose(2, 3)
