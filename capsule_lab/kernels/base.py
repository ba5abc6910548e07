"""What routing asks of votes. A backend is one way to answer; routing does not know which it has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from jaxtyping import Float
from torch import Tensor


class Normalise(Protocol):
    """How log-couplings ``(batch, parent, child)`` become couplings: see ``capsule_lab.routing.Normaliser``."""

    rows_per_image: int

    def __call__(self, log_couplings: Tensor, /) -> Tensor:
        """Couplings, in plain torch."""

    def fused(self, log_couplings: Tensor, /) -> Tensor:
        """The same couplings, by a fused kernel where there is one."""


class AbstractVotes(ABC):
    """The votes of all children for all parents, as a tensor or as poses and weight that they are computed from.

    Attributes:
        shape: ``(batch, child, parent, dim)``.
    """

    shape: tuple[int, int, int, int]

    @abstractmethod
    def dense(self) -> Float[Tensor, "batch child parent dim"]:
        """The vote tensor, for routings that want more than the sums below; a fused backend computes it first."""

    @abstractmethod
    def zero_logits(self) -> Float[Tensor, "batch parent child"]:
        """Log-couplings of zero: equal couplings."""

    @abstractmethod
    def weighted_sum(self, weights: Float[Tensor, "batch parent child"]) -> Float[Tensor, "batch parent dim"]:
        """``sum_i weights_ji V_ij``: total input of each parent."""

    @abstractmethod
    def agreement(self, poses: Float[Tensor, "batch parent dim"]) -> Float[Tensor, "batch parent child"]:
        """``V_ij . poses_j``: scalar product of each vote with its parent's pose."""
