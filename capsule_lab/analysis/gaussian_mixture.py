"""EM on a mixture of Gaussians, step by step, beside the same points as votes: what EM routing is made of.

Points become votes, how much each counts the activation of its child, responsibilities become couplings. EM routing
differs in two things: parents have activations, from what it costs to describe their votes, in place of mixing
proportions; and a temperature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from torch import Tensor

from capsule_lab.analysis.curves import COLOURS

EXAMPLE_POINTS = (-2.1, -1.9, -1.5, -0.4, 0.3, 1.2, 1.8, 2.2)  # ours
EXAMPLE_MEANS = (-0.5, 0.5)  # ours


class Mixture(NamedTuple):
    """A mixture of Gaussians in one dimension.

    Attributes:
        means, variances, proportions: of each component, ``(component,)``.
    """

    means: Float[Tensor, " component"]
    variances: Float[Tensor, " component"]
    proportions: Float[Tensor, " component"]


class MixtureStep(NamedTuple):
    """One E-step and the M-step after it.

    Attributes:
        log_likelihood: of the points under the mixture before the step.
        responsibilities: of each component for each point, ``(point, component)``: the couplings.
        mixture: after the step.
    """

    log_likelihood: float
    responsibilities: Float[Tensor, "point component"]
    mixture: Mixture


def example() -> tuple[Float[Tensor, " point"], Mixture]:
    """Eight points and two Gaussians, one of which ends on three points: the reason for a floor under variances."""
    means = torch.tensor(EXAMPLE_MEANS, dtype=torch.float64)
    start = Mixture(means, torch.ones_like(means), torch.full_like(means, 1 / len(means)))
    return torch.tensor(EXAMPLE_POINTS, dtype=torch.float64), start


def fit_mixture(
    points: Float[Tensor, " point"], start: Mixture, steps: int, *, min_variance: float = 0.0
) -> list[MixtureStep]:
    """E- and M-steps in turn.

    Args:
        points: what the mixture is fitted to.
        start: the mixture to begin with.
        steps: how many.
        min_variance: added to each variance, as EM routing does; without it, a component may end on one point.

    >>> steps = fit_mixture(*example(), 2)
    >>> round(steps[0].log_likelihood, 4), round(steps[1].log_likelihood, 4)
    (-16.1717, -14.7377)
    """
    mixture, found = start, []
    for _ in range(steps):
        log_joint = mixture.proportions.log() + log_densities(points, mixture)  # [point component]
        log_total = log_joint.logsumexp(1, keepdim=True)
        shares = (log_joint - log_total).exp()
        mass = shares.sum(0)
        means = (shares * points.unsqueeze(1)).sum(0) / mass
        variances = min_variance + (shares * (points.unsqueeze(1) - means).square()).sum(0) / mass
        mixture = Mixture(means, variances, mass / len(points))
        found.append(MixtureStep(float(log_total.sum()), shares, mixture))
    return found


def log_densities(points: Float[Tensor, " point"], mixture: Mixture) -> Float[Tensor, "point component"]:
    """Logarithm of each component's density at each point."""
    squared = (points.unsqueeze(1) - mixture.means).square() / mixture.variances
    return -0.5 * (squared + mixture.variances.log() + math.log(2 * math.pi))


def mixture_figure(points: Float[Tensor, " point"], start: Mixture, shown: Sequence[int] = (0, 1, 2, 5, 50)) -> Figure:
    """Both vocabularies at once: the densities after so many steps, points coloured by whom they belong to.

    Args:
        points, start: see ``fit_mixture``; two components.
        shown: after how many steps; 0 is the start.
    """
    steps = fit_mixture(points, start, max(max(shown), 1) + 1)
    figure = Figure(figsize=(2.3 * (len(shown) + 1), 2.6), layout="constrained")  # inches
    *panels, last = figure.subplots(1, len(shown) + 1)
    grid = torch.linspace(float(points.min()) - 1, float(points.max()) + 1, 400, dtype=points.dtype)
    for axis, count in zip(panels, shown, strict=True):
        mixture = steps[count - 1].mixture if count else start
        densities = mixture.proportions * log_densities(grid, mixture).exp()  # [grid component]
        for component, colour in enumerate(COLOURS[:2]):
            axis.plot(grid.numpy(), densities[:, component].numpy(), color=colour)
        shares = steps[count].responsibilities[:, 1]  # of this mixture
        axis.scatter(
            points.numpy(), torch.zeros(len(points)).numpy(), c=shares.numpy(), cmap=_between(), s=28, zorder=3
        )
        axis.set(title="start" if not count else f"after {count}", xlabel="point, or vote", ylim=(-0.05, None))
        axis.title.set_fontsize(9)
    panels[0].set_ylabel("density: one parent each")
    last.plot(range(len(steps)), [step.log_likelihood for step in steps], color="black")
    last.set(title="log-likelihood", xlabel="steps")
    last.title.set_fontsize(9)
    return figure


def _between() -> LinearSegmentedColormap:
    """From the first component's colour to the second's: responsibilities, or couplings."""
    return LinearSegmentedColormap.from_list("responsibility", COLOURS[:2])
