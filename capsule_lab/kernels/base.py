"""Interface of the operations of routing on votes, which every backend implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from jaxtyping import Float
from torch import Tensor


class Normalise(Protocol):
    """Function from log-couplings to couplings ``(batch, parent, child)``, see ``capsule_lab.routing.Normaliser``."""

    rows_per_image: int
    by_child: tuple[Tensor, int] | None

    def __call__(self, log_couplings: Tensor, /) -> Tensor:
        """Compute couplings in plain torch."""

    def fused(self, log_couplings: Tensor, /) -> Tensor:
        """Compute the same couplings with a fused kernel, if one is available."""


class AbstractVotes(ABC):
    """Votes of all children for all parents, as a tensor or as the poses and weight that determine them."""

    shape: tuple[int, int, int, int]  # (batch, child, parent, dim)

    @abstractmethod
    def dense(self) -> Float[Tensor, "batch child parent dim"]:
        """Return the vote tensor for routings that need more than the sums below; fused backends compute it first."""

    @abstractmethod
    def zero_logits(self) -> Float[Tensor, "batch parent child"]:
        """Return log-couplings of zero, that is equal couplings."""

    @abstractmethod
    def weighted_sum(
        self, weights: Float[Tensor, "batch parent child"]
    ) -> Float[Tensor, "batch parent dim"]:
        """Compute ``sum_i weights_ji V_ij``, the total input of each parent."""

    @abstractmethod
    def agreement(
        self, poses: Float[Tensor, "batch parent dim"]
    ) -> Float[Tensor, "batch parent child"]:
        """Compute ``V_ij . poses_j``, the scalar product of each vote with the pose of its parent."""
