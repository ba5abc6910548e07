"""Fully connected capsules: every child votes for every parent."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.functional import truncated_normal_
from capsule_lab.routing.base import LayerInfo, RoutingFactory, build_routing
from capsule_lab.types import Capsules, OnIteration, Votes


class DenseCapsules(nn.Module):
    """Parents that see all children, with one transformation matrix per (child, parent) pair.

    The DigitCaps of Sabour 2017, section 4: 1152 children of 8 components, 10 parents of 16.

    Args:
        children: number of capsules below.
        child_dim: components of their poses.
        parents: number of capsules of this layer.
        parent_dim: components of their poses.
        routing: called with ``(parents=…, dim=…)``, gives the routing of this layer.
        weight_std: standard deviation of the truncated normal that initialises the matrices.

    Shapes:
        poses ``(batch, children, child_dim)`` -> poses ``(batch, parents, parent_dim)``.
    """

    def __init__(
        self,
        children: int,
        child_dim: int,
        parents: int,
        parent_dim: int,
        *,
        routing: RoutingFactory,
        weight_std: float = 0.1,  # official code
    ) -> None:
        super().__init__()
        layer = LayerInfo(parents, parent_dim, children, child_dim, shared=False, child_types=children)
        built = build_routing(routing, layer)
        shape = (children, child_dim, parents, parent_dim if built.poses else 0)
        self.weight = nn.Parameter(truncated_normal_(torch.empty(shape), weight_std), requires_grad=built.poses)
        self.routing = built

    def forward(
        self,
        poses: Float[Tensor, "batch child dim"],
        activations: Float[Tensor, "batch child"] | None = None,
        *,
        on_iteration: OnIteration | None = None,
    ) -> Capsules:
        return self.routing(Votes(poses, self.weight), activations, on_iteration=on_iteration)
