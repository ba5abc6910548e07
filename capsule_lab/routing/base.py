"""Interface between routing algorithms and capsule layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypedDict, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.errors import check_choice
from capsule_lab.functional import dense_votes, softmax_over_parents
from capsule_lab.kernels import AbstractVotes, Backend, check_backend
from capsule_lab.types import Capsules, OnIteration, Votes

__all__ = [
    "AbstractRouting",
    "LayerInfo",
    "Normalisation",
    "Normaliser",
    "RoutingFactory",
    "build_routing",
]

Normalisation = Literal["all_parents", "window", "official_legacy", "official_fast"]
"""Which parents compete for a child in a convolutional layer, where several positions see each child.

``all_parents``: all parents at all positions that see the child (Hinton 2018, section 4); ``window``: only the
parents of the same position, so that a child seen by nine positions counts nine times (most ports);
``official_legacy`` and ``official_fast``: two variants of the official code. See ``capsule_lab.layers.normalisers``.
"""


class Normaliser:
    """Function from log-couplings to couplings. The layer provides it, because it determines which parents compete.

    In this class all parents of a call compete, which is correct if every parent sees every child. ``leaky``: see
    ``softmax_over_parents``.
    """

    rows_per_image: int = 1
    """Number of rows of the batch that depend on each other: the positions of a convolutional layer."""
    by_child: tuple[Tensor, int] | None = None
    """If couplings are a softmax over all entries of an image that belong to a child, the arguments ``child`` and
    ``children`` of ``capsule_lab.kernels.child_softmax``. Kernels may then compute couplings from other arrays."""

    def __init__(self, *, leaky: bool = False) -> None:
        self.leaky = leaky

    def __call__(
        self, log_couplings: Float[Tensor, "batch parent child"]
    ) -> Float[Tensor, "batch parent child"]:
        """Compute couplings; log-couplings need only be correct up to a constant per child."""
        return softmax_over_parents(log_couplings, leaky=self.leaky)

    def fused(
        self, log_couplings: Float[Tensor, "batch parent child"]
    ) -> Float[Tensor, "batch parent child"]:
        """Compute the same couplings with a fused kernel, if one is available."""
        return self(log_couplings)

    def total(self, mass: Float[Tensor, "batch parent"]) -> Float[Tensor, "batch 1"]:
        """Sum ``mass`` over all parents of the layer at all positions."""
        return mass.sum(1, keepdim=True)


def leaky_normaliser(leaky: bool, normalise: Normaliser | None) -> Normaliser:
    """Return ``normalise`` or, by default, a softmax over the parents of the call."""
    if leaky and normalise is not None:
        raise ValueError(
            "routing is leaky and has a normaliser; expected only one, since the normaliser sets the leak"
        )
    return normalise or Normaliser(leaky=leaky)


class EqualOverTypes(Normaliser):
    """Equal couplings over the parents of the call for all log-couplings (official code, first iteration)."""

    def __call__(self, log_couplings: Tensor) -> Tensor:
        return torch.full_like(log_couplings, 1 / log_couplings.shape[1])


@dataclass(frozen=True)
class LayerInfo:
    """Sizes that a capsule layer passes to ``AbstractRouting.build``."""

    parents: int  # in one call: of the layer or, if convolutional, of one position
    dim: int  # components of a parent's pose
    # seen by each parent: all or, if convolutional, a window ordered (row, column, type)
    children: int
    child_dim: int  # components of a child's pose
    # whether positions of parents (convolution) or of children (classes) share transformations
    shared: bool
    child_types: int
    """Kinds of child with different transformations: the number of children, unless the positions of the children share
    transformations; children are then ordered (position, type)."""


class Call(TypedDict, total=False):
    """Keyword arguments of ``AbstractRouting.forward``."""

    normalise: Normaliser | None
    on_iteration: OnIteration | None


class AbstractRouting(nn.Module, ABC):
    """Base of modules that compute couplings and parents from votes.

    A routing holds its learned parameters (biases, betas) and no couplings between calls. Layers construct it with
    ``(parents, dim)`` and then call ``build``. All other arguments depend on the algorithm and are set by a
    ``functools.partial`` or ``conf/routing/*.yaml``.

    Args:
        parents, dim: number of parents (of parent types in a convolutional layer), components of a pose.
        backend: how votes are summed; affects time and memory, not results. See ``capsule_lab.kernels.Backend``.
        normalisation: which parents compete for a child in a convolutional layer, see ``Normalisation``.
        learned_prior: learn ``prior``, one number for each parent and kind of child, which starts at zero. If
            ``False``, ``prior`` is ``None``; by default, there is no such attribute.
        options: keyword arguments that ``forward`` passes to the routing function.

    Attributes:
        leaky: whether the couplings of a child may sum to less than one; a CapsNet passes it to its primary capsules.
        competing: capsules over which couplings sum to one: ``"parents"`` that compete for a child through
            ``normalise``, or ``"children"`` that compete for a parent; ``normalise`` is then not used.
        bounded: whether activations are in [0, 1]; otherwise they are logits, and losses of probabilities do not fit.
        sigmoid_logits: whether activations are the logistic function of the logits; otherwise the logits are lengths or
            logarithms of activations, which only a softmax over the parents can use.
        poses: whether parents have poses; without them, dense and class capsules have no transformations.
        uses_activations: whether the result depends on the activations of the children, not on their poses alone.
        scheduled: options that a schedule named ``routing_<option>`` may change during training, with their type,
            ``int`` or ``float``; see ``capsule_lab.lit.scheduled_routing``.
    """

    scheduled: Mapping[str, type[int] | type[float]] = {}
    leaky: bool = False
    competing: ClassVar[Literal["parents", "children"]] = "parents"
    bounded: bool = True
    sigmoid_logits: bool = True
    poses: bool = True
    uses_activations: ClassVar[bool] = True

    def __init__(
        self,
        *,
        backend: Backend = "auto",
        normalisation: Normalisation = "all_parents",
        learned_prior: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        check_choice("routing normalisation", normalisation, get_args(Normalisation))
        check_iterations(options.get("iterations", 1))
        self.backend = check_backend(backend)
        self.normalisation: Normalisation = normalisation
        self.options = options
        self.learned_prior = bool(learned_prior)
        if learned_prior is not None:
            self.register_parameter("prior", None)

    def build(self, layer: LayerInfo) -> None:
        """Create parameters that depend on the children. The layer calls this once in its constructor."""
        if self.learned_prior:
            self.prior = nn.Parameter(torch.zeros(layer.parents, layer.child_types))

    @property
    def built_prior(self) -> Tensor | None:
        """``prior`` if it is learned; raise ``ValueError`` if ``build`` was not called."""
        return self.require_parameter("prior") if self.learned_prior else None

    def scheduled_options(self) -> dict[str, Any]:
        """Return the mapping from which ``forward`` reads the ``scheduled`` options, to change them there."""
        return self.options or vars(self)

    def counted_votes(self, votes: Tensor | Votes, activations: Tensor | None = None) -> Tensor:
        """Return the votes whose means are the parents' poses: ``votes``, unless the routing changes them first."""
        return dense_votes(votes.poses, votes.weight) if isinstance(votes, Votes) else votes

    @abstractmethod
    def forward(
        self,
        votes: Float[Tensor, "batch child parent dim"] | Votes,
        activations: Float[Tensor, "batch child"] | None = None,
        *,
        normalise: Normaliser | None = None,
        on_iteration: OnIteration | None = None,
    ) -> Capsules:
        """Compute poses and activations of the parents.

        Args:
            votes: prediction of each child for each parent. Capsule layers pass poses and weight instead, so that the
                votes do not have to be stored. To always receive the tensor, decorate ``forward`` with
                ``functional.with_dense_votes``.
            activations: activations of the children; algorithms that derive them from the poses ignore this.
            normalise: function from log-couplings to couplings; by default a softmax over the parents of this call.
            on_iteration: called with a ``RoutingTrace`` after each iteration, for analysis.
        """

    def require_activations(self, activations: Tensor | None) -> Tensor:
        """Return the activations of the children; raise ``ValueError`` if they are missing."""
        if activations is None:
            raise ValueError(
                f"{type(self).__name__} received no activations; expected (batch, child) in [0, 1]"
            )
        return activations

    def require_parameter(self, name: str) -> Tensor:
        """Return a parameter or buffer that ``build`` creates; raise ``ValueError`` if ``build`` was not called."""
        tensor = getattr(self, name, None)
        if tensor is None:
            raise ValueError(
                f"{type(self).__name__} has no {name} yet; call build(LayerInfo(…)), as capsule layers do"
            )
        return tensor


def check_iterations(iterations: int) -> None:
    if iterations < 1:
        raise ValueError(f"routing iterations is {iterations}; expected 1 (no routing) or more")


def check_child_types(types: int, children: int) -> int:
    """Return the number of positions of the children; raise ``ValueError`` if it is not a whole number."""
    if children % types:
        raise ValueError(
            f"there are {children} children of {types} types; expected a multiple of the number of types"
        )
    return children // types


def prior_of_every_child(
    prior: Float[Tensor, "parent type"], votes: AbstractVotes
) -> Float[Tensor, "parent child"]:
    """Repeat a prior of each parent and kind of child for children ordered (position, type)."""
    return prior.repeat(1, check_child_types(prior.shape[1], votes.shape[1]))


RoutingFactory = Callable[..., AbstractRouting]
"""``(parents=…, dim=…) -> AbstractRouting``: a routing class or a partial of it."""


def build_routing(routing: RoutingFactory, layer: LayerInfo) -> AbstractRouting:
    """Build the routing of a layer. A routing that is already built is refused, because layers would share it."""
    if isinstance(routing, nn.Module):
        name = type(routing).__name__
        raise TypeError(
            f"routing is a {name} that is already built; expected the class {name} or a partial of it"
        )
    built_routing = routing(parents=layer.parents, dim=layer.dim)
    built_routing.build(layer)
    return built_routing
