"""EM on a mixture of Gaussians, step by step: the basis of EM routing; docs/algorithms/em_routing.md shows its figure.

In EM routing, points are votes, their weights are the activations of the children, and responsibilities are couplings.
EM routing differs in two things: in place of mixing proportions, parents have activations, computed from the cost of
describing their votes; and it has a temperature.
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


class Mixture(NamedTuple):
    """A mixture of Gaussians in one dimension."""

    means: Float[Tensor, " component"]
    variances: Float[Tensor, " component"]
    proportions: Float[Tensor, " component"]

    def log_densities(self, points: Float[Tensor, " point"]) -> Float[Tensor, "point component"]:
        """Return the logarithm of each component's density at each point."""
        squared = (points.unsqueeze(1) - self.means).square() / self.variances
        return -0.5 * (squared + self.variances.log() + math.log(2 * math.pi))


class MixtureStep(NamedTuple):
    """The log-likelihood before an E-step, its responsibilities (couplings), and the mixture after the M-step."""

    log_likelihood: float
    responsibilities: Float[Tensor, "point component"]
    mixture: Mixture


def example() -> tuple[Float[Tensor, " point"], Mixture]:
    """Return eight points and two Gaussians, one of which collapses onto three points: variances need a floor."""
    points = torch.tensor([-2.1, -1.9, -1.5, -0.4, 0.3, 1.2, 1.8, 2.2], dtype=torch.float64)  # ours
    means = torch.tensor([-0.5, 0.5], dtype=torch.float64)  # ours
    return points, Mixture(means, torch.ones_like(means), torch.full_like(means, 1 / 2))


def fit_mixture(
    points: Float[Tensor, " point"], start: Mixture, steps: int, *, min_variance: float = 0.0
) -> list[MixtureStep]:
    """Alternate E- and M-steps; ``min_variance`` is added to each variance, as in EM routing."""
    mixture, found = start, []
    for _ in range(steps):
        log_joint = mixture.proportions.log() + mixture.log_densities(points)  # [point component]
        log_total = log_joint.logsumexp(1, keepdim=True)
        shares = (log_joint - log_total).exp()
        mass = shares.sum(0)
        means = (shares * points.unsqueeze(1)).sum(0) / mass
        variances = min_variance + (shares * (points.unsqueeze(1) - means).square()).sum(0) / mass
        mixture = Mixture(means, variances, mass / len(points))
        found.append(MixtureStep(float(log_total.sum()), shares, mixture))
    return found


def mixture_figure(
    points: Float[Tensor, " point"], start: Mixture, shown: Sequence[int] = (0, 1, 2, 5, 50)
) -> Figure:
    """Draw two components after each number of steps, points coloured by responsibility, and the log-likelihood."""
    steps = fit_mixture(points, start, max(*shown, 1) + 1)
    figure = Figure(figsize=(2.3 * (len(shown) + 1), 2.6), layout="constrained")  # inches
    *panels, last = figure.subplots(1, len(shown) + 1)
    grid = torch.linspace(float(points.min()) - 1, float(points.max()) + 1, 400, dtype=points.dtype)
    between = LinearSegmentedColormap.from_list("responsibility", COLOURS[:2])
    for axis, count in zip(panels, shown, strict=True):
        mixture = steps[count - 1].mixture if count else start
        densities = mixture.proportions * mixture.log_densities(grid).exp()  # [grid component]
        for component, colour in enumerate(COLOURS[:2]):
            axis.plot(grid.numpy(), densities[:, component].numpy(), color=colour)
        shares = steps[count].responsibilities[:, 1].numpy()  # of this mixture
        axis.scatter(
            points.numpy(), torch.zeros(len(points)).numpy(), c=shares, cmap=between, s=28, zorder=3
        )
        axis.set(
            title="start" if not count else f"after {count}",
            xlabel="point, or vote",
            ylim=(-0.05, None),
        )
    panels[0].set_ylabel("density: one parent each")
    last.plot(range(len(steps)), [step.log_likelihood for step in steps], color="black")
    last.set(title="log-likelihood", xlabel="steps")
    for axis in (*panels, last):
        axis.title.set_fontsize(9)
    return figure
