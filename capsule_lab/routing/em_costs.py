"""What makes a parent active in EM routing: the description length it saves (Hinton 2018, section 3)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Cost = Literal["paper", "official_legacy", "official_fast", "standardised"]
Temperature = Literal["saturating", "linear", "increment", "constant"]

LOG_2PI = math.log(2 * math.pi)
INITIAL: dict[Cost, dict[str, float]] = {
    "official_fast": {"inverse_temperature": 0.04, "beta_u": 0.5, "beta_a": 0.2},  # official code
    "official_legacy": {"inverse_temperature": 0.01, "beta_u": 0.5, "beta_a": 0.5},  # official code
    # ours: those of official_fast in the paper's units: twice, (ln(0.5^2 + 5e-4) + ln 2 pi + 1) / 2, -800 * 0.2 / 2
    "paper": {"inverse_temperature": 0.08, "beta_u": 0.727, "beta_a": -80.0},
    "standardised": {"inverse_temperature": 1.0, "beta_u": 0.0, "beta_a": 0.0},  # tutorial; betas: ours, its middle
}
"""What belongs to each cost: the betas have units of their own, and a layer that starts with others may be dead."""

STD_EPS = 1e-4  # ours: beside a std of costs, nearly 0 where no child is active; at 1e-6 the gradient overflows


def evidence(
    cost: Cost,
    mass: Float[Tensor, "batch parent"],
    log_variance: Float[Tensor, "batch parent"],
    beta_u: Float[Tensor, " betas"],
    beta_a: Float[Tensor, " betas"],
    *,
    dim: int,
    min_variance: float,
) -> Float[Tensor, "batch parent"]:
    """Logit of a parent's activation, before the inverse temperature.

    With m the mass of a parent, L the sum of its log-variances and d the components of a pose:

    - ``"paper"``: ``beta_a - m (d beta_u + L / 2)``, procedure 1 of Hinton 2018 (its equation 2 counts beta_u once,
      the procedure d times: the same model with another unit);
    - ``"official_legacy"``: ``-m (L + d beta_u (ln 2 pi + 1)) - 5000 beta_a``, official code;
    - ``"official_fast"``: ``-m (L + d (ln(beta_u^2 + min_variance) + ln 2 pi + 1)) - 50 d beta_a``, official code;
    - ``"standardised"``: as the paper's, but the cost is first standardised over the parents of a row,
      ``beta_a + (mean - cost) / std`` (J. Hui's tutorial, 2017).

    Args:
        cost: one of these, ``EMRouting`` checks which.
        mass: activation assigned to each parent.
        log_variance: summed over the components of a pose.
        beta_u: per parent, or one for all: what a unit of mass costs.
        beta_a: per parent, or one for all: what being active costs, with the first and the last its negative.
        dim: components of a pose.
        min_variance: what was added to each variance.
    """
    if cost == "official_legacy":
        per_mass = log_variance + dim * beta_u * (LOG_2PI + 1)
        return -mass * per_mass - 5000 * beta_a  # 5000: official code, so that beta_a is a number of order 1
    if cost == "official_fast":
        per_mass = log_variance + dim * ((beta_u.square() + min_variance).log() + LOG_2PI + 1)
        return -mass * per_mass - 50 * dim * beta_a  # 50: official code
    costs = mass * (dim * beta_u + log_variance / 2)  # [b j]
    if cost == "paper":
        return beta_a - costs
    below = costs.mean(1, keepdim=True) - costs
    std = torch.linalg.vector_norm(below, dim=1, keepdim=True) / math.sqrt(below.shape[1])
    return beta_a + below / (std + STD_EPS)


def inverse_temperature_at(iteration: int, iterations: int, final: float, schedule: Temperature) -> float:
    """lambda of ``iteration``, counted from 0, out of ``iterations``.

    - ``"saturating"``: ``final (1 - 0.95^(iteration + 1))``, official code;
    - ``"linear"``: ``final`` times 1 to ``min(iterations, 3)`` in equal steps, the tutorial's code;
    - ``"increment"``: ``final`` times 1, 2, 3 …, the tutorial's text;
    - ``"constant"``: ``final``.

    >>> [inverse_temperature_at(t, 3, 0.01, "saturating") for t in range(3)]
    [0.0005..., 0.000975, 0.001426...]
    >>> [inverse_temperature_at(t, 5, 1.0, "linear") for t in range(5)]
    [1.0, 1.5, 2.0, 2.5, 3.0]
    """
    if schedule == "saturating":
        return final * (1 - 0.95 ** (iteration + 1))  # 0.95: official code
    if schedule == "linear":
        last = min(iterations, 3)  # 3: tutorial
        return final * (1 + (last - 1) * iteration / max(1, iterations - 1))
    return final * (iteration + 1) if schedule == "increment" else final
