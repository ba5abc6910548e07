"""EM routing of matrix capsules: Hinton, Sabour and Frosst, ICLR 2018, procedure 1.

The paper, the two algorithms of its official code (``official_legacy``, the default there, and ``official_fast``) and
a popular tutorial differ in normalisation, cost and initial values, see ``conf/routing/em*.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.functional import float32_under_autocast
from capsule_lab.kernels import AbstractVotes, Backend, route
from capsule_lab.routing import em_costs
from capsule_lab.routing.base import (
    AbstractRouting,
    Call,
    EqualOverTypes,
    Normalisation,
    Normaliser,
)
from capsule_lab.routing.em_costs import LOG_2PI, Activation, Cost, Initial, Temperature
from capsule_lab.shapes import check_probabilities, checks_routing
from capsule_lab.types import Capsules, OnIteration, RoutingTrace, Votes

__all__ = ["EMRouting", "em_routing"]


class Gaussians(NamedTuple):
    """Parents as Gaussians fitted to the votes of their assigned children, whose activations sum to ``mass``."""

    mass: Float[Tensor, "batch parent"]
    poses: Float[Tensor, "batch parent dim"]  # means
    variances: Float[Tensor, "batch parent dim"]
    # deviations of the votes from the means, for the next E-step
    squared: Float[Tensor, "batch parent child dim"]


def m_step(
    votes: Float[Tensor, "batch parent child dim"],
    couplings: Float[Tensor, "batch parent child"],
    activations: Float[Tensor, "batch child"],
    previous: Float[Tensor, "batch parent dim"] | None,
    damping: float,
    min_variance: float,
    mass_eps: float,
) -> Gaussians:
    """M-step: fit the Gaussian of each parent to the votes of the children assigned to it."""
    assigned = couplings * activations.unsqueeze(1)  # R_ij a_i [b j i]
    mass = assigned.sum(2) + mass_eps  # sum_i R_ij a_i [b j]
    weights = assigned / mass.unsqueeze(2)  # [b j i]
    poses = (weights.unsqueeze(2) @ votes).squeeze(2)  # mu_j: bji,bjid->bjd
    if damping:
        poses = (1 - damping) * poses + (0.0 if previous is None else damping * previous)
    squared = (votes - poses.unsqueeze(2)).square()  # (V_ij - mu_j)^2 [b j i d]
    spread = (weights.unsqueeze(2) @ squared).squeeze(2)  # bji,bjid->bjd
    variances = min_variance + spread  # sigma_j^2 [b j d]
    return Gaussians(mass, poses, variances, squared)


def e_step(
    parents: Gaussians, log_height: Float[Tensor, "batch parent"], normalise: Normaliser
) -> Tensor:
    """E-step: compute couplings R_ij ``(batch, parent, child)``, the posteriors of parent j given vote ij.

    ``ln (a_j p_ij) = log_height_j - sum_d (V_ijd - mu_jd)^2 / (2 sigma_jd^2)``, normalised over the parents of a child.
    """
    half_precision = 0.5 / parents.variances  # [b j d]
    distances = (parents.squared @ half_precision.unsqueeze(3)).squeeze(3)  # bjid,bjd->bji
    return normalise(log_height.unsqueeze(2) - distances)


def make_em_step(
    votes: AbstractVotes,
    activations: Tensor,
    *,
    couplings_with_gradient: bool = False,
    **options: Any,
) -> Any:
    """Return a function that runs one E-step and one M-step: that of the votes or, if they have none, the two above.

    The parents have gradients. Couplings need not have one, unless ``couplings_with_gradient``: see
    ``capsule_lab.kernels.base.EMStep``, which also describes the function.
    """
    if votes.em_step is not None:
        return partial(
            votes.em_step,
            activations,
            couplings_with_gradient=couplings_with_gradient,
            **options,
        )
    dense = votes.dense().transpose(1, 2)  # [b j i d]

    def em_step(before: tuple[Any, Tensor] | None, normalise: Normaliser, *, last: bool) -> Any:  # noqa: ARG001
        # E-step: children are assigned to the parents whose Gaussians explain their votes
        couplings = normalise(votes.zero_logits()) if before is None else e_step(*before, normalise)
        # M-step: the Gaussians are fitted to the votes of their assigned children
        previous = None if before is None else before[0].poses
        return couplings, m_step(dense, couplings, activations, previous, **options)

    return em_step


@checks_routing
@float32_under_autocast
def em_routing(
    votes: Float[Tensor, "batch child parent dim"] | Votes,
    activations: Float[Tensor, "batch child"],
    beta_u: Float[Tensor, " parent"] | Float[Tensor, " 1"],
    beta_a: Float[Tensor, " parent"] | Float[Tensor, " 1"],
    *,
    iterations: int = 3,  # Hinton 2018, section 4 and table 1
    cost: Cost = "paper",
    activation: Activation = "description_length",
    inverse_temperature: float | Tensor = 0.01,  # official code
    temperature_schedule: Temperature = "saturating",
    initial: Initial = "parents",
    damping: float = 0.0,
    min_variance: float = 5e-4,  # official code
    mass_eps: float = 1e-7,  # official code, convolutional layers
    normalise: Normaliser | None = None,
    on_iteration: OnIteration | None = None,
    backend: Backend = "auto",
) -> Capsules:
    """Compute parents by fitting Gaussians to the votes of their children (Hinton 2018, procedure 1).

    Symbols of the paper: ``V_ij`` votes, ``a_i`` activations, ``R_ij`` couplings, ``mu_j`` poses, ``sigma_j^2``
    variances, ``lambda`` inverse temperature. The code computes with variances and logarithms, which avoids roots with
    infinite gradients and logarithms of sigmoids. The last E-step is omitted, because nothing uses its result.

    Args:
        votes, activations: ``V_ij`` as a tensor or as poses and weight; ``a_i`` in [0, 1].
        beta_u, beta_a: per parent or one for all: cost of a unit of mass and of being active, in units of ``cost``.
        cost: formula for the logit of a parent's activation, see ``em_costs.activation_logit``.
        activation: ``"description_length"``: the logistic of that logit; ``"mixing_proportions"``: the share of the
            parent in the mass of the whole layer. With the latter the paper reports 4.5 % instead of 1.8 %.
        inverse_temperature, temperature_schedule: see ``em_costs.inverse_temperatures``.
        initial: initial couplings are equal over all ``"parents"`` that compete for the child (paper) or over the
            ``"types"`` of each position (official code), so that a child seen by nine positions counts nine times.
        damping: share of the previous pose that is kept (0.1 in the official code, starting from a pose of zero).
        min_variance, mass_eps: added to every variance and to every mass.
        normalise, on_iteration, backend: see ``AbstractRouting``.

    >>> votes, activations = torch.ones(1, 5, 2, 16), torch.full((1, 5), 0.5)  # five children that agree
    >>> em_routing(votes, activations, torch.zeros(2), torch.zeros(2)).activations
    tensor([[0.5271, 0.5271]])
    """
    numbers: dict[str, Any] = {"min_variance": min_variance}
    # a schedule in the memory of a GPU is not read
    if not isinstance(inverse_temperature, Tensor):
        numbers["inverse_temperature"] = inverse_temperature
    em_costs.check_options(
        iterations,
        damping=damping,
        cost=cost,
        activation=activation,
        temperature_schedule=temperature_schedule,
        initial=initial,
        **numbers,
    )
    check_probabilities("em_routing", "activations", activations)
    normalise = normalise or Normaliser()
    lambdas = em_costs.inverse_temperatures(iterations, inverse_temperature, temperature_schedule)

    def procedure(votes: AbstractVotes, activations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dim = votes.shape[3]
        em_step = make_em_step(
            votes, activations, damping=damping, min_variance=min_variance, mass_eps=mass_eps
        )
        before = None
        competition = EqualOverTypes() if initial == "types" else normalise
        for iteration in range(iterations):
            # E-step and M-step: R_ij [b j i]; sum_i R_ij a_i [b j], mu_j and sigma_j^2 [b j d]
            couplings, parents = em_step(before, competition, last=iteration == iterations - 1)
            # activations a_j: logistic of the description length that is saved [b j]
            log_variance = parents.variances.log().sum(2)
            if activation == "mixing_proportions":
                logit = (parents.mass / normalise.total(parents.mass)).log()
            else:
                fitted = parents.mass, log_variance, beta_u, beta_a, dim, min_variance
                logit = lambdas[iteration] * em_costs.activation_logit(cost, *fitted)
            log_activation, parent_activations = em_costs.activate(logit, activation)
            result = parents.poses, parent_activations, logit
            if on_iteration is not None:
                by_child = couplings.transpose(1, 2)
                on_iteration(RoutingTrace(iteration, by_child, *result, parents.variances))
            # logarithm of a_j / sqrt(prod_d 2 pi sigma_jd^2): activation times height of the Gaussian
            log_height = log_activation - 0.5 * (log_variance + dim * LOG_2PI)
            before = parents, log_height
            competition = normalise
        return result

    return Capsules(*route(procedure, votes, activations, normalise, on_iteration, backend))


class EMRouting(AbstractRouting):
    """``em_routing`` with learned betas. Defaults: newer cost of the official code, normalisation of the paper.

    Args:
        parents, dim: number of parents (of parent types in a convolutional layer), components of a pose.
        beta_u, beta_a, inverse_temperature: initial betas and lambda; ``None``: the values of ``em_costs.INITIAL``.
        shared_betas: one pair for all parents (the paper's text on beta_a); otherwise one pair per type (the authors).
        normalisation, backend: see ``AbstractRouting``; the others: see ``em_routing``.
    """

    scheduled: Mapping[str, type[int] | type[float]] = {
        "iterations": int,
        "inverse_temperature": float,
    }

    def __init__(
        self,
        parents: int,
        dim: int,
        *,
        iterations: int = 3,
        normalisation: Normalisation = "all_parents",
        cost: Cost = "official_fast",  # not that of ``em_routing``, see above
        activation: Activation = "description_length",
        inverse_temperature: float | None = None,
        temperature_schedule: Temperature = "saturating",
        initial: Initial = "parents",
        damping: float = 0.0,
        min_variance: float = 5e-4,
        mass_eps: float = 1e-7,
        beta_u: float | None = None,
        beta_a: float | None = None,
        shared_betas: bool = False,
        backend: Backend = "auto",
    ) -> None:
        beta_u, beta_a, inverse_temperature = em_costs.initial_values(
            cost, beta_u, beta_a, inverse_temperature
        )
        super().__init__(
            backend=backend,
            normalisation=normalisation,
            iterations=iterations,
            cost=cost,
            activation=activation,
            inverse_temperature=inverse_temperature,
            temperature_schedule=temperature_schedule,
            initial=initial,
            damping=damping,
            min_variance=min_variance,
            mass_eps=mass_eps,
        )
        em_costs.check_options(**self.options)
        self.sigmoid_logits = activation == "description_length"
        betas = (1 if shared_betas else parents,)
        learned = activation == "description_length"  # mixing proportions use none
        self.beta_u = nn.Parameter(torch.full(betas, beta_u), requires_grad=learned)
        self.beta_a = nn.Parameter(torch.full(betas, beta_a), requires_grad=learned)

    def forward(
        self, votes: Tensor | Votes, activations: Tensor | None = None, **call: Unpack[Call]
    ) -> Capsules:
        return em_routing(
            votes,
            self.require_activations(activations),
            self.beta_u,
            self.beta_a,
            **self.options,
            backend=self.backend,
            **call,
        )
