"""What every routing algorithm offers to a capsule layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.types import Capsules, OnIteration

Normaliser = Callable[[Float[Tensor, "batch parent child"]], Float[Tensor, "batch parent child"]]
"""Turns log-couplings into couplings over all parents that see a child; the layer knows which those are."""


class AbstractRouting(nn.Module, ABC):
    """Decides how children share themselves among parents, given their votes.

    A routing holds the parameters that belong to the parents (biases, betas) and nothing else: no step
    counter, no couplings between calls. Layers construct it with ``(parents, dim)``; every other argument
    is the algorithm's own and comes through a ``functools.partial`` or ``conf/routing/*.yaml``.

    Attributes:
        leaky: whether a child may give part of itself to no parent; the primary capsules of a CapsNet
            follow it, as in the released code.
    """

    leaky: bool = False

    @abstractmethod
    def forward(
        self,
        votes: Float[Tensor, "batch child parent dim"],
        activations: Float[Tensor, "batch child"] | None = None,
        *,
        normalise: Normaliser | None = None,
        on_iteration: OnIteration | None = None,
    ) -> Capsules:
        """Poses and activations of the parents.

        Args:
            votes: prediction of each child for each parent.
            activations: how present each child is; algorithms that read it from the pose ignore it.
            normalise: how log-couplings become couplings; by default over the parents of this call.
            on_iteration: called with a ``RoutingTrace`` after each iteration, for analysis.
        """


RoutingFactory = Callable[..., AbstractRouting]
"""``(parents=…, dim=…) -> AbstractRouting``: a routing class or a partial of one."""
