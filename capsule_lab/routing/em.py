"""EM routing of matrix capsules: Hinton, Sabour and Frosst, ICLR 2018, procedure 1.

The paper, the two algorithms in its official code (``official_legacy``, the default there, and ``official_fast``) and
a widely read tutorial differ in normalisation, cost and initial values: ``conf/routing/em*.yaml``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.functional import float32_under_autocast
from capsule_lab.kernels import AbstractVotes, Backend, FusedVotes, Gaussians, check_backend, route
from capsule_lab.routing import em_costs
from capsule_lab.routing.base import AbstractRouting, EqualOverTypes, Normalisation, Normaliser, check_parents
from capsule_lab.routing.em_costs import LOG_2PI, Activation, Cost, Initial, Temperature
from capsule_lab.types import Capsules, OnIteration, RoutingTrace, Votes


def m_step(
    votes: Float[Tensor, "batch parent child dim"],
    couplings: Float[Tensor, "batch parent child"],
    activations: Float[Tensor, "batch child"],
    previous: Float[Tensor, "batch parent dim"] | None,
    damping: float,
    min_variance: float,
    mass_eps: float,
) -> Gaussians:
    """M-step: the Gaussian of each parent, fitted to the votes of the children assigned to it."""
    assigned = couplings * activations.unsqueeze(1)  # R_ij a_i [b j i]
    mass = assigned.sum(2) + mass_eps  # sum_i R_ij a_i [b j]
    weights = assigned / mass.unsqueeze(2)  # [b j i]
    poses = (weights.unsqueeze(2) @ votes).squeeze(2)  # mu_j: bji,bjid->bjd
    if damping:
        poses = (1 - damping) * poses + (0.0 if previous is None else damping * previous)
    squared = (votes - poses.unsqueeze(2)).square()  # (V_ij - mu_j)^2 [b j i d]
    variances = min_variance + (weights.unsqueeze(2) @ squared).squeeze(2)  # sigma_j^2: bji,bjid->bjd
    return Gaussians(mass, poses, variances, squared)


def e_step(parents: Gaussians, log_height: Float[Tensor, "batch parent"], normalise: Normaliser) -> Tensor:
    """E-step: couplings R_ij ``(batch, parent, child)``, posteriors of parent j given vote ij (responsibilities).

    ``ln (a_j p_ij) = log_height_j - sum_d (V_ijd - mu_jd)^2 / (2 sigma_jd^2)``, normalised over the parents of a child.
    """
    distances = (parents.deviations @ (0.5 / parents.variances).unsqueeze(3)).squeeze(3)  # bjid,bjd->bji
    return normalise(log_height.unsqueeze(2) - distances)


def fit_parents(
    votes: AbstractVotes,
    activations: Float[Tensor, "batch child"],
    log_prior: Callable[[int, Tensor, Tensor], Tensor],
    *,
    iterations: int,
    normalise: Normaliser,
    first: Normaliser,
    temperature: Tensor | float = 1.0,
    on_iteration: OnIteration | None = None,
    present: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
    damping: float = 0.0,
    min_variance: float,
    mass_eps: float,
) -> tuple[Gaussians, Float[Tensor, "batch parent"]]:
    """E-steps and M-steps in turn: the Gaussians of the last iteration, and the summed logarithm of their variances.

    ``FusedVotes.em_step`` is both steps in one, the same numbers. Gradients flow through all iterations.

    Args:
        votes, activations: of the children.
        log_prior: from the number of the iteration, mass and summed log-variance ``(batch, parent)``, what the E-step
            adds to the logarithm of each parent's density: the logarithm of its activation, in Hinton 2018.
        iterations: how many M-steps, with an E-step between two of them.
        normalise, first: log-couplings to couplings, and those of the first iteration.
        temperature: what log-couplings are divided by, before they are normalised.
        on_iteration: see ``AbstractRouting``.
        present: from the same as ``log_prior``, activations and logits of the parents, for traces.
        damping, min_variance, mass_eps: see ``em_routing``.
    """
    options = {"damping": damping, "min_variance": min_variance, "mass_eps": mass_eps}
    dim, dense = votes.shape[3], Tensor() if isinstance(votes, FusedVotes) else votes.dense().transpose(1, 2)
    before: tuple[Gaussians, Tensor] | None = None  # parents of the iteration before, and their log_height
    for iteration in range(iterations):
        more = iteration < iterations - 1
        if isinstance(votes, FusedVotes):  # both steps in one kernel
            current = first if before is None else normalise
            couplings, parents = votes.em_step(before, activations, current, measure=more, **options)
        else:
            # E-step: children are assigned to the parents whose Gaussians explain their votes
            couplings = first(votes.zero_logits()) if before is None else e_step(*before, normalise)  # R_ij [b j i]
            # M-step: these Gaussians are fitted to the votes of the children assigned to them
            parents = m_step(dense, couplings, activations, before and before[0].poses, **options)
        log_variance = parents.variances.log().sum(2)  # [b j]
        if on_iteration is not None:
            by_child, variances = couplings.transpose(1, 2), parents.variances
            found = (None, None) if present is None else present(iteration, parents.mass, log_variance)
            on_iteration(RoutingTrace(iteration, by_child, parents.poses, found[0], found[1], variances))
        if more:
            # the logarithm of a_j / sqrt(prod_d 2 pi sigma_jd^2): of a parent's activation times its Gaussian's height
            log_height = log_prior(iteration, parents.mass, log_variance) - 0.5 * (log_variance + dim * LOG_2PI)
            before = _tempered(parents, temperature), log_height / temperature
    return parents, log_variance


def _tempered(parents: Gaussians, temperature: Tensor | float) -> Gaussians:
    """Gaussians whose distances, ``(V - mu)^2 / (2 sigma^2)``, are those of ``parents`` over the temperature."""
    if isinstance(temperature, float) and temperature == 1:
        return parents
    fused = parents.deviations.ndim == 3  # in units of the variance already, see Gaussians
    deviations = parents.deviations / temperature if fused else parents.deviations
    return parents._replace(variances=parents.variances * temperature, deviations=deviations)


@float32_under_autocast
def em_routing(
    votes: Float[Tensor, "batch child parent dim"] | Votes,
    activations: Float[Tensor, "batch child"],
    beta_u: Float[Tensor, " betas"],
    beta_a: Float[Tensor, " betas"],
    *,
    iterations: int = 3,  # Hinton 2018, section 4 and table 1
    cost: Cost = "paper",
    activation: Activation = "description_length",
    inverse_temperature: float = 0.01,  # official code
    temperature_schedule: Temperature = "saturating",
    initial: Initial = "parents",
    damping: float = 0.0,
    min_variance: float = 5e-4,  # official code
    mass_eps: float = 1e-7,  # official code, convolutional layers
    normalise: Normaliser | None = None,
    on_iteration: OnIteration | None = None,
    backend: Backend = "auto",
) -> Capsules:
    """Poses and activations of parents: Gaussians fitted to the votes of their children (Hinton 2018, procedure 1).

    Their symbols: ``V_ij`` votes, ``a_i`` activations, ``R_ij`` couplings (assignment probabilities), ``mu_j`` poses,
    ``sigma_j^2`` variance, ``sum_i R_ij a_i`` mass, ``lambda`` inverse temperature. Works with variances and
    logarithms: no root whose gradient is infinite, no logarithm of a sigmoid. The last E-step, which nothing uses, is
    left out.

    Args:
        votes, activations: ``V_ij``, the tensor or poses and weight; ``a_i`` in [0, 1].
        beta_u, beta_a: per parent (or one for all), what a unit of mass costs and what being active costs; their units
            depend on ``cost``.
        cost: which logit a parent's activation has, see ``em_costs.activation_logit``.
        activation: ``"description_length"``, the logistic of that, or ``"mixing_proportions"``, a parent's share of
            the mass of the whole layer; the paper reports 4.5 % instead of 1.8 % with it.
        inverse_temperature, temperature_schedule: see ``em_costs.inverse_temperatures``.
        initial: equal couplings to start with: over all ``"parents"`` that compete for the child (paper), or over the
            ``"types"`` of each position (official code): nine times its mass for a child that nine positions see.
        damping: share of the previous pose that stays (0.1 in the official code, from a pose of zero).
        min_variance, mass_eps: added to every variance, to every mass.
        normalise, on_iteration, backend: see ``AbstractRouting``.

    Raises:
        ValueError: for fewer than one iteration or an unknown switch.

    >>> votes, activations = torch.ones(1, 5, 2, 16), torch.full((1, 5), 0.5)  # five children that agree
    >>> em_routing(votes, activations, torch.zeros(2), torch.zeros(2)).activations
    tensor([[0.5271, 0.5271]])
    """
    em_costs.check_options(iterations, cost, activation, temperature_schedule, initial)
    normalise = normalise or Normaliser()
    first = EqualOverTypes() if initial == "types" else normalise
    lambdas = em_costs.inverse_temperatures(iterations, inverse_temperature, temperature_schedule)
    shares = activation == "mixing_proportions"

    def procedure(votes: AbstractVotes, activations: Tensor) -> tuple[Tensor, ...]:
        check_parents(votes, "beta_u", beta_u)

        def logit(iteration: int, mass: Tensor, log_variance: Tensor) -> Tensor:
            """The activations of the parents, from what it costs to describe their votes."""
            if shares:
                return (mass / normalise.total(mass)).log()
            dim = votes.shape[3]
            unscaled = em_costs.activation_logit(cost, mass, log_variance, beta_u, beta_a, dim, min_variance)
            return lambdas[iteration] * unscaled

        def log_present(iteration: int, mass: Tensor, log_variance: Tensor) -> Tensor:
            found = logit(iteration, mass, log_variance)
            return found if shares else nn.functional.logsigmoid(found)  # ln a_j [b j]

        def present(iteration: int, mass: Tensor, log_variance: Tensor) -> tuple[Tensor, Tensor]:
            found = logit(iteration, mass, log_variance)
            return found.exp() if shares else found.sigmoid(), found  # a_j, its logit [b j]

        parents, log_variance = fit_parents(
            votes, activations, log_present, iterations=iterations, normalise=normalise, first=first,
            on_iteration=on_iteration, present=present, damping=damping, min_variance=min_variance, mass_eps=mass_eps,
        )  # fmt: skip
        return parents.poses, *present(iterations - 1, parents.mass, log_variance)

    rows, watched = normalise.rows_per_image, on_iteration is not None
    parents = route(procedure, votes, activations, backend=backend, rows_per_image=rows, whole_batch=watched)
    return Capsules(*parents)


class EMRouting(AbstractRouting):
    """``em_routing`` with learned betas. Defaults: the official code's newer cost, the paper's normalisation.

    Args:
        parents, dim: number of parents (in a convolutional layer of parent types), components of a pose.
        normalisation: which parents compete for a child in a convolutional layer, see ``Normalisation``.
        beta_u, beta_a, inverse_temperature: initial betas, and lambda; ``None``: those of ``em_costs.INITIAL``.
        shared_betas: one pair for all parents (the paper's text on beta_a) instead of one per type (its authors).
        iterations, cost, activation, temperature_schedule, initial, damping, min_variance, mass_eps, backend: see
            ``em_routing``.

    Raises:
        ValueError: for a number out of range or an unknown switch; in ``forward``, for children without activations.
    """

    scheduled: Mapping[str, type[int] | type[float]] = {"iterations": int, "inverse_temperature": float}

    def __init__(
        self,
        parents: int,
        dim: int,
        *,
        iterations: int = 3,  # Hinton 2018, section 4 and table 1
        normalisation: Normalisation = "all_parents",
        cost: Cost = "official_fast",
        activation: Activation = "description_length",
        inverse_temperature: float | None = None,
        temperature_schedule: Temperature = "saturating",
        initial: Initial = "parents",
        damping: float = 0.0,
        min_variance: float = 5e-4,  # official code
        mass_eps: float = 1e-7,  # official code
        beta_u: float | None = None,
        beta_a: float | None = None,
        shared_betas: bool = False,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        beta_u, beta_a, inverse_temperature = em_costs.initial_values(cost, beta_u, beta_a, inverse_temperature)
        self.options: dict[str, Any] = {
            "iterations": iterations, "cost": cost, "activation": activation, "initial": initial,
            "inverse_temperature": inverse_temperature, "temperature_schedule": temperature_schedule,
            "damping": damping, "min_variance": min_variance, "mass_eps": mass_eps,
        }  # fmt: skip
        em_costs.check_options(**self.options, normalisation=normalisation)
        self.normalisation = normalisation
        self.backend = check_backend(backend)
        betas, learned = (1 if shared_betas else parents,), activation == "description_length"
        self.beta_u = nn.Parameter(torch.full(betas, beta_u), requires_grad=learned)  # mixing proportions have none
        self.beta_a = nn.Parameter(torch.full(betas, beta_a), requires_grad=learned)

    def scheduled_options(self) -> dict[str, Any]:
        return self.options

    def forward(
        self,
        votes: Float[Tensor, "batch child parent dim"] | Votes,
        activations: Float[Tensor, "batch child"] | None = None,
        *,
        normalise: Normaliser | None = None,
        on_iteration: OnIteration | None = None,
    ) -> Capsules:
        if activations is None:
            raise ValueError("EM routing got no activations of the children; expected (batch, child) in [0, 1]")
        options = {**self.options, "normalise": normalise, "on_iteration": on_iteration, "backend": self.backend}
        return em_routing(votes, activations, self.beta_u, self.beta_a, **options)
