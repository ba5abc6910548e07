"""Attention routing: Choi, Seo, Im and Kang, ICCV workshop 2019 (arXiv 1907.01750), AR-CapsNet. The routing alone.

The children compete for a parent, and no parent with another. The rest of the paper's layer is not here: its
transformation is a 3x3 convolution over the poses of one type of child, so that the children of a position are its
types. Here each place of a window is a child, and the attention has as many parameters as there are pairs of children,
times the components of all parents: 1.3 million where 72 children see 16 parents of 16.
"""

from __future__ import annotations

import math
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor, einsum, nn

from capsule_lab.functional import float32_under_autocast, length
from capsule_lab.kernels import AbstractVotes, Backend, route
from capsule_lab.routing.base import AbstractRouting, Call, LayerInfo, refuse
from capsule_lab.types import Capsules, OnIteration, RoutingTrace, Votes

__all__ = ["AttentionOverChildren", "attention_over_children"]

EPS = 1e-6  # ours: logits of activations nearer to 0 or 1 than this stay finite in float32


@float32_under_autocast
def attention_over_children(
    votes: Float[Tensor, "batch child parent dim"] | Votes,
    attention: Float[Tensor, "parent dim child child"],
    weight: Float[Tensor, "parent dim dim"],
    bias: Float[Tensor, "parent dim"],
    *,
    on_iteration: OnIteration | None = None,
    backend: Backend = "auto",
) -> Capsules:
    """Parents that attend to their children (Choi 2019, section 3).

    ``l_i = sum_kd attention_jdki V_kjd``, linear in all votes for parent j; ``alpha = softmax_i(l)``; ``s_j = sum_i
    alpha_i V_ij``; ``v_j = tanh(s_j weight_j + bias_j)``. Activations are ``|v_j| / sqrt(dim)``.

    Args:
        votes: prediction of each child for each parent, or poses and weight. The vote tensor is computed.
        attention: from the vote of a child (third) to the logit of a child (last).
        weight, bias: of the activation function of each parent.
        on_iteration: called once; the couplings of a parent sum to one, not those of a child.
        backend: see ``AbstractRouting``.

    Returns poses ``(batch, parent, dim)`` in (-1, 1), activations in [0, 1), their logits.
    """

    def procedure(votes: AbstractVotes, _activations: Tensor | None) -> tuple[Tensor]:
        _, child, parent, dim = votes.shape
        if attention.shape != (parent, dim, child, child):
            refuse(votes, "attention", attention)
        logits = einsum("bkjd,jdki->bji", votes.dense(), attention)
        couplings = logits.softmax(2)  # [b j i], over the children
        total = votes.weighted_sum(couplings)  # [b j d]
        poses = (einsum("bjd,jde->bje", total, weight) + bias).tanh()
        if on_iteration is not None:
            on_iteration(RoutingTrace(0, couplings.transpose(1, 2), poses))
        return (poses,)

    (poses,) = route(procedure, votes, None, None, on_iteration, backend)
    activations = length(poses) / math.sqrt(poses.shape[2])
    return Capsules(poses, activations, activations.logit(EPS))


class AttentionOverChildren(AbstractRouting):
    """``attention_over_children`` with its learned parameters, without the paper's residual and dropout.

    Nothing in ``normalise`` is used: no parents compete. Activations of the children are not read.

    Args:
        parents, dim, backend: see ``AbstractRouting``.
    """

    competing = "children"

    def __init__(self, parents: int, dim: int, *, backend: Backend = "auto") -> None:
        super().__init__(backend=backend)
        self.weight = nn.Parameter(_glorot(parents, dim, dim, fan_in=dim, fan_out=dim))
        self.bias = nn.Parameter(torch.zeros(parents, dim))  # Keras' default, as the official code

    def build(self, layer: LayerInfo) -> None:
        children = layer.children
        sizes = (layer.parents, layer.dim, children, children)
        self.attention = nn.Parameter(_glorot(*sizes, fan_in=layer.dim * children, fan_out=children))

    def forward(self, votes: Tensor | Votes, activations: Tensor | None = None, **call: Unpack[Call]) -> Capsules:
        on_iteration = call.get("on_iteration")  # no parents compete: there is nothing to normalise
        learned = self.built("attention"), self.weight, self.bias
        return attention_over_children(votes, *learned, on_iteration=on_iteration, backend=self.backend)


def _glorot(*shape: int, fan_in: int, fan_out: int) -> Tensor:
    """Uniform within ``sqrt(6 / (fan_in + fan_out))``: Keras' default, as the official code."""
    bound = math.sqrt(6 / (fan_in + fan_out))
    return torch.empty(shape).uniform_(-bound, bound)
