"""What every routing algorithm offers to a capsule layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.functional import softmax_over_parents
from capsule_lab.kernels import Backend
from capsule_lab.types import Capsules, OnIteration, Votes

Normalisation = Literal["all_parents", "window", "official_legacy", "official_fast"]
"""Who competes for a child in a convolutional layer, which many positions see.

``all_parents``: all parents at all positions that see it (Hinton 2018, section 4); ``window``: the parents of
each position among themselves, so that nine positions take nine times a child (most ports);
``official_legacy`` and ``official_fast``: the two of the official code, see ``capsule_lab.layers.windows``.
"""


class Normaliser:
    """Turns log-couplings into couplings; the layer knows who competes, routing does not.

    This one lets the parents of the call compete: right for a layer in which every parent sees every child.

    Args:
        leaky: see ``softmax_over_parents``.

    Attributes:
        together: rows of the batch that depend on each other, the positions of an image; 1 in this one.
    """

    together: int = 1

    def __init__(self, *, leaky: bool = False) -> None:
        self.leaky = leaky

    def __call__(self, log_couplings: Float[Tensor, "batch parent child"]) -> Float[Tensor, "batch parent child"]:
        """Couplings; log-couplings may lack a constant per child."""
        return softmax_over_parents(log_couplings, leaky=self.leaky)

    def fast(self, log_couplings: Float[Tensor, "batch parent child"]) -> Float[Tensor, "batch parent child"]:
        """The same, by a fused kernel where there is one."""
        return self(log_couplings)

    def total(self, mass: Float[Tensor, "batch parent"]) -> Float[Tensor, "batch 1"]:
        """Sum of ``mass`` over the whole layer that a row is part of."""
        return mass.sum(1, keepdim=True)


class AbstractRouting(nn.Module, ABC):
    """Decides how children share themselves among parents, given their votes.

    A routing holds the parameters that belong to the parents (biases, betas) and nothing else: no step
    counter, no couplings between calls. Layers construct it with ``(parents, dim)``; every other argument
    is the algorithm's own and comes through a ``functools.partial`` or ``conf/routing/*.yaml``.

    Attributes:
        leaky: whether a child may give part of itself to no parent; the primary capsules of a CapsNet
            follow it, as in the official code.
        normalisation: who competes for a child in a convolutional layer.
        backend: how votes are summed, the same numbers in other time and memory: see ``capsule_lab.kernels.Backend``.
    """

    leaky: bool = False
    normalisation: Normalisation = "all_parents"
    backend: Backend = "auto"

    @abstractmethod
    def forward(
        self,
        votes: Float[Tensor, "batch child parent dim"] | Votes,
        activations: Float[Tensor, "batch child"] | None = None,
        *,
        normalise: Normaliser | None = None,
        on_iteration: OnIteration | None = None,
    ) -> Capsules:
        """Poses and activations of the parents.

        Args:
            votes: prediction of each child for each parent, or what they are made from: capsule layers hand over the
                latter, so that they need not be stored.
            activations: how present each child is; algorithms that read it from the pose ignore it.
            normalise: how log-couplings become couplings; by default over the parents of this call.
            on_iteration: called with a ``RoutingTrace`` after each iteration, for analysis.
        """


RoutingFactory = Callable[..., AbstractRouting]
"""``(parents=…, dim=…) -> AbstractRouting``: a routing class or a partial of one."""
