"""Uniform routing: every child has equal couplings to all parents. A control for other routings.

It equals dynamic routing with one iteration, the rows "1 routing" of Sabour 2017, table 1. Gu and Tresp 2019
(arXiv 1911.07968) argue that it performs equally well.
"""

from __future__ import annotations

from typing import Unpack, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.errors import check_choice
from capsule_lab.functional import SQUASHES, Squash, float32_under_autocast, length
from capsule_lab.kernels import AbstractVotes, Backend, route
from capsule_lab.routing import base
from capsule_lab.shapes import checks_routing
from capsule_lab.types import Capsules, OnIteration, RoutingTrace, Votes

__all__ = ["UniformRouting", "uniform_routing"]


@checks_routing
@float32_under_autocast
def uniform_routing(
    votes: Float[Tensor, "batch child parent dim"] | Votes,
    *,
    log_couplings: Float[Tensor, "parent child"] | None = None,
    gain: Float[Tensor, ""] | None = None,
    bias: Float[Tensor, "parent dim"] | None = None,
    leaky: bool = False,
    squash: Squash = "squash",  # Sabour 2017, equation 1
    normalise: base.Normaliser | None = None,
    on_iteration: OnIteration | None = None,
    backend: Backend = "auto",
) -> Capsules:
    """Compute squashed means of the votes, scaled by children over parents, their lengths and the logits of these.

    Args:
        log_couplings: the same for every image; ``None``: equal couplings.
        gain: factor of the sums of votes before the bias and the squash; ``None`` for 1.
        votes, bias, leaky, squash, normalise, on_iteration, backend: see ``dynamic_routing``.

    >>> uniform_routing(torch.ones(2, 6, 3, 4)).poses.shape
    torch.Size([2, 3, 4])
    """
    check_choice("routing squash", squash, get_args(Squash))
    functions = SQUASHES[squash]
    normalise = base.leaky_normaliser(leaky, normalise)

    def procedure(votes: AbstractVotes, _: Tensor | None) -> tuple[Tensor, ...]:
        logits = votes.zero_logits()  # [b j i]
        if log_couplings is not None:
            logits = logits + log_couplings
        couplings = normalise(logits)  # [b j i]
        total = votes.weighted_sum(couplings)  # [b j d]
        total = total if gain is None else gain * total
        total = total if bias is None else total + bias
        poses = functions.poses(total)
        parents = poses, length(poses), functions.logits(total)
        if on_iteration is not None:
            on_iteration(RoutingTrace(0, couplings.transpose(1, 2), *parents))
        return parents

    return Capsules(*route(procedure, votes, None, normalise, on_iteration, backend))


class UniformRouting(base.AbstractRouting):
    """``uniform_routing`` with a learned bias; activations of the parents are the lengths of their poses.

    Args:
        bias: learn a bias per parent and component, as in ``DynamicRouting``.
        learned_gain: multiply the sums of votes by one learned number, initially 1. It controls for the other effect of
            more iterations: couplings that agree make the sums, and thus the lengths, larger.
        parents, dim, backend: see ``AbstractRouting``; the others: see ``uniform_routing``.
    """

    uses_activations = False

    def __init__(
        self,
        parents: int,
        dim: int,
        *,
        bias: bool = True,
        learned_gain: bool = False,
        leaky: bool = False,
        squash: Squash = "squash",
        backend: Backend = "auto",
    ) -> None:
        check_choice("routing squash", squash, get_args(Squash))
        super().__init__(backend=backend, leaky=leaky, squash=squash)
        self.leaky = leaky
        self.bounded = self.sigmoid_logits = SQUASHES[squash].bounded
        initial_bias = torch.full((parents, dim), 0.1)  # 0.1: official code
        self.bias = nn.Parameter(initial_bias) if bias else None
        self.gain = nn.Parameter(torch.ones(())) if learned_gain else None

    def forward(
        self, votes: Tensor | Votes, activations: Tensor | None = None, **call: Unpack[base.Call]
    ) -> Capsules:
        return uniform_routing(
            votes, bias=self.bias, gain=self.gain, **self.options, backend=self.backend, **call
        )
