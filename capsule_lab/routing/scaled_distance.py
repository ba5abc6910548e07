"""Scaled-distance agreement: Peer, Stabinger and Rodriguez-Sanchez 2018 (arXiv 1812.09707), gamma-capsules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.errors import check_number
from capsule_lab.functional import float32_under_autocast, length, squash, squash_logits
from capsule_lab.kernels import AbstractVotes, Backend, route
from capsule_lab.routing.base import (
    AbstractRouting,
    Call,
    Normalisation,
    Normaliser,
    check_iterations,
)
from capsule_lab.shapes import check_range, checks_routing
from capsule_lab.types import Capsules, OnIteration, RoutingTrace, Votes

__all__ = ["ScaledDistanceAgreement", "scaled_distance_agreement"]


@checks_routing
@float32_under_autocast
def scaled_distance_agreement(
    votes: Float[Tensor, "batch child parent dim"] | Votes,
    lengths: Float[Tensor, "batch child"],
    *,
    iterations: int = 3,  # Peer 2018, official code
    share: float = 0.9,  # Peer 2018, official code: p
    bias: Float[Tensor, "parent dim"] | None = None,
    normalise: Normaliser | None = None,
    on_iteration: OnIteration | None = None,
    backend: Backend = "auto",
) -> Capsules:
    """Compute parents from the distances between their poses and the votes (Peer 2018).

    A vote is at most as long as the pose of its child: ``u_hat`` is shortened to ``min(|u_hat|, |u_i|)``. As in dynamic
    routing, ``s_j = sum_i c_ij u_hat + bias`` and ``v_j = squash(s_j)``, but each iteration replaces the logits:
    ``b_ij = t |v_j - u_hat_ij|``, where ``t = -2 ln(p (J - 1) / (1 - p)) / d_o`` and ``d_o`` is the mean distance
    between votes and parents of an image. A vote at half of this distance gets the share p of its child if the other
    votes of the child are at the mean. In the official code ``d_o`` is a mean over the batch, so images interact.

    Args:
        lengths: lengths of the children's poses, or their activations if these are lengths.
        share: ``p``, more than the share of equal couplings and less than 1.
        votes, iterations, bias, normalise, on_iteration, backend: see ``dynamic_routing``, which returns the same
            kind of capsules; but the vote tensor is always computed.
    """
    normalise = normalise or Normaliser()
    check_range(
        "scaled_distance_agreement", "lengths", lengths, 0, math.inf, "lengths of poses, 0 or more"
    )

    def procedure(votes: AbstractVotes, lengths: Tensor) -> tuple[Tensor, ...]:
        _, child, parent, _ = votes.shape
        _check(iterations, share, parent)
        entries = normalise.rows_per_image * parent * child
        log_ratio = 0.0  # a single parent has the coupling 1
        if parent > 1:
            log_ratio = math.log(share * (parent - 1) / (1 - share))
        dense = votes.dense()  # [b i j d]
        shortened = _shortened(dense, lengths)
        logits = votes.zero_logits()  # [b j i]
        for iteration in range(iterations):
            couplings = normalise(logits)  # [b j i]
            total = (couplings.transpose(1, 2).unsqueeze(3) * shortened).sum(1)  # [b j d]
            total = total if bias is None else total + bias
            poses = squash(total)  # [b j d]
            if iteration < iterations - 1:
                distances = length(poses.unsqueeze(1) - shortened).transpose(1, 2)  # [b j i]
                summed = normalise.total(distances.sum(2))  # of the image [b 1]
                mean = summed.unsqueeze(2) / entries  # d_o [b 1 1]
                logits = -2 * log_ratio * distances / mean  # 2: d_o - d_p is half of d_o
            if on_iteration is not None:
                parents = poses, length(poses), squash_logits(total)
                on_iteration(RoutingTrace(iteration, couplings.transpose(1, 2), *parents))
        return poses, length(poses), squash_logits(total)

    return Capsules(*route(procedure, votes, lengths, normalise, on_iteration, backend))


def _shortened(
    votes: Float[Tensor, "batch child parent dim"], lengths: Float[Tensor, "batch child"]
) -> Tensor:
    """Shorten votes to at most the length of their child's pose."""
    factors = (lengths.unsqueeze(2) / length(votes)).clamp_max(1)  # [b i j]
    return votes * factors.unsqueeze(3)


class ScaledDistanceAgreement(AbstractRouting):
    """``scaled_distance_agreement`` with a learned bias; activations of the parents are the lengths of their poses.

    The activations of the children are used as lengths: a vote is at most as long as the activation of its child.

    Args:
        parents, dim, normalisation, backend: see ``AbstractRouting``; the others: see ``scaled_distance_agreement``.
    """

    scheduled: Mapping[str, type[int] | type[float]] = {"iterations": int}

    def __init__(
        self,
        parents: int,
        dim: int,
        *,
        iterations: int = 3,
        share: float = 0.9,
        bias: bool = True,
        normalisation: Normalisation = "window",
        backend: Backend = "auto",
    ) -> None:
        _check(iterations, share, parents)
        super().__init__(
            backend=backend, normalisation=normalisation, iterations=iterations, share=share
        )
        initial_bias = torch.full((parents, dim), 0.1)  # 0.1: official code
        self.bias = nn.Parameter(initial_bias) if bias else None

    def counted_votes(self, votes: Tensor | Votes, activations: Tensor | None = None) -> Tensor:
        dense = super().counted_votes(votes)
        return dense if activations is None else _shortened(dense, activations)

    def forward(
        self, votes: Tensor | Votes, activations: Tensor | None = None, **call: Unpack[Call]
    ) -> Capsules:
        given = votes, self.require_activations(activations)
        return scaled_distance_agreement(
            *given, bias=self.bias, **self.options, backend=self.backend, **call
        )


def _check(iterations: int, share: float, parents: int) -> None:
    check_iterations(iterations)
    equal_share = 1 / parents if parents > 1 else 0
    check_number("routing share", share, above=equal_share, below=1)
