"""Variational Bayes routing: Ribeiro, Leontidis and Kollias, AAAI 2020, algorithm 1.

Mean, precision and share of each parent have priors and posteriors. A parent with at most one child therefore has a
variance above 0, and routing needs no ``min_variance`` as in EM routing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Unpack, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from capsule_lab.errors import check_choice
from capsule_lab.functional import float32_under_autocast
from capsule_lab.kernels import AbstractVotes, Backend, route
from capsule_lab.routing.base import (
    AbstractRouting,
    Call,
    EqualOverTypes,
    Normalisation,
    Normaliser,
    check_iterations,
)
from capsule_lab.routing.batch_norm import BatchNorm
from capsule_lab.routing.em_costs import Initial
from capsule_lab.shapes import check_probabilities, checks_routing
from capsule_lab.types import Capsules, OnIteration, RoutingTrace, Votes

__all__ = ["VariationalBayesRouting", "variational_bayes_routing"]

ALPHA = 1.0  # official code: Dirichlet prior of the parents' shares
KAPPA = 1.0  # official code: the prior of a mean counts as this many votes of zero
SCALE = 1.0  # official code: inverse scale of the Wishart prior of a precision, the identity


class Posteriors(NamedTuple):
    """Posteriors of the parents, and what the assignment of votes needs of them."""

    poses: Float[Tensor, "batch parent dim"]  # m_j
    kappa: Float[Tensor, "batch parent"]
    nu: Float[Tensor, "batch parent"]
    inverse_scale: Float[Tensor, "batch parent dim"]  # 1 / Psi_j
    log_share: Float[Tensor, "batch parent"]  # E[ln pi_j]
    log_precision: Float[Tensor, "batch parent"]  # E[ln |Lambda_j|]
    # deviations of the votes from the poses
    squared: Float[Tensor, "batch parent child dim"]


def _update_parents(
    votes: AbstractVotes,
    dense: Float[Tensor, "batch parent child dim"],
    assigned: Float[Tensor, "batch parent child"],
) -> Posteriors:
    """Update the posteriors of the parents, given the assignment of votes; ``dense`` are the same votes."""
    dim = votes.shape[3]
    component = torch.arange(dim, dtype=dense.dtype, device=dense.device)
    mass = assigned.sum(2)  # R_j [b j]
    alpha = ALPHA + mass  # [b j]
    kappa = KAPPA + mass  # [b j]
    nu = dim + 1 + mass  # [b j]; dim + 1: official code
    poses = votes.weighted_sum(assigned) / kappa.unsqueeze(2)  # m_j [b j d]
    squared = (dense - poses.unsqueeze(2)).square()  # [b j i d]
    spread = (assigned.unsqueeze(2) @ squared).squeeze(2)  # bji,bjid->bjd
    inverse_scale = SCALE + spread + KAPPA * poses.square()  # 1 / Psi_j [b j d]
    # expectations under these posteriors: E[ln pi_j], E[ln |Lambda_j|]
    log_share = alpha.digamma() - alpha.sum(1, keepdim=True).digamma()  # [b j]
    degrees = 0.5 * (nu.unsqueeze(2) - component)  # [b j d]
    log_precision = (degrees.digamma() + math.log(2) - inverse_scale.log()).sum(2)  # [b j]
    return Posteriors(poses, kappa, nu, inverse_scale, log_share, log_precision, squared)


def _update_couplings(
    parents: Posteriors, normalise: Normaliser
) -> Float[Tensor, "batch parent child"]:
    """Update the posterior of the assignment of each child, ``R_ij``, from ``ln R_ij`` up to a constant."""
    dim = parents.poses.shape[2]
    precision = parents.nu.unsqueeze(2) / parents.inverse_scale  # [b j d]
    distances = (parents.squared @ precision.unsqueeze(3)).squeeze(3)  # bjid,bjd->bji
    expected_height = parents.log_share + 0.5 * parents.log_precision
    log_height = expected_height - 0.5 * dim / parents.kappa  # [b j]
    return normalise(log_height.unsqueeze(2) - 0.5 * distances)


@checks_routing
@float32_under_autocast
def variational_bayes_routing(
    votes: Float[Tensor, "batch child parent dim"] | Votes,
    activations: Float[Tensor, "batch child"],
    *,
    iterations: int = 3,  # Ribeiro 2020
    initial: Initial = "parents",
    normalise: Normaliser | None = None,
    on_iteration: OnIteration | None = None,
    backend: Backend = "auto",
) -> Capsules:
    """Compute parents as posterior Gaussians of their children's votes (Ribeiro 2020, algorithm 1).

    Symbols: ``V_j|i`` votes, ``a_i`` activations, ``R_ij`` couplings (posterior of the assignment), ``R_j`` mass;
    posteriors of parent j: shares ``pi`` Dirichlet ``alpha_j``, mean ``mu_j`` Gaussian ``m_j``, ``kappa_j``, precision
    ``Lambda_j`` Wishart ``Psi_j`` (diagonal), ``nu_j``. Priors as in the official code: 1, mean 0 with weight 1,
    the identity with ``dim + 1`` degrees of freedom. Couplings are normalised in log-space. The code does not divide by
    ``R_j``, which may be 0: ``sum R_ij (V - mu)^2 + kappa_0 R_j / kappa_j mu^2 = sum R_ij (V - m)^2 + kappa_0 m^2``.

    Args:
        votes, activations: ``V_j|i`` as a tensor or as poses and weight; ``a_i`` in [0, 1].
        iterations, initial, normalise, on_iteration, backend: see ``em_routing``; the official code uses ``"types"``.

    Returns:
        Poses ``m_j`` and, as logit of the activation, minus the share of the parent times the entropy of its posterior,
        ``-exp(E[ln pi_j]) H_j``. ``VariationalBayesRouting`` normalises both over the batch.
    """
    check_iterations(iterations)
    check_choice("routing initial", initial, get_args(Initial))
    check_probabilities("variational_bayes_routing", "activations", activations)
    normalise = normalise or Normaliser()
    first = EqualOverTypes() if initial == "types" else normalise

    def procedure(votes: AbstractVotes, activations: Tensor) -> tuple[Tensor, ...]:
        dim = votes.shape[3]
        dense = votes.dense().transpose(1, 2)  # [b j i d]
        couplings = first(votes.zero_logits())  # R_ij [b j i]
        for iteration in range(iterations):
            assigned = couplings * activations.unsqueeze(1)  # R_ij a_i [b j i]
            parents = _update_parents(votes, dense, assigned)
            if on_iteration is not None:
                on_iteration(RoutingTrace(iteration, couplings.transpose(1, 2), parents.poses))
            if iteration < iterations - 1:
                couplings = _update_couplings(parents, normalise)
        # entropy of a Gaussian [b j]
        entropy = 0.5 * (dim * math.log(2 * math.pi * math.e) - parents.log_precision)
        logits = -parents.log_share.exp() * entropy
        return parents.poses, logits.sigmoid(), logits

    # not fused: no kernel sums squared votes
    parents = route(procedure, votes, activations, normalise, on_iteration, backend, fused=False)
    return Capsules(*parents)


class VariationalBayesRouting(AbstractRouting):
    """``variational_bayes_routing``, then batch normalisation of poses and logits.

    Each kind of parent is normalised over batch and positions, poses also over their components.

    Args:
        affine: learn a scale and a shift of the logits, one pair per kind of parent. The official code has two betas
            instead, which the normalisation cancels.
        parents, dim, normalisation, backend: see ``AbstractRouting``; the others: see ``variational_bayes_routing``.
    """

    scheduled: Mapping[str, type[int] | type[float]] = {"iterations": int}

    def __init__(
        self,
        parents: int,
        dim: int,
        *,
        iterations: int = 3,
        normalisation: Normalisation = "all_parents",
        initial: Initial = "parents",
        affine: bool = True,
        backend: Backend = "auto",
    ) -> None:
        check_choice("routing initial", initial, get_args(Initial))
        super().__init__(
            backend=backend, normalisation=normalisation, iterations=iterations, initial=initial
        )
        self.pose_norm = BatchNorm(parents, affine=False)  # official code
        self.logit_norm = BatchNorm(parents, affine=affine)

    def forward(
        self, votes: Tensor | Votes, activations: Tensor | None = None, **call: Unpack[Call]
    ) -> Capsules:
        """See ``AbstractRouting``; ``on_iteration`` receives poses before normalisation."""
        given = votes, self.require_activations(activations)
        parents = variational_bayes_routing(*given, **self.options, backend=self.backend, **call)
        assert parents.logits is not None
        by_component = parents.poses.transpose(1, 2)  # [b d j]
        normalised = self.pose_norm(by_component.flatten(0, 1)).view_as(by_component)
        logits = self.logit_norm(parents.logits)
        return Capsules(normalised.transpose(1, 2), logits.sigmoid(), logits)
