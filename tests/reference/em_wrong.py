"""Wrong versions found in public ports of EM routing: each must fail the tests.

Each is a class that differs from ``Right`` in a single place; an instance is a function of a dense layer,

    ``route(votes (b, i, j, d), activations (b, i), beta_u (j,), beta_a (j,)) -> (poses (b, j, d), activations (b, j))``

and its method ``windowed`` is the same of a convolutional layer, where the parents at one position p of the grid see
the w children of one window,

    ``windowed(votes (b, p, w, c, d), activations (b, n), windows, beta_u (c,), beta_a (c,)) ->
    (poses (b, p, c, d), activations (b, p, c))``.

Both understand ``inverse_temperatures`` (one per iteration), ``min_variance``, ``mass_epsilon`` and ``on_iteration``.
``Right`` is Procedure 1 with exact normalisation: ``em_loops.em_routing_graph`` with cost "paper", initial "parents"
and no damping. Numbers in brackets are pitfalls of the project's notes on EM routing, section 10.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

OnIteration = Callable[[SimpleNamespace], None]

INVERSE_TEMPERATURES = (0.05, 0.1, 0.15)
MIN_VARIANCE = 5e-4
MASS_EPSILON = 1e-7


@dataclass(frozen=True)
class Windows:
    """Which children each position sees.

    Attributes:
        children: index of the child in each slot of each window, ``(p, w)``.
        stride_one_children: the same if the stride were 1; used by a wrong version only.
        types: type of each child, ``(n,)``.
    """

    children: Tensor
    stride_one_children: Tensor
    types: Tensor


def grid_windows(types: int, size: tuple[int, int], kernel: int, stride: int) -> Windows:
    """Windows of an unpadded convolution; children and slots are ordered type, row, column."""
    height, width = size
    slots = [(b, y, x) for b in range(types) for y in range(kernel) for x in range(kernel)]
    positions = [
        (row, column)
        for row in range((height - kernel) // stride + 1)
        for column in range((width - kernel) // stride + 1)
    ]

    def children(step: int) -> Tensor:
        return torch.tensor(
            [
                [(b * height + step * row + y) * width + step * column + x for b, y, x in slots]
                for row, column in positions
            ]
        )

    return Windows(children(stride), children(1), torch.arange(types).repeat_interleave(height * width))


def one_window(children: int) -> Windows:
    """A dense layer: one position that sees all children, which are of one type."""
    all_children = torch.arange(children)[None]
    return Windows(all_children, all_children, torch.zeros(children, dtype=torch.long))


def total_in_groups(values: Tensor, groups: Tensor) -> Tensor:
    """Each value of ``(b, p, w, c)`` replaced by the sum over its group; ``groups`` numbers them, ``(p, w, c)``."""
    flat = values.flatten(1)
    index = groups.flatten().expand_as(flat)
    totals = flat.new_zeros(len(flat), int(groups.max()) + 1).scatter_add(1, index, flat)
    return totals.gather(1, index).view_as(values)


def largest_in_groups(values: Tensor, groups: Tensor) -> Tensor:
    flat = values.detach().flatten(1)
    index = groups.flatten().expand_as(flat)
    largest = flat.new_full((len(flat), int(groups.max()) + 1), -math.inf).scatter_reduce(1, index, flat, "amax")
    return largest.gather(1, index).view_as(values)


class Right:
    """Nothing wrong: shows that the others fail because of their mistake."""

    def weigh(self, couplings: Tensor, activations: Tensor, iteration: int) -> Tensor:
        """What the M-step averages with, ``(b, p, w, c)``; ``activations`` are the children's, ``(b, p, w)``."""
        return couplings * activations[..., None]

    def spread(self, variances: Tensor) -> Tensor:
        return variances

    def log_activations(self, logits: Tensor) -> Tensor:
        return logsigmoid(logits)

    def log_density(self, votes: Tensor, poses: Tensor, variances: Tensor) -> Tensor:
        """``ln p``, ``(…, w, c)``, of votes ``(…, w, c, d)`` under poses and variances ``(…, c, d)``."""
        squares = (votes - poses[..., None, :, :]) ** 2 / variances[..., None, :, :]
        return -0.5 * (squares.sum(-1) + torch.log(2 * math.pi * variances).sum(-1)[..., None, :])

    def log_weights(self, log_activations: Tensor, log_densities: Tensor) -> Tensor:
        return log_activations[..., None, :] + log_densities

    def groups(self, windows: Windows, types: int) -> Tensor:
        """Couplings in the same group sum to one: all those of a child. ``(p, w, c)``"""
        return windows.children[..., None].expand(-1, -1, types)

    def normalise(self, log_weights: Tensor, windows: Windows) -> Tensor:
        groups = self.groups(windows, log_weights.shape[-1])
        shares = (log_weights - largest_in_groups(log_weights, groups)).exp()
        return shares / total_in_groups(shares, groups)

    def finish(self, couplings: Tensor, weights: Tensor, activations: Tensor) -> Tensor:
        """Couplings after the E-step; ``weights`` are those of the M-step before it."""
        return couplings

    def windowed(
        self,
        votes: Tensor,
        activations: Tensor,
        windows: Windows,
        beta_u: Tensor,
        beta_a: Tensor,
        *,
        inverse_temperatures: Sequence[float] = INVERSE_TEMPERATURES,
        min_variance: float = MIN_VARIANCE,
        mass_epsilon: float = MASS_EPSILON,
        on_iteration: OnIteration | None = None,
    ) -> tuple[Tensor, Tensor]:
        types, dim = votes.shape[-2:]
        seen = activations[:, windows.children]  # (b, p, w)
        parents = types * torch.bincount(windows.children.flatten(), minlength=activations.shape[1])
        couplings = (1 / parents[windows.children].to(votes))[None, :, :, None].expand(votes.shape[:-1])
        for iteration, inverse_temperature in enumerate(inverse_temperatures):
            weights = self.weigh(couplings, seen, iteration)
            masses = weights.sum(2) + mass_epsilon  # (b, p, c)
            poses = (weights[..., None] * votes).sum(2) / masses[..., None]
            squares = (votes - poses[:, :, None]) ** 2
            variances = self.spread((weights[..., None] * squares).sum(2) / masses[..., None]) + min_variance
            costs = masses * (dim * beta_u + 0.5 * variances.log().sum(-1))
            logits = inverse_temperature * (beta_a - costs)
            if on_iteration is not None:
                on_iteration(
                    SimpleNamespace(
                        iteration=iteration,
                        couplings=couplings,
                        poses=poses,
                        activations=logits.sigmoid(),
                        masses=masses,
                    )
                )
            if iteration + 1 < len(inverse_temperatures):
                log_weights = self.log_weights(self.log_activations(logits), self.log_density(votes, poses, variances))
                couplings = self.finish(self.normalise(log_weights, windows), weights, seen)
        return poses, logits.sigmoid()

    def __call__(
        self,
        votes: Tensor,
        activations: Tensor,
        beta_u: Tensor,
        beta_a: Tensor,
        *,
        on_iteration: OnIteration | None = None,
        **options: object,
    ) -> tuple[Tensor, Tensor]:
        def without_position(trace: SimpleNamespace) -> None:
            values = {name: v.squeeze(1) if isinstance(v, Tensor) else v for name, v in vars(trace).items()}
            on_iteration(SimpleNamespace(**values))

        poses, parent_activations = self.windowed(
            votes[:, None],
            activations,
            one_window(votes.shape[1]),
            beta_u,
            beta_a,
            on_iteration=None if on_iteration is None else without_position,
            **options,
        )
        return poses.squeeze(1), parent_activations.squeeze(1)


# ------------------------------------------------------------------------------------- wrong in any layer


class ChildActivationCancelled(Right):
    """Multiplies by a_i and then normalises over the parents, which divides by a_i again (yl-1993) [10]."""

    def weigh(self, couplings: Tensor, activations: Tensor, iteration: int) -> Tensor:
        weights = couplings * activations[..., None]
        return weights / (weights.sum(-1, keepdim=True) + 1e-8)


class ChildActivationTwice(Right):
    """The E-step returns couplings that are already multiplied by a_i; the M-step multiplies again [11]."""

    def finish(self, couplings: Tensor, weights: Tensor, activations: Tensor) -> Tensor:
        return couplings * activations[..., None]


class OldCouplingsKept(Right):
    """The E-step is computed on what the M-step left in R: R_ij a_i is multiplied into its weights [11].

    Normalised per child a_i cancels, but the old couplings stay: couplings become a running product. Dense layers only.
    """

    def finish(self, couplings: Tensor, weights: Tensor, activations: Tensor) -> Tensor:
        kept = couplings * weights
        return kept / (kept.sum(-1, keepdim=True) + 1e-30)


class ChildActivationMissingAtFirst(Right):
    """The first M-step averages all children alike [11]."""

    def weigh(self, couplings: Tensor, activations: Tensor, iteration: int) -> Tensor:
        return super().weigh(couplings, activations, iteration) if iteration else couplings


class LogOfSigmoid(Right):
    """Adds ``log(a + 1e-8)``: parents whose logits are -30 and -50 become equals [12]."""

    def log_activations(self, logits: Tensor) -> Tensor:
        return (logits.sigmoid() + 1e-8).log()


class ActivationTimesLogDensity(Right):
    """Multiplies ln p by a_j where ln a_j is to be added (Officium) [13]."""

    def log_weights(self, log_activations: Tensor, log_densities: Tensor) -> Tensor:
        return log_activations.exp()[..., None, :] * log_densities


class ConstantOfTheDensity(Right):
    """Writes ``ln(sigma^2 ln 2pi)`` for ``ln(sigma^2 2pi)`` (SR-CapsNet) [14].

    Wrong as a density and right as a routing: the constant is the same for all parents, so that outputs and couplings
    are those of ``Right``. Only a check of the density itself can see it.
    """

    def log_density(self, votes: Tensor, poses: Tensor, variances: Tensor) -> Tensor:
        squares = (votes - poses[..., None, :, :]) ** 2 / variances[..., None, :, :]
        return -0.5 * (squares.sum(-1) + torch.log(math.log(2 * math.pi) * variances).sum(-1)[..., None, :])


class RootOfVariance(Right):
    """Goes through sigma before the floor is added: the same values, and a NaN gradient where a variance is 0 [7]."""

    def spread(self, variances: Tensor) -> Tensor:
        return variances.sqrt() ** 2


class StoppedGradient(Right):
    """Couplings are constants to the gradient: the same values, and other gradients from two iterations on [33]."""

    def finish(self, couplings: Tensor, weights: Tensor, activations: Tensor) -> Tensor:
        return couplings.detach()


# ------------------------------------------------------------- wrong where a child is seen from several positions


class SoftmaxPerWindow(Right):
    """Couplings sum to one over the types at each position: a child has one unit for each window it is in [1]."""

    def groups(self, windows: Windows, types: int) -> Tensor:
        slots = torch.arange(windows.children.numel()).view_as(windows.children)
        return slots[..., None].expand(-1, -1, types)


class SoftmaxOverPositions(Right):
    """Couplings sum to one over the positions, for each type by itself: types do not compete (official, 2018) [2].

    In a dense layer, of one position, all couplings are one.
    """

    def groups(self, windows: Windows, types: int) -> Tensor:
        return windows.children[..., None] * types + torch.arange(types)


class StrideIgnored(Right):
    """Sums over the parents of the child at parent index + kernel offset (official, 2018) [3]. Right at stride 1."""

    def groups(self, windows: Windows, types: int) -> Tensor:
        return windows.stride_one_children[..., None].expand(-1, -1, types)


class MaximumPerType(Right):
    """Subtracts one maximum for all children of a type: children that fit worse than the best one underflow [4].

    As in the official code the sum is guarded by 1e-7, so that their couplings sum to less than one, down to zero.
    """

    def normalise(self, log_weights: Tensor, windows: Windows) -> Tensor:
        types = log_weights.shape[-1]
        of_child_type = windows.types[windows.children][..., None].expand(-1, -1, types)
        shares = (log_weights - largest_in_groups(log_weights, of_child_type)).exp()
        return shares / (total_in_groups(shares, self.groups(windows, types)) + 1e-7)


WRONG_ANYWHERE: list[type[Right]] = [
    ChildActivationCancelled,
    ChildActivationTwice,
    OldCouplingsKept,
    ChildActivationMissingAtFirst,
    LogOfSigmoid,
    ActivationTimesLogDensity,
    RootOfVariance,
    StoppedGradient,
]
"""To be caught in a dense layer: ``RootOfVariance`` and ``StoppedGradient`` by their gradients, ``LogOfSigmoid`` where
all logits are below -20, the others by their values. All but ``OldCouplingsKept`` make their mistake in
``windowed`` too."""

WRONG_IN_WINDOWS: list[type[Right]] = [SoftmaxPerWindow, SoftmaxOverPositions, StrideIgnored, MaximumPerType]
"""To be caught in a convolutional layer of stride 2; all but ``StrideIgnored`` in one of stride 1 too. In a dense layer
``SoftmaxPerWindow`` and ``StrideIgnored`` are right, ``MaximumPerType`` is until some child underflows."""

HARMLESS: list[type[Right]] = [ConstantOfTheDensity]
"""Not to be caught by what a routing returns."""
