"""Self-attention routing: Mazzia, Salvetti and Chiaberge, Scientific Reports 2021 (Efficient-CapsNet).

For each parent the votes of all children attend to each other: the logit of a child is the sum of the scalar products
of its vote with all votes. Because ``sum_k <u_ij, u_kj> = <u_ij, sum_k u_kj>``, this is one agreement with the sum of
the votes, as in dynamic routing, and the matrix of children by children is not computed.
"""

from __future__ import annotations

import math
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from capsule_lab.functional import (
    exponential_squash,
    exponential_squash_logits,
    float32_under_autocast,
    length,
)
from capsule_lab.kernels import AbstractVotes, Backend, route
from capsule_lab.routing.base import (
    AbstractRouting,
    Call,
    Normalisation,
    Normaliser,
    prior_of_every_child,
)
from capsule_lab.shapes import checks_routing
from capsule_lab.types import Capsules, OnIteration, RoutingTrace, Votes

__all__ = ["SelfAttentionRouting", "self_attention_routing"]


@checks_routing
@float32_under_autocast
def self_attention_routing(
    votes: Float[Tensor, "batch child parent dim"] | Votes,
    *,
    prior: Float[Tensor, "parent child_type"] | None = None,
    eps: float = 1e-8,  # ours: see exponential_squash
    normalise: Normaliser | None = None,
    on_iteration: OnIteration | None = None,
    backend: Backend = "auto",
) -> Capsules:
    """Compute parents by one step of self-attention (Mazzia 2021).

    Symbols of the paper: ``U_hat`` votes, ``A_j = U_j U_j^T / sqrt(d)`` attention, ``C`` couplings, ``B`` prior,
    ``S`` total input. The couplings are ``softmax over parents of (sum_k A_j[i, k]) + B``; without iterations.

    Args:
        prior: added to the couplings *after* the softmax, although the paper calls it "log prior": couplings may then
            be negative and need not sum to one. One per kind of child; children are ordered (position, kind).
        votes, normalise, on_iteration, backend: see ``dynamic_routing``; traces contain couplings including the prior.

    Returns poses ``(batch, parent, dim)`` of length ``1 - exp(-|S|)``, the lengths as activations, and their logits.
    """
    normalise = normalise or Normaliser()

    def procedure(votes: AbstractVotes, _: Tensor | None) -> tuple[Tensor, ...]:
        every = torch.ones_like(votes.zero_logits())  # [b j i]
        summed = votes.weighted_sum(every)  # sum_k u_kj [b j d]
        attention = votes.agreement(summed) / math.sqrt(votes.shape[3])  # sum_k A_j[i, k] [b j i]
        couplings = normalise(attention)  # [b j i]
        if prior is not None:
            couplings = couplings + prior_of_every_child(prior, votes)
        total = votes.weighted_sum(couplings)  # [b j d]
        poses = exponential_squash(total, eps=eps)
        parents = poses, length(poses, eps), exponential_squash_logits(total, eps)
        if on_iteration is not None:
            on_iteration(RoutingTrace(0, couplings.transpose(1, 2), *parents))
        return parents

    return Capsules(*route(procedure, votes, None, normalise, on_iteration, backend))


class SelfAttentionRouting(AbstractRouting):
    """``self_attention_routing`` with a learned prior, which ``build`` creates and which starts at zero.

    Args:
        prior: learn a number for each parent and kind of child that is added to their coupling (160 numbers for ten
            digits and 16 children).
        parents, dim, normalisation, backend: see ``AbstractRouting``.
    """

    uses_activations = False

    def __init__(
        self,
        parents: int,
        dim: int,
        *,
        prior: bool = True,
        normalisation: Normalisation = "all_parents",
        backend: Backend = "auto",
    ) -> None:
        # the prior starts at zero: official code
        super().__init__(backend=backend, normalisation=normalisation, learned_prior=prior)

    def forward(
        self, votes: Tensor | Votes, activations: Tensor | None = None, **call: Unpack[Call]
    ) -> Capsules:
        return self_attention_routing(votes, prior=self.built_prior, backend=self.backend, **call)
