"""Routing by the benefit of data used and the cost of data ignored: Heinsen 2019 (arXiv 1911.00792), algorithm 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.functional import add_to_votes, float32_under_autocast
from capsule_lab.kernels import AbstractVotes, Backend, route
from capsule_lab.routing import base
from capsule_lab.routing.em import make_em_step
from capsule_lab.shapes import check_probabilities, checks_routing
from capsule_lab.types import Capsules, OnIteration, RoutingTrace, Votes

__all__ = ["HeinsenRouting", "heinsen_routing"]

EPS = 1e-5  # official code: added to every variance and every mass


@checks_routing
@float32_under_autocast
def heinsen_routing(
    votes: Float[Tensor, "batch child parent dim"] | Votes,
    activations: Float[Tensor, "batch child"],
    beta_use: Float[Tensor, "type parent"],
    beta_ignore: Float[Tensor, "type parent"],
    *,
    bias: Float[Tensor, "type parent dim"] | None = None,
    iterations: int = 3,  # Heinsen 2019, section 3
    normalise: base.Normaliser | None = None,
    on_iteration: OnIteration | None = None,
    backend: Backend = "auto",
) -> Capsules:
    """Compute parents by the benefit of the data they use and the cost of the data they ignore (Heinsen 2019).

    Symbols of the paper: ``V_ij`` votes, ``B_ij`` bias, ``f(a_i)`` activations, ``R_ij`` couplings, ``D_use`` and
    ``D_ignore`` used and ignored data, ``mu_j`` poses, ``sigma_j^2`` variances, ``a_j`` scores. E-step and M-step are
    as in EM routing. The score ``a_j = sum_i (beta_use_ij D_use_ij - beta_ignore_ij D_ignore_ij)`` is a real number
    without a temperature, and the activation is its logistic.

    Args:
        votes, activations: ``V_ij`` without bias, as a tensor or as poses and weight; ``f(a_i)`` in [0, 1].
        beta_use, beta_ignore, bias: benefit and cost of a unit of data, and the bias of the votes, for each child
            type; children are ordered (position, type).
        iterations, normalise, on_iteration, backend: see ``dynamic_routing``.

    Returns poses ``mu_j``; activations, the logistic of the scores; logits, the scores.
    """
    base.check_iterations(iterations)
    check_probabilities("heinsen_routing", "activations", activations)
    normalise = normalise or base.Normaliser()
    positions = base.check_child_types(len(beta_use), activations.shape[1])
    benefit = beta_use.t().repeat(1, positions)  # [j i]
    cost = beta_ignore.t().repeat(1, positions)  # [j i]
    votes = votes if bias is None else _biased(votes, bias)

    def procedure(votes: AbstractVotes, activations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        options = {"damping": 0.0, "min_variance": EPS, "mass_eps": EPS}
        # scores are functions of the couplings
        em_step = make_em_step(votes, activations, couplings_with_gradient=True, **options)
        before = None
        for iteration in range(iterations):
            # E-step and M-step: as in EM routing, R_ij [b j i]
            couplings, parents = em_step(before, normalise, last=iteration == iterations - 1)
            # D-step: the share of each child that a parent uses and ignores, and the score of the parent
            use = activations.unsqueeze(1) * couplings  # [b j i]
            ignore = activations.unsqueeze(1) - use
            scores = (benefit * use - cost * ignore).sum(2)  # a_j [b j]
            if on_iteration is not None:
                result = parents.poses, scores.sigmoid(), scores, parents.variances
                on_iteration(RoutingTrace(iteration, couplings.transpose(1, 2), *result))
            # logarithm of f(a_j) / sqrt(prod_d sigma_jd^2)
            log_deviations = 0.5 * parents.variances.log().sum(2)  # [b j]
            before = parents, nn.functional.logsigmoid(scores) - log_deviations
        return parents.poses, scores.sigmoid(), scores

    return Capsules(*route(procedure, votes, activations, normalise, on_iteration, backend))


def _biased(votes: Tensor | Votes, bias: Float[Tensor, "type parent dim"]) -> Tensor | Votes:
    children = (votes.poses if isinstance(votes, Votes) else votes).shape[1]
    positions = base.check_child_types(len(bias), children)
    added = bias.repeat(positions, 1, 1)  # [i j d]
    return add_to_votes(votes, added) if isinstance(votes, Votes) else votes + added


class HeinsenRouting(base.AbstractRouting):
    """``heinsen_routing`` with learned betas and biases, which start at zero.

    Args:
        bias: learn biases of the votes, one per (child type, parent, component).
        parents, dim, normalisation, backend: see ``AbstractRouting``; the others: see ``heinsen_routing``.
    """

    scheduled: Mapping[str, type[int] | type[float]] = {"iterations": int}

    def __init__(
        self,
        parents: int,
        dim: int,
        *,
        iterations: int = 3,
        bias: bool = True,
        normalisation: base.Normalisation = "all_parents",
        backend: Backend = "auto",
    ) -> None:
        super().__init__(backend=backend, normalisation=normalisation, iterations=iterations)
        self.with_bias = bias
        # in the order of the saved state of an optimiser
        for name in ("beta_use", "beta_ignore", "bias"):
            self.register_parameter(name, None)

    def build(self, layer: base.LayerInfo) -> None:
        sizes = layer.child_types, layer.parents
        self.beta_use = nn.Parameter(torch.zeros(sizes))  # 0: official code
        self.beta_ignore = nn.Parameter(torch.zeros(sizes))  # 0: official code
        if self.with_bias:
            self.bias = nn.Parameter(torch.zeros(*sizes, layer.dim))

    def counted_votes(self, votes: Tensor | Votes, activations: Tensor | None = None) -> Tensor:
        return super().counted_votes(votes if self.bias is None else _biased(votes, self.bias))

    def forward(
        self, votes: Tensor | Votes, activations: Tensor | None = None, **call: Unpack[base.Call]
    ) -> Capsules:
        return heinsen_routing(
            votes,
            self.require_activations(activations),
            self.require_parameter("beta_use"),
            self.require_parameter("beta_ignore"),
            bias=self.bias,
            **self.options,
            backend=self.backend,
            **call,
        )
