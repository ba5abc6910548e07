"""Fully connected capsules: every child votes for every parent."""

from __future__ import annotations

from itertools import repeat

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.functional import dense_votes, truncated_normal_
from capsule_lab.routing.base import RoutingFactory
from capsule_lab.types import Capsules, OnIteration

_VOTES_IN_CACHE = 6 * 2**20  # ours: bytes of votes routed at a time on a CPU; 8 images of a CapsNet, fastest of 4-128


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
        weight_std: float = 0.1,  # released code
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(children, child_dim, parents, parent_dim))
        self.routing = routing(parents=parents, dim=parent_dim)
        truncated_normal_(self.weight, weight_std)

    def forward(
        self,
        poses: Float[Tensor, "batch child dim"],
        activations: Float[Tensor, "batch child"] | None = None,
        *,
        on_iteration: OnIteration | None = None,
    ) -> Capsules:
        images = self._images_at_a_time(poses) if on_iteration is None else max(len(poses), 1)
        parents = [
            self.routing(dense_votes(some, self.weight), some_activations, on_iteration=on_iteration)
            for some, some_activations in zip(
                poses.split(images), repeat(None) if activations is None else activations.split(images), strict=False
            )
        ]
        if len(parents) == 1:
            return parents[0]
        return Capsules(*(torch.cat(parts) for parts in zip(*parents, strict=True)))

    def _images_at_a_time(self, poses: Tensor) -> int:
        """Images route independently; on a CPU, few at a time keep their votes in cache (1.7x faster)."""
        if poses.device.type != "cpu" or torch.compiler.is_compiling():
            return max(len(poses), 1)
        child, _, parent, dim = self.weight.shape
        return max(_VOTES_IN_CACHE // (child * parent * dim * poses.element_size()), 1)
