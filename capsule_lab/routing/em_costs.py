"""Activation of a parent in EM routing by the description length it saves (Hinton 2018, section 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.errors import check_choice, check_number
from capsule_lab.routing.base import check_iterations

Cost = Literal["paper", "official_legacy", "official_fast", "standardised"]
Activation = Literal["description_length", "mixing_proportions"]
Temperature = Literal["saturating", "linear", "increment", "constant"]
Initial = Literal["parents", "types"]
CHOICES = {
    "cost": Cost,
    "activation": Activation,
    "temperature_schedule": Temperature,
    "initial": Initial,
}

LOG_2PI = math.log(2 * math.pi)
INITIAL: dict[Cost, dict[str, float]] = {
    "official_fast": {"inverse_temperature": 0.04, "beta_u": 0.5, "beta_a": 0.2},  # official code
    "official_legacy": {"inverse_temperature": 0.01, "beta_u": 0.5, "beta_a": 0.5},  # official code
    # ours: official_fast in the paper's units: twice, (ln(0.5^2 + 5e-4) + ln 2 pi + 1) / 2, -800 * 0.2 / 2
    "paper": {"inverse_temperature": 0.08, "beta_u": 0.727, "beta_a": -80.0},
    # tutorial; betas: ours, mid-range
    "standardised": {"inverse_temperature": 1.0, "beta_u": 0.0, "beta_a": 0.0},
}
"""Initial values for each cost. Each cost has different units; with other values a layer may start dead."""

CLASS_ROUTING: Mapping[str, Any] = {
    "cost": "official_legacy",  # official code: both of its algorithms have this class layer
    "inverse_temperature": 0.0025,  # official code: a quarter of 0.01
    "beta_u": 2.0,
    "beta_a": 1.0,
    "mass_eps": 1e-5,  # official code
}
"""Routing options of the class capsules of ``EMCaps`` that differ from its other layers (official code)."""

STD_EPS = 1e-4  # ours: added to a std that is almost 0 if no child is active; with 1e-6 the gradient overflows


def activation_logit(
    cost: Cost,
    mass: Float[Tensor, "batch parent"],
    log_variance: Float[Tensor, "batch parent"],
    beta_u: Float[Tensor, " betas"],
    beta_a: Float[Tensor, " betas"],
    dim: int,
    min_variance: float,
) -> Float[Tensor, "batch parent"]:
    """Compute the logit of a parent's activation before the inverse temperature.

    m is the mass of a parent, L the sum of its log-variances, d the number of components of a pose:

    - ``"paper"``: ``beta_a - m (d beta_u + L / 2)``, procedure 1 of Hinton 2018 (equation 2 counts beta_u once,
      the procedure d times; this changes only the unit);
    - ``"official_legacy"``: ``-m (L + d beta_u (ln 2 pi + 1)) - 5000 beta_a``, official code;
    - ``"official_fast"``: ``-m (L + d (ln(beta_u^2 + min_variance) + ln 2 pi + 1)) - 50 d beta_a``, official code;
    - ``"standardised"``: like ``"paper"`` with the cost standardised over the parents of a row,
      ``beta_a + (mean - cost) / std`` (J. Hui's tutorial, 2017).

    ``beta_u`` is the cost of a unit of mass, ``beta_a`` the cost of being active (its negative for ``"paper"`` and
    ``"standardised"``), per parent or one for all; ``min_variance`` is the number added to each variance.
    """
    if cost == "official_legacy":
        per_mass = log_variance + dim * beta_u * (LOG_2PI + 1)
        return -mass * per_mass - 5000 * beta_a  # 5000: official code, so that beta_a is of order 1
    if cost == "official_fast":
        per_mass = log_variance + dim * ((beta_u.square() + min_variance).log() + LOG_2PI + 1)
        return -mass * per_mass - 50 * dim * beta_a  # 50: official code
    costs = mass * (dim * beta_u + log_variance / 2)  # [b j]
    if cost == "paper":
        return beta_a - costs
    below = costs.mean(1, keepdim=True) - costs
    std = torch.linalg.vector_norm(below, dim=1, keepdim=True) / math.sqrt(below.shape[1])
    return beta_a + below / (std + STD_EPS)


def activate(logit: Tensor, activation: Activation) -> tuple[Tensor, Tensor]:
    """Return log-activations and activations: logistic of the logits or, for mixing proportions, exponential."""
    if activation == "mixing_proportions":
        return logit, logit.exp()
    return nn.functional.logsigmoid(logit), logit.sigmoid()


def inverse_temperatures(
    iterations: int, final: float | Tensor, schedule: Temperature
) -> list[float | Tensor]:
    """Return lambda for each iteration t = 0, 1, …

    - ``"saturating"``: ``final (1 - 0.95^(t + 1))``, official code;
    - ``"linear"``: ``final`` times 1 to ``min(iterations, 3)`` in equal steps, code of the tutorial;
    - ``"increment"``: ``final`` times 1, 2, 3 …, text of the tutorial;
    - ``"constant"``: ``final``.
    """
    steps = range(iterations)
    if schedule == "saturating":
        return [final * (1 - 0.95 ** (t + 1)) for t in steps]  # 0.95: official code
    if schedule == "linear":
        last = min(iterations, 3)  # 3: tutorial
        intervals = max(1, iterations - 1)
        return [final * (1 + (last - 1) * t / intervals) for t in steps]
    if schedule == "increment":
        return [final * (t + 1) for t in steps]
    return [final] * iterations


def initial_values(
    cost: Cost, beta_u: float | None, beta_a: float | None, inverse_temperature: float | None
) -> tuple[float, float, float]:
    """Return the last three arguments with ``None`` replaced by the values of ``INITIAL``."""
    check_choice("routing cost", cost, get_args(Cost))
    initial = INITIAL[cost]
    beta_u = initial["beta_u"] if beta_u is None else beta_u
    beta_a = initial["beta_a"] if beta_a is None else beta_a
    check_number("routing beta_u", beta_u)
    check_number("routing beta_a", beta_a)
    if inverse_temperature is None:
        inverse_temperature = initial["inverse_temperature"]
    return float(beta_u), float(beta_a), float(inverse_temperature)


def check_options(iterations: int, *, damping: float = 0.0, **others: Any) -> None:
    """Check options of EM routing: names of choices, and positive variance, mass and temperature."""
    check_iterations(iterations)
    for name, choice in CHOICES.items():
        check_choice(f"routing {name}", others.pop(name), get_args(choice))
    if not 0 <= damping < 1:
        raise ValueError(f"routing damping is {damping}; expected 0 (none) or more and less than 1")
    for name, value in others.items():
        if not 0 < value < math.inf:
            raise ValueError(f"routing {name} is {value}; expected more than 0")
