"""Random couplings that are drawn once and never change: a control, like uniform routing.

If networks learn equally well with them, agreement of votes is not the reason for the gain of a routing (Gu and Tresp
2019, arXiv 1911.07968, find this for equal couplings).
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from capsule_lab.errors import check_number
from capsule_lab.kernels import Backend
from capsule_lab.routing.base import Call, LayerInfo
from capsule_lab.routing.uniform import UniformRouting, uniform_routing
from capsule_lab.types import Capsules, Votes

__all__ = ["RandomCouplings"]


class RandomCouplings(UniformRouting):
    """``UniformRouting`` whose couplings are a softmax over fixed random logits, one per (child, parent).

    Logits are the same for every image and, in a convolutional layer, for every position. They are a buffer, which
    checkpoints contain. Layers of the same size have the same logits.

    Args:
        parents, dim, bias, leaky, backend: see ``UniformRouting``.
        spread, seed: standard deviation and random seed of the logits. With ten parents, the largest coupling of a
            child is about 0.3 for a spread of 1 and about 0.7 for 4; 0 is uniform routing.
    """

    def __init__(
        self,
        parents: int,
        dim: int,
        *,
        spread: float = 1.0,  # ours: the couplings of a child differ by a factor of 20
        seed: int = 0,
        bias: bool = True,
        leaky: bool = False,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(parents, dim, bias=bias, leaky=leaky, backend=backend)
        check_number("routing spread", spread, 0)
        if not isinstance(seed, int) or seed < 0:
            raise ValueError(f"routing seed is {seed!r}; expected a whole number, 0 or more")
        self.spread = spread
        self.seed = seed

    def build(self, layer: LayerInfo) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        logits = self.spread * torch.randn(layer.parents, layer.children, generator=generator)
        self.register_buffer("log_couplings", logits)

    def forward(
        self, votes: Tensor | Votes, activations: Tensor | None = None, **call: Unpack[Call]
    ) -> Capsules:
        return uniform_routing(
            votes,
            log_couplings=self.require_parameter("log_couplings"),
            bias=self.bias,
            **self.options,
            backend=self.backend,
            **call,
        )
