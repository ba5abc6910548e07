"""Attention routing: Choi, Seo, Im and Kang, ICCV workshop 2019 (arXiv 1907.01750), AR-CapsNet. Only the routing.

Children compete for a parent; parents do not compete. The rest of the paper's layer is not implemented: it transforms
poses by a 3x3 convolution per child type, so that the children of a position are its types. Here each place of a window
is a child. The number of attention parameters is the number of pairs of children times the components of all parents:
1.3 million for 72 children and 16 parents of 16 components.
"""

from __future__ import annotations

import math
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor, einsum, nn

from capsule_lab.functional import float32_under_autocast, length
from capsule_lab.kernels import AbstractVotes, Backend, route
from capsule_lab.routing.base import AbstractRouting, Call, LayerInfo
from capsule_lab.shapes import checks_routing
from capsule_lab.types import Capsules, OnIteration, RoutingTrace, Votes

__all__ = ["AttentionOverChildren", "attention_over_children"]

EPS = 1e-6  # ours: keeps the logits of activations close to 0 or 1 finite in float32


@checks_routing
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
    """Compute parents by attention over their children (Choi 2019, section 3).

    ``l_i = sum_kd attention_jdki V_kjd``, linear in all votes for parent j; ``alpha = softmax_i(l)``; ``s_j = sum_i
    alpha_i V_ij``; ``v_j = tanh(s_j weight_j + bias_j)``. Activations are ``|v_j| / sqrt(dim)``.

    Args:
        votes: prediction of each child for each parent, or poses and weight. The vote tensor is always computed.
        attention: weight from the vote of a child (third dimension) to the logit of a child (last dimension).
        weight, bias: parameters of the activation function of each parent.
        on_iteration: called once, with couplings that sum to one for each parent instead of each child.
        backend: see ``AbstractRouting``.

    Returns poses ``(batch, parent, dim)`` in (-1, 1), activations in [0, 1), their logits.
    """

    def procedure(votes: AbstractVotes, _activations: Tensor | None) -> tuple[Tensor]:
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
    """``attention_over_children`` with learned parameters, without the residual and dropout of the paper.

    Parents do not compete, so ``normalise`` is ignored. Activations of the children are ignored, too.

    Args:
        parents, dim, backend: see ``AbstractRouting``.
    """

    competing = "children"
    uses_activations = False

    def __init__(self, parents: int, dim: int, *, backend: Backend = "auto") -> None:
        super().__init__(backend=backend)
        self.weight = nn.Parameter(_glorot(parents, dim, dim, fan_in=dim, fan_out=dim))
        # zero: Keras' default, as in the official code
        self.bias = nn.Parameter(torch.zeros(parents, dim))

    def build(self, layer: LayerInfo) -> None:
        children = layer.children
        fan_in = layer.dim * children
        sizes = (layer.parents, layer.dim, children, children)
        self.attention = nn.Parameter(_glorot(*sizes, fan_in=fan_in, fan_out=children))

    def forward(
        self, votes: Tensor | Votes, activations: Tensor | None = None, **call: Unpack[Call]
    ) -> Capsules:
        return attention_over_children(
            votes,
            self.require_parameter("attention"),
            self.weight,
            self.bias,
            on_iteration=call.get("on_iteration"),  # parents do not compete: no ``normalise``
            backend=self.backend,
        )


def _glorot(*shape: int, fan_in: int, fan_out: int) -> Tensor:
    """Draw uniformly within ``sqrt(6 / (fan_in + fan_out))``: Keras' default, as in the official code."""
    bound = math.sqrt(6 / (fan_in + fan_out))
    return torch.empty(shape).uniform_(-bound, bound)
