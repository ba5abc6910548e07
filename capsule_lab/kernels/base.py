"""Interface of the operations of routing on votes, which every backend implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from jaxtyping import Float
from torch import Tensor

from capsule_lab.kernels.em_arguments import FitOutputs


class Normalise(Protocol):
    """Function from log-couplings to couplings ``(batch, parent, child)``, see ``capsule_lab.routing.Normaliser``."""

    rows_per_image: int
    by_child: tuple[Tensor, int] | None

    def __call__(self, log_couplings: Tensor, /) -> Tensor:
        """Compute couplings in plain torch."""

    def fused(self, log_couplings: Tensor, /) -> Tensor:
        """Compute the same couplings with a fused kernel, if one is available."""


class EMStep(Protocol):
    """One E-step and one M-step of ``capsule_lab.routing.em`` in one fused step."""

    def __call__(
        self,
        activations: Float[Tensor, "batch child"],
        before: tuple[FitOutputs, Tensor] | None,
        normalise: Normalise,
        *,
        last: bool,
        damping: float,
        min_variance: float,
        mass_eps: float,
        couplings_with_gradient: bool = False,
    ) -> tuple[Float[Tensor, "batch parent child"], FitOutputs]:
        """Return couplings and the fitted parents; raise ``ValueError`` if activations are not ``(batch, child)``.

        Args:
            activations: activations of the children.
            before: parents of the previous iteration and their ``log_height``, see ``capsule_lab.routing.em.e_step``;
                ``None`` in the first iteration, which has equal log-couplings.
            normalise: if it depends on tensors that need a gradient, the couplings are kept for the backward pass.
            last: whether no E-step follows. Distances are then not computed.
            damping, min_variance, mass_eps: see ``capsule_lab.routing.em_routing``.
            couplings_with_gradient: whether the couplings that are returned have a gradient, for algorithms that use
                them beside the parents. The step then computes them twice. The parents always have a gradient.
        """


class AbstractVotes(ABC):
    """Votes of all children for all parents, as a tensor or as the poses and weight that determine them.

    Routing algorithms use the attributes below and do not ask for the class. What only some votes can do is an
    attribute that is ``None`` for the others.
    """

    shape: tuple[int, int, int, int]  # (batch, child, parent, dim)
    em_step: EMStep | None = None
    """A fused step of EM routing; ``None``: the algorithm computes the step from ``dense()``."""

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
