"""Inverted dot-product attention: Tsai, Srivastava, Goh and Salakhutdinov, ICLR 2020, sequential form.

In contrast to usual attention, the parents compete for a child. Layer normalisation replaces the squash. By default
the paper updates all layers at once, each from the previous state; here each layer finishes before the next one starts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.functional import float32_under_autocast
from capsule_lab.kernels import AbstractVotes, Backend, route
from capsule_lab.routing.base import (
    AbstractRouting,
    Call,
    Normalisation,
    Normaliser,
    check_iterations,
)
from capsule_lab.shapes import checks_routing
from capsule_lab.types import Capsules, OnIteration, RoutingTrace, Votes

__all__ = ["InvertedAttention", "inverted_attention"]

EPS = 1e-5  # official code: the default of torch.nn.LayerNorm


@checks_routing
@float32_under_autocast
def inverted_attention(
    votes: Float[Tensor, "batch child parent dim"] | Votes,
    *,
    iterations: int = 2,  # Tsai 2020: CIFAR10 94.85 %, with 1 94.73 %
    scale: Float[Tensor, " dim"] | None = None,
    shift: Float[Tensor, " dim"] | None = None,
    normalise: Normaliser | None = None,
    on_iteration: OnIteration | None = None,
    backend: Backend = "auto",
) -> Capsules:
    """Compute parents from the agreement of their poses with the votes (Tsai 2020, algorithm 1).

    It starts with ``p_j = LN(sum_i V_ij / J)`` and repeats ``iterations - 1`` times: ``r_ij = softmax_j(<V_ij, p_j> /
    sqrt(d))`` and ``p_j = LN(sum_i r_ij V_ij)``. Each iteration replaces the logits.

    Args:
        scale, shift: parameters of the layer normalisation over the components of a pose, shared by all parents.
        votes, iterations, normalise, on_iteration, backend: see ``dynamic_routing``.

    Returns:
        Poses ``(batch, parent, dim)``; as logits the agreement of a parent with its votes, ``sum_i r_ij <V_ij, p_j> /
        sqrt(d)``; their logistic as activations. Logits and activations are ours: the paper has none.
    """
    check_iterations(iterations)
    normalise = normalise or Normaliser()

    def procedure(votes: AbstractVotes, _: Tensor | None) -> tuple[Tensor, Tensor]:
        dim = votes.shape[3]
        logits = votes.zero_logits()  # [b j i]
        for iteration in range(iterations):
            couplings = normalise(logits)  # [b j i]
            total = votes.weighted_sum(couplings)  # [b j d]
            poses = nn.functional.layer_norm(total, (dim,), scale, shift, EPS)  # [b j d]
            if iteration < iterations - 1:
                logits = votes.agreement(poses) / math.sqrt(dim)
            if on_iteration is not None:
                evidence = (total * poses).sum(2) / math.sqrt(dim)  # [b j]
                parents = poses, evidence.sigmoid(), evidence
                on_iteration(RoutingTrace(iteration, couplings.transpose(1, 2), *parents))
        return poses, (total * poses).sum(2) / math.sqrt(dim)

    poses, logits = route(procedure, votes, None, normalise, on_iteration, backend)
    return Capsules(poses, logits.sigmoid(), logits)


class InvertedAttention(AbstractRouting):
    """``inverted_attention`` with learned layer normalisation and, for class capsules, the linear head of the paper.

    The scores of the paper are a linear function of the poses of the class capsules, the same for all classes. With
    ``head`` the routing learns this function, which computes the logits. Without it, as in all lower layers, the logits
    are the agreement that ``inverted_attention`` returns. Activations are the logistic of the logits in both cases.

    Args:
        head: learn the linear function, ``dim + 1`` parameters.
        parents, dim, normalisation, backend: see ``AbstractRouting``; the others: see ``inverted_attention``.
    """

    scheduled: Mapping[str, type[int] | type[float]] = {"iterations": int}
    uses_activations = False

    def __init__(
        self,
        parents: int,
        dim: int,
        *,
        iterations: int = 2,
        head: bool = False,
        normalisation: Normalisation = "window",  # official code
        backend: Backend = "auto",
    ) -> None:
        if dim < 2:
            raise ValueError(
                "poses have 1 component, which layer normalisation makes 0; expected 2 or more"
            )
        super().__init__(backend=backend, normalisation=normalisation, iterations=iterations)
        self.scale = nn.Parameter(torch.ones(dim))
        self.shift = nn.Parameter(torch.zeros(dim))
        self.head = nn.Linear(dim, 1) if head else None

    def forward(
        self, votes: Tensor | Votes, activations: Tensor | None = None, **call: Unpack[Call]
    ) -> Capsules:
        options = {**self.options, "scale": self.scale, "shift": self.shift}
        parents = inverted_attention(votes, **options, backend=self.backend, **call)
        if self.head is None:
            return parents
        # calling the module would compute in half precision under autocast
        logits = (parents.poses * self.head.weight).sum(2) + self.head.bias
        return Capsules(parents.poses, logits.sigmoid(), logits)
