"""EM routing of matrix capsules: Hinton, Sabour and Frosst, ICLR 2018, procedure 1.

The paper, the two algorithms in its official code (``official_legacy``, the default there, and
``official_fast``) and a widely read tutorial differ in how the couplings are normalised, in the cost of a
parent and in its initial values. Each choice is a switch here; ``conf/routing/em*.yaml`` are the combinations.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from capsule_lab.errors import check_choice
from capsule_lab.functional import float32_under_autocast
from capsule_lab.kernels import AbstractVotes, Backend, Explanation, check_backend, route
from capsule_lab.routing.base import AbstractRouting, Normalisation, Normaliser
from capsule_lab.routing.em_costs import INITIAL, LOG_2PI, Cost, Temperature, evidence, inverse_temperature_at
from capsule_lab.types import Capsules, OnIteration, RoutingTrace, Votes

Activation = Literal["description_length", "mixing_proportions"]
Initial = Literal["parents", "types"]
Betas = Float[Tensor, " betas"]
"""One number per parent, or one for all."""


@float32_under_autocast
def em_routing(
    votes: Float[Tensor, "batch child parent dim"] | Votes,
    activations: Float[Tensor, "batch child"],
    beta_u: Betas,
    beta_a: Betas,
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
    """Parents as Gaussians fitted to the votes of their children (Hinton 2018, procedure 1).

    Their symbols: ``V_ij`` votes, ``a_i`` activations, ``R_ij`` couplings, ``mu_j`` poses, ``sigma_j^2``
    variance, ``sum_i R_ij a_i`` mass, ``lambda`` inverse temperature. Works with variances and logarithms: no
    root whose gradient is infinite, no logarithm of a sigmoid. The last E-step, which nothing uses, is left out.
    Gradients flow through all iterations.

    Args:
        votes: ``V_ij``, prediction of each child for each parent, or what they are made from.
        activations: ``a_i`` in [0, 1].
        beta_u: per parent (or one for all), what a unit of mass costs; its unit depends on ``cost``.
        beta_a: per parent (or one for all), what being active costs; its unit depends on ``cost``.
        iterations: at least 1.
        cost: which logit a parent's activation has, see ``evidence``.
        activation: ``"description_length"``, the logistic of that, or ``"mixing_proportions"``, a parent's share of
            the mass of the whole layer; the paper reports 4.5 % instead of 1.8 % with it.
        inverse_temperature: lambda, or the unit of its schedule.
        temperature_schedule: see ``inverse_temperature_at``.
        initial: equal couplings to start with: over all ``"parents"`` that compete for the child, as ``normalise``
            has it (paper: all that see it), or over the ``"types"``, 1 / parents of this call (official code), which
            in a convolutional layer gives a child seen from nine positions nine times its mass.
        damping: share of the previous pose that stays (0.1 in the official code, from a pose of zero).
        min_variance: added to every variance.
        mass_eps: added to every mass.
        normalise: log-couplings ``(batch, parent, child)`` to couplings; default softmax over the parents.
        on_iteration: called with a ``RoutingTrace`` after each iteration.
        backend: see ``AbstractRouting``.

    Returns:
        Poses ``mu_j`` and activations ``a_j`` of the last iteration.

    Raises:
        ValueError: for fewer than one iteration or an unknown switch.

    >>> votes, activations = torch.ones(1, 5, 2, 16), torch.full((1, 5), 0.5)  # five children that agree
    >>> em_routing(votes, activations, torch.zeros(2), torch.zeros(2)).activations
    tensor([[0.5271, 0.5271]])
    """
    _check(iterations=iterations, cost=cost, activation=activation, schedule=temperature_schedule, initial=initial)
    normalise = normalise or Normaliser()
    first = normalise if initial == "parents" else EqualOverTypes()

    def procedure(votes: AbstractVotes, activations: Tensor | None) -> Capsules:
        assert activations is not None
        _, _, _, dim = votes.shape
        explained: Explanation | None = None
        for iteration in range(iterations):
            last = iteration == iterations - 1
            # M-step: each parent is fitted to the children assigned to it
            fit = votes.fit(
                explained,
                activations,
                None if explained is None else explained.poses,
                first if explained is None else normalise,
                damping=damping,
                min_variance=min_variance,
                mass_eps=mass_eps,
                measure=not last,
            )
            log_variance = fit.variances.log().sum(2)  # [b j]
            if activation == "mixing_proportions":
                present = fit.mass / normalise.total(fit.mass)  # [b j]
                log_present = present.log()
            else:
                saved = evidence(cost, fit.mass, log_variance, beta_u, beta_a, dim=dim, min_variance=min_variance)
                logit = inverse_temperature_at(iteration, iterations, inverse_temperature, temperature_schedule) * saved
                present, log_present = logit.sigmoid(), logsigmoid(logit)  # [b j]
            if on_iteration is not None:
                on_iteration(RoutingTrace(iteration, fit.couplings.transpose(1, 2), fit.poses))
            # E-step: each child shares itself out by how well the parents explain its votes
            log_height = log_present - 0.5 * (log_variance + dim * LOG_2PI)  # 0.5: of the Gaussian; [b j]
            explained = Explanation(log_height, fit.poses, fit.variances, fit.distances)
        return Capsules(fit.poses, present)

    watched = on_iteration is not None
    return Capsules(
        *route(procedure, votes, activations, backend=backend, together=normalise.together, at_once=watched)
    )


class EqualOverTypes(Normaliser):
    """One share for each parent of the call, whatever the log-couplings (official code)."""

    def __call__(self, log_couplings: Float[Tensor, "batch parent child"]) -> Float[Tensor, "batch parent child"]:
        return torch.full_like(log_couplings, 1 / log_couplings.shape[1])


CLASS_LAYER: Mapping[str, Any] = {
    "cost": "official_legacy",  # official code: both of its algorithms have this class layer
    "inverse_temperature": 0.0025,  # official code: a quarter of 0.01
    "beta_u": 2.0,
    "beta_a": 1.0,
    "mass_eps": 1e-5,  # official code
}


class EMRouting(AbstractRouting):
    """``em_routing`` with its learned betas, one of each per parent type.

    The defaults are the official code's newer cost and initial values with the paper's normalisation, which
    the legacy cost would leave nearly dead from the start (activations of 0.03).

    Args:
        parents: number of parents, in a convolutional layer of parent types.
        dim: components of a pose.
        normalisation: who competes for a child in a convolutional layer, see ``Normalisation``.
        beta_u, beta_a: initial values; ``None`` takes those that belong to the cost, ``INITIAL``.
        inverse_temperature: see ``em_routing``; ``None`` takes the one that belongs to the cost.
        shared_betas: one pair for all parents (the paper's text on beta_a) instead of one per type (its authors).
        class_layer: options that differ in the class capsules of an ``EMCaps``, which applies them.
        iterations, cost, activation, temperature_schedule, initial, damping, min_variance, mass_eps, backend: see
            ``em_routing``.

    Raises:
        ValueError: for fewer than one iteration, a damping outside of [0, 1), a variance, mass or temperature that is
            not positive, or an unknown switch; in ``forward``, if the children have no activations.
    """

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
        class_layer: Mapping[str, Any] | None = CLASS_LAYER,
    ) -> None:
        super().__init__()
        self.backend = check_backend(backend)
        _check(iterations=iterations, cost=cost, activation=activation, schedule=temperature_schedule, initial=initial)
        check_choice("routing normalisation", normalisation, get_args(Normalisation))
        if not 0 <= damping < 1:
            raise ValueError(f"routing damping is {damping}; expected 0 (none) or more and less than 1")
        unknown = set(class_layer or {}) - inspect.signature(EMRouting).parameters.keys()
        if unknown:
            raise ValueError(f"routing class_layer has {', '.join(sorted(unknown))}; expected arguments of EMRouting")
        own = INITIAL[cost]
        inverse_temperature = own["inverse_temperature"] if inverse_temperature is None else inverse_temperature
        beta_u = own["beta_u"] if beta_u is None else beta_u
        beta_a = own["beta_a"] if beta_a is None else beta_a
        for name, value in (
            ("inverse_temperature", inverse_temperature), ("min_variance", min_variance), ("mass_eps", mass_eps)
        ):  # fmt: skip
            if not 0 < value < math.inf:
                raise ValueError(f"routing {name} is {value}; expected more than 0")
        self.normalisation = normalisation
        self.options: dict[str, Any] = {
            "iterations": iterations,
            "cost": cost,
            "activation": activation,
            "inverse_temperature": inverse_temperature,
            "temperature_schedule": temperature_schedule,
            "initial": initial,
            "damping": damping,
            "min_variance": min_variance,
            "mass_eps": mass_eps,
        }
        betas = 1 if shared_betas else parents
        learned = activation == "description_length"  # mixing proportions ask for no betas
        self.beta_u = nn.Parameter(torch.full((betas,), float(beta_u)), requires_grad=learned)
        self.beta_a = nn.Parameter(torch.full((betas,), float(beta_a)), requires_grad=learned)

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
        return em_routing(
            votes,
            activations,
            self.beta_u,
            self.beta_a,
            **self.options,
            normalise=normalise,
            on_iteration=on_iteration,
            backend=self.backend,
        )


def _check(*, iterations: int, cost: str, activation: str, schedule: str, initial: str) -> None:
    if iterations < 1:
        raise ValueError(f"routing iterations is {iterations}; expected 1 (no routing) or more, the paper uses 3")
    check_choice("routing cost", cost, get_args(Cost))
    check_choice("routing activation", activation, get_args(Activation))
    check_choice("routing temperature_schedule", schedule, get_args(Temperature))
    check_choice("routing initial", initial, get_args(Initial))
