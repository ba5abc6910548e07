"""Self-routing: Hahn, Pyeon and Kim, NeurIPS 2019, section 3. Couplings depend only on the child's pose."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor, einsum, nn

from capsule_lab.functional import float32_under_autocast
from capsule_lab.kernels import AbstractVotes, Backend, route
from capsule_lab.routing.base import (
    AbstractRouting,
    Call,
    LayerInfo,
    Normalisation,
    Normaliser,
    check_child_types,
)
from capsule_lab.shapes import check_range, checks_routing
from capsule_lab.types import Capsules, OnIteration, RoutingTrace, Votes

__all__ = ["SelfRouting", "self_routing"]

EPS = 1e-12  # ours: limit of divisors; with smaller divisors gradients overflow


@checks_routing
@float32_under_autocast
def self_routing(
    votes: Votes,
    activations: Float[Tensor, "batch child"],
    weight: Float[Tensor, "type parent child_dim"],
    bias: Float[Tensor, "type parent"],
    *,
    normalise: Normaliser | None = None,
    on_iteration: OnIteration | None = None,
    backend: Backend = "auto",
) -> Capsules:
    """Compute parents as means over the children, weighted by learned couplings (Hahn 2019, section 3).

    Symbols of the paper: ``u_i`` poses of the children, ``a_i`` their activations, ``W^route`` weight, ``c_ij``
    couplings, ``W^pose u_i`` votes. ``a_j`` is the mean of ``c_ij`` weighted by ``a_i``, so that the activations of all
    parents sum to one if the couplings of a child do; the logit is the logarithm of ``a_j``. Children with activation 0
    have no weight; if all activations are 0, all children have the same weight (the official code divides 0 by 0). The
    pose of a parent with an activation below ``EPS`` shrinks towards 0.

    Args:
        votes: poses and transformations of the children; for parents without poses, transformations have no columns.
        activations: ``a_i``, 0 or more.
        weight, bias: ``W^route`` and its bias for each child type; children are ordered (position, type).
        normalise, on_iteration, backend: see ``AbstractRouting``.
    """
    expected = "activations, 0 or more, not logits"
    check_range("self_routing", "activations", activations, 0, math.inf, expected)
    normalise = normalise or Normaliser()
    children = votes.child_poses
    types, _, child_dim = weight.shape
    check_child_types(types, children.shape[1])
    if children.shape[2] != child_dim:
        raise ValueError(
            f"poses have {children.shape[2]} components, the routing's weight {child_dim}; expected equal numbers"
        )
    by_type = einsum("bptc,tjc->bjpt", children.unflatten(1, (-1, types)), weight)
    biased = by_type + bias.t().unsqueeze(1)  # [b j position type]
    couplings = normalise(biased.flatten(2))  # c_ij [b j i]
    total = activations.sum(1, keepdim=True)  # [b 1]
    equal_share = 1 / activations.shape[1]
    share = torch.where(total > EPS, activations / total.clamp_min(EPS), equal_share)  # [b i]
    assigned = couplings * share.unsqueeze(1)  # [b j i]
    parent_activations = assigned.sum(2)  # a_j [b j]
    if votes.weight.shape[3] == 0:
        poses = assigned.new_zeros(*parent_activations.shape, 0)
    else:
        weights = assigned / parent_activations.clamp_min(EPS).unsqueeze(2)
        (poses,) = route(_weighted_sum, votes, weights, normalise, None, backend)
    logits = parent_activations.clamp_min(torch.finfo(poses.dtype).tiny).log()
    if on_iteration is not None:
        on_iteration(RoutingTrace(0, couplings.transpose(1, 2), poses, parent_activations, logits))
    return Capsules(poses, parent_activations, logits)


def _weighted_sum(votes: AbstractVotes, weights: Tensor) -> tuple[Tensor]:
    return (votes.weighted_sum(weights),)


class SelfRouting(AbstractRouting):
    """``self_routing`` with learned weights, which start at zero, that is with equal couplings.

    Args:
        poses: whether parents have poses. A layer of parents without poses has no transformations, as the class layer
            of the paper's networks.
        parents, dim, normalisation, backend: see ``AbstractRouting``.
    """

    def __init__(
        self,
        parents: int,
        dim: int,
        *,
        poses: bool = True,
        normalisation: Normalisation = "window",  # Hahn 2019, official code
        backend: Backend = "auto",
    ) -> None:
        super().__init__(backend=backend, normalisation=normalisation)
        self.poses = poses
        self.sigmoid_logits = False

    def build(self, layer: LayerInfo) -> None:
        sizes = layer.child_types, layer.parents, layer.child_dim
        self.weight = nn.Parameter(torch.zeros(sizes))  # 0: official code
        self.bias = nn.Parameter(torch.zeros(sizes[:2]))  # 0: official code

    def forward(
        self, votes: Tensor | Votes, activations: Tensor | None = None, **call: Unpack[Call]
    ) -> Capsules:
        if not isinstance(votes, Votes):
            raise ValueError(  # noqa: TRY004
                "self-routing received a tensor of votes; expected Votes(poses, weight)"
            )
        learned = self.require_parameter("weight"), self.require_parameter("bias")
        return self_routing(
            votes, self.require_activations(activations), *learned, backend=self.backend, **call
        )
