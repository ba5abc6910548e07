"""Random couplings: drawn once and never changed. A control beside uniform routing: does it matter which they are?

If networks learn as well with these as with those that a routing computes from the votes, it is not agreement that they
gain from (as equal ones do in Gu and Tresp 2019, arXiv 1911.07968).
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

    Logits are the same for every image; in a convolutional layer, as the transformations are, for every position. They
    are a buffer and part of a checkpoint. Layers of the same size have the same ones.

    Args:
        parents, dim, bias, leaky, backend: see ``UniformRouting``.
        spread, seed: standard deviation of the logits, and of their draw. With 1, the largest coupling of a child to
            ten parents is about 0.3, with 4 about 0.7; 0 is uniform routing.
    """

    def __init__(
        self,
        parents: int,
        dim: int,
        *,
        spread: float = 1.0,  # ours: couplings of one child differ by a factor of twenty
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

    def forward(self, votes: Tensor | Votes, activations: Tensor | None = None, **call: Unpack[Call]) -> Capsules:
        fixed = {"log_couplings": self.built("log_couplings"), **self.options, "backend": self.backend}
        return uniform_routing(votes, bias=self.bias, **fixed, **call)
