"""A routing of your own, in plain tensors: children go where their votes point the same way as the parent's pose."""

from __future__ import annotations

import torch
from torch import Tensor, einsum, nn

from capsule_lab.functional import length, squash, with_dense_votes
from capsule_lab.routing import AbstractRouting, Normaliser
from capsule_lab.types import Capsules, OnIteration, RoutingTrace


class MyRouting(AbstractRouting):
    """Cosines of votes and poses, times a learned sharpness, are the logits of the couplings."""

    def __init__(
        self, parents: int, dim: int, *, iterations: int = 3, sharpness: float = 1.0
    ) -> None:
        super().__init__()
        self.iterations = iterations
        self.sharpness = nn.Parameter(torch.full((parents, 1), sharpness))

    @with_dense_votes
    def forward(
        self,
        votes: Tensor,  # (batch, child, parent, dim)
        activations: Tensor | None = None,  # (batch, child), for algorithms that need them
        *,
        normalise: Normaliser | None = None,
        on_iteration: OnIteration | None = None,
    ) -> Capsules:
        normalise = normalise or Normaliser()
        logits = votes.new_zeros(votes.shape[:3]).transpose(1, 2)  # [b j i]
        for iteration in range(self.iterations):
            couplings = normalise(logits)  # [b j i]
            poses = squash(einsum("bji,bijd->bjd", couplings, votes))  # [b j d]
            cosines = nn.functional.cosine_similarity(votes, poses.unsqueeze(1), dim=3).transpose(
                1, 2
            )  # [b j i]
            logits = self.sharpness * cosines
            if on_iteration is not None:
                on_iteration(RoutingTrace(iteration, couplings.transpose(1, 2), poses))
        return Capsules(poses, length(poses))
