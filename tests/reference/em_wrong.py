"""Wrong versions found in public ports of EM routing: each must fail the check named by its ``caught_by``.

Each is a class that differs from ``Right`` in a single place; an instance is a function of a dense layer,

    ``route(votes (b, i, j, d), activations (b, i), beta_u (j,), beta_a (j,)) -> (poses (b, j, d), activations (b, j))``

``Right`` is Procedure 1 with exact normalisation: ``em_loops.em_routing_graph`` with cost "paper", initial "parents"
and no damping. Mistakes that need a child seen from several positions are normalisations of that graph,
``IN_WINDOWS``. docs/pitfalls.md explains the mistakes.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from tests.reference.em_loops import Child, Edge, Parent, ratio_in_groups

INVERSE_TEMPERATURES = (0.05, 0.1, 0.15)
MIN_VARIANCE = 5e-4
MASS_EPSILON = 1e-7


class Right:
    """The correct version: passes all checks, so that the others fail because of their mistake."""

    caught_by: str | None = None

    def weigh(self, couplings: Tensor, activations: Tensor, iteration: int) -> Tensor:
        """Weights of the M-step, ``(b, i, j)``."""
        return couplings * activations[..., None]

    def spread(self, variances: Tensor) -> Tensor:
        return variances

    def log_activations(self, logits: Tensor) -> Tensor:
        return logsigmoid(logits)

    def log_density(self, votes: Tensor, poses: Tensor, variances: Tensor) -> Tensor:
        """``ln p``, ``(b, i, j)``, of votes ``(b, i, j, d)`` under poses and variances ``(b, j, d)``."""
        squares = (votes - poses[:, None]) ** 2 / variances[:, None]
        height = torch.log(2 * math.pi * variances).sum(-1)[:, None]
        return -0.5 * (squares.sum(-1) + height)

    def log_weights(self, log_activations: Tensor, log_densities: Tensor) -> Tensor:
        return log_activations[:, None] + log_densities

    def finish(self, couplings: Tensor, weights: Tensor, activations: Tensor) -> Tensor:
        """Couplings after the E-step; ``weights`` are those of the M-step before it."""
        return couplings

    def __call__(
        self,
        votes: Tensor,
        activations: Tensor,
        beta_u: Tensor,
        beta_a: Tensor,
        inverse_temperatures: Sequence[float] = INVERSE_TEMPERATURES,
    ) -> tuple[Tensor, Tensor]:
        parents, dim = votes.shape[-2:]
        couplings = torch.full_like(votes[..., 0], 1 / parents)
        for iteration, inverse_temperature in enumerate(inverse_temperatures):
            weights = self.weigh(couplings, activations, iteration)
            masses = weights.sum(1) + MASS_EPSILON  # (b, j)
            poses = (weights[..., None] * votes).sum(1) / masses[..., None]
            squares = (votes - poses[:, None]) ** 2
            spread = (weights[..., None] * squares).sum(1) / masses[..., None]
            variances = self.spread(spread) + MIN_VARIANCE
            costs = masses * (dim * beta_u + 0.5 * variances.log().sum(-1))
            logits = inverse_temperature * (beta_a - costs)
            log_activations = self.log_activations(logits)
            log_densities = self.log_density(votes, poses, variances)
            log_weights = self.log_weights(log_activations, log_densities)
            couplings = self.finish(log_weights.softmax(2), weights, activations)
        return poses, logits.sigmoid()


class ChildActivationCancelled(Right):
    """Multiplies by a_i and then normalises over the parents, which divides by a_i again (yl-1993)."""

    caught_by = "values"

    def weigh(self, couplings: Tensor, activations: Tensor, iteration: int) -> Tensor:
        weights = couplings * activations[..., None]
        return weights / (weights.sum(-1, keepdim=True) + 1e-8)


class ChildActivationTwice(Right):
    """The E-step returns couplings that are already multiplied by a_i; the M-step multiplies again."""

    caught_by = "values"

    def finish(self, couplings: Tensor, weights: Tensor, activations: Tensor) -> Tensor:
        return couplings * activations[..., None]


class OldCouplingsKept(Right):
    """The E-step multiplies its weights by the M-step's R_ij a_i.

    The normalisation per child cancels a_i but not the old couplings: couplings become a running product.
    """

    caught_by = "values"

    def finish(self, couplings: Tensor, weights: Tensor, activations: Tensor) -> Tensor:
        kept = couplings * weights
        return kept / (kept.sum(-1, keepdim=True) + 1e-30)


class ChildActivationMissingAtFirst(Right):
    """The first M-step ignores the activations of the children."""

    caught_by = "values"

    def weigh(self, couplings: Tensor, activations: Tensor, iteration: int) -> Tensor:
        if iteration == 0:
            return couplings
        return super().weigh(couplings, activations, iteration)


class LogOfSigmoid(Right):
    """Adds ``log(a + 1e-8)``, which makes parents with logits of -30 and -50 equal."""

    caught_by = "off"

    def log_activations(self, logits: Tensor) -> Tensor:
        return (logits.sigmoid() + 1e-8).log()


class ActivationTimesLogDensity(Right):
    """Multiplies ln p by a_j instead of adding ln a_j (Officium)."""

    caught_by = "values"

    def log_weights(self, log_activations: Tensor, log_densities: Tensor) -> Tensor:
        return log_activations.exp()[:, None] * log_densities


class ConstantOfTheDensity(Right):
    """Writes ``ln(sigma^2 ln 2pi)`` for ``ln(sigma^2 2pi)`` (SR-CapsNet).

    Wrong as a density and correct as a routing: the constant is the same for all parents.
    """

    def log_density(self, votes: Tensor, poses: Tensor, variances: Tensor) -> Tensor:
        squares = (votes - poses[:, None]) ** 2 / variances[:, None]
        height = torch.log(math.log(2 * math.pi) * variances).sum(-1)[:, None]
        return -0.5 * (squares.sum(-1) + height)


class RootOfVariance(Right):
    """Takes sigma before the floor is added: the same values, but a NaN gradient where a variance is 0."""

    caught_by = "agreeing"

    def spread(self, variances: Tensor) -> Tensor:
        return variances.sqrt() ** 2


class StoppedGradient(Right):
    """Treats couplings as constants: the same values, but other gradients from two iterations on."""

    caught_by = "gradient"

    def finish(self, couplings: Tensor, weights: Tensor, activations: Tensor) -> Tensor:
        return couplings.detach()


def stride_ignored(
    weights: list[float], _: list[Child], __: list[Parent], edges: list[Edge]
) -> list[float]:
    """Sums over the parents of the child at parent index + kernel offset (official, 2018). Correct at stride 1."""
    groups = [edge.stride_one_child for edge in edges]
    return ratio_in_groups(weights, groups, groups)


IN_WINDOWS = {
    "a child has one unit for each of its windows": ("window", 1),
    "positions compete for a child, types do not": ("official_legacy", 1),
    "the stride is ignored": (stride_ignored, 2),
    "one maximum for all children of a type, so that worse ones underflow": ("official_fast", 1),
}
"""Normalisations of ``em_routing_graph``, and the stride at which a check fails."""
