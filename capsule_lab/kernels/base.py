"""What routing asks of votes. A backend is one way to answer; routing does not know which it has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

from jaxtyping import Float
from torch import Tensor


class Share(Protocol):
    """How log-couplings ``(batch, parent, child)`` become couplings: see ``capsule_lab.routing.Normaliser``.

    Attributes:
        together: rows of the batch that depend on each other; whole groups of so many do not.
    """

    together: int

    def __call__(self, log_couplings: Tensor, /) -> Tensor:
        """Couplings, in plain torch."""

    def fast(self, log_couplings: Tensor, /) -> Tensor:
        """The same couplings, perhaps sooner."""


class Explanation(NamedTuple):
    """How well parents explain the votes: the log-coupling of child and parent is ``log_height - distances``.

    Attributes:
        log_height: logarithm of a parent's activation times its Gaussian's height, ``(batch, parent)``.
        poses, variances: of the Gaussians, ``(batch, parent, dim)``.
        distances: half the squared distance of each vote in units of the variance, ``(batch, parent, child)``.
    """

    log_height: Tensor
    poses: Tensor
    variances: Tensor
    distances: Tensor

    def log_couplings(self) -> Tensor:
        return self.log_height.unsqueeze(2) - self.distances


class Fit(NamedTuple):
    """Parents as Gaussians fitted to the votes assigned to them.

    Attributes:
        couplings: share of each child that they were fitted with, ``(batch, parent, child)``.
        mass: activation assigned to each parent, ``(batch, parent)``.
        poses, variances, distances: see ``Explanation``; distances are empty unless they were asked for.
    """

    couplings: Tensor
    mass: Tensor
    poses: Tensor
    variances: Tensor
    distances: Tensor


class AbstractVotes(ABC):
    """The votes of all children for all parents, made or not.

    Attributes:
        shape: ``(batch, child, parent, dim)``.
    """

    shape: tuple[int, int, int, int]

    @abstractmethod
    def equal(self) -> Float[Tensor, "batch parent child"]:
        """Log-couplings of zero."""

    @abstractmethod
    def weighted_sum(self, weights: Float[Tensor, "batch parent child"]) -> Float[Tensor, "batch parent dim"]:
        """``sum_i weights_ji V_ij``: what arrives at each parent."""

    @abstractmethod
    def agreement(self, poses: Float[Tensor, "batch parent dim"]) -> Float[Tensor, "batch parent child"]:
        """``V_ij . poses_j``: how much a vote agrees with a pose."""

    @abstractmethod
    def fit(
        self,
        explained: Explanation | None,
        activations: Float[Tensor, "batch child"],
        previous: Float[Tensor, "batch parent dim"] | None,
        share: Share,
        *,
        damping: float,
        min_variance: float,
        mass_eps: float,
        measure: bool,
    ) -> Fit:
        """One iteration of EM: children share themselves out, parents are fitted to them, votes measured again.

        Args:
            explained: by the parents of the iteration before; ``None`` in the first: equal log-couplings.
            activations: of the children.
            previous: poses of the iteration before, ``None`` in the first: zero.
            share: log-couplings to couplings.
            damping: share of ``previous`` in the poses.
            min_variance: added to every variance.
            mass_eps: added to every mass.
            measure: whether the distances are wanted; the last iteration has no use for them.
        """

    def couplings(self, explained: Explanation | None, share: Share) -> Tensor:
        """Couplings that ``explained`` leads to, ``(batch, parent, child)``."""
        return share(self.equal() if explained is None else explained.log_couplings())
