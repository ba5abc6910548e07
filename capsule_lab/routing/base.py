"""What every routing algorithm offers to a capsule layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn, TypedDict, get_args

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
"""Which parents compete for a child in a convolutional layer, where several positions see it.

``all_parents``: all parents at all positions that see it (Hinton 2018, section 4); ``window``: the parents of
each position among themselves, so that a child seen by nine positions counts nine times (most ports);
``official_legacy`` and ``official_fast``: the two of the official code. See ``capsule_lab.layers.normalisers``.
"""


class Normaliser:
    """Turns log-couplings into couplings. The layer knows which parents compete for a child, routing does not.

    Here the parents of the call compete, as is right where every parent sees every child; ``leaky`` as in
    ``softmax_over_parents``.
    """

    rows_per_image: int = 1
    """Rows of the batch that depend on each other: in a convolutional layer the positions."""

    def __init__(self, *, leaky: bool = False) -> None:
        self.leaky = leaky

    def __call__(self, log_couplings: Float[Tensor, "batch parent child"]) -> Float[Tensor, "batch parent child"]:
        """Couplings; log-couplings may lack a constant per child."""
        return softmax_over_parents(log_couplings, leaky=self.leaky)

    def fused(self, log_couplings: Float[Tensor, "batch parent child"]) -> Float[Tensor, "batch parent child"]:
        """The same couplings, by a fused kernel where there is one."""
        return self(log_couplings)

    def total(self, mass: Float[Tensor, "batch parent"]) -> Float[Tensor, "batch 1"]:
        """Sum of ``mass`` over all parents of the layer, of all positions."""
        return mass.sum(1, keepdim=True)


def leaky_normaliser(leaky: bool, normalise: Normaliser | None) -> Normaliser:
    """``normalise``, or by default a softmax over the parents of the call."""
    if leaky and normalise is not None:
        raise ValueError("routing is leaky and has a normaliser; expected one of them, which decides on the leak")
    return normalise or Normaliser(leaky=leaky)


class EqualOverTypes(Normaliser):
    """Equal couplings over the parents of the call, whatever the log-couplings (official code's first iteration)."""

    def __call__(self, log_couplings: Tensor) -> Tensor:
        return torch.full_like(log_couplings, 1 / log_couplings.shape[1])


@dataclass(frozen=True)
class LayerInfo:
    """What a capsule layer tells its routing before the first call, see ``AbstractRouting.build``."""

    parents: int  # capsules of a call: of the layer, in a convolutional layer of one position
    dim: int  # components of their poses
    children: int  # that each parent sees: all, in a convolutional layer one window, ordered (row, column, type)
    child_dim: int  # components of their poses
    shared: bool  # whether positions of the parents (convolution) or of the children (classes) share transformations
    child_types: int
    """Kinds of child with transformations of their own: as many as children, except where the positions of the children
    share them; children are then ordered (position, type)."""


class Call(TypedDict, total=False):
    """Options of a call of a routing, see ``AbstractRouting.forward``."""

    normalise: Normaliser | None
    on_iteration: OnIteration | None


class AbstractRouting(nn.Module, ABC):
    """Computes the couplings of children and parents, and the parents, from votes.

    A routing holds its learned parameters (biases, betas) and no couplings between calls. Layers construct it with
    ``(parents, dim)`` and then call ``build``; every other argument is the algorithm's own and comes through a
    ``functools.partial`` or ``conf/routing/*.yaml``.

    Args:
        parents, dim: number of parents (in a convolutional layer of parent types), components of a pose.
        backend: how votes are summed, the same numbers in other time and memory: see ``capsule_lab.kernels.Backend``.
        normalisation: which parents compete for a child in a convolutional layer, see ``Normalisation``.
        options: with what ``forward`` calls the routing's function.

    Attributes:
        leaky: whether a child's couplings may sum to less than one; the primary capsules of a CapsNet follow it.
        competing: of which capsules the couplings sum to one: the ``"parents"`` of a child compete for it, through
            ``normalise``; or the ``"children"`` of a parent, where ``normalise`` is not used.
        bounded: whether activations are in [0, 1]; where not, they are logits, and no loss of probabilities fits.
        poses: whether parents have poses; where they have none, dense and class capsules have no transformations.
        scheduled: options that a schedule may change while training, and whether they are an ``int`` or a ``float``: a
            schedule named ``routing_<option>`` sets them, see ``capsule_lab.lit.scheduled_routing``.
    """

    scheduled: Mapping[str, type[int] | type[float]] = {}
    leaky: bool = False
    competing: ClassVar[Literal["parents", "children"]] = "parents"
    bounded: bool = True
    poses: bool = True

    def __init__(
        self, *, backend: Backend = "auto", normalisation: Normalisation = "all_parents", **options: Any
    ) -> None:
        super().__init__()
        check_choice("routing normalisation", normalisation, get_args(Normalisation))
        check_iterations(options.get("iterations", 1))
        self.backend = check_backend(backend)
        self.normalisation: Normalisation = normalisation
        self.options = options

    def build(self, layer: LayerInfo) -> None:
        """Called once by the layer, while it is constructed: the place for parameters per child."""

    def scheduled_options(self) -> dict[str, Any]:
        """Where ``forward`` finds the options ``scheduled``, to be changed there."""
        return self.options or vars(self)

    def counted_votes(self, votes: Tensor | Votes, activations: Tensor | None = None) -> Tensor:
        """The votes of which poses of parents are means: those given, unless the routing changes them first."""
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
        """Poses and activations of the parents.

        Args:
            votes: prediction of each child for each parent, or, from capsule layers, the poses and weight that it is
                computed from, so that it need not be stored. An algorithm in plain tensors puts
                ``functional.with_dense_votes`` over its ``forward`` and always gets the tensor.
            activations: of the children; algorithms that read them from the poses ignore them.
            normalise: how log-couplings become couplings; by default a softmax over the parents of this call.
            on_iteration: called with a ``RoutingTrace`` after each iteration, for analysis.
        """

    def needed(self, activations: Tensor | None) -> Tensor:
        """The activations of the children, for a routing that cannot do without."""
        if activations is None:
            raise ValueError(f"{type(self).__name__} got no activations of children; expected (batch, child) in [0, 1]")
        return activations

    def built(self, name: str) -> Tensor:
        """A parameter or buffer that ``build`` creates."""
        tensor = getattr(self, name, None)
        if tensor is None:
            raise ValueError(f"{type(self).__name__} has no {name} yet; call build(LayerInfo(…)), as capsule layers do")
        return tensor


def check_iterations(iterations: int) -> None:
    if iterations < 1:
        raise ValueError(f"routing iterations is {iterations}; expected 1 (no routing) or more")


def check_child_types(types: int, children: int) -> int:
    """How many positions the children have, of parameters per child type."""
    if children % types:
        raise ValueError(
            f"{types} types of children do not divide {children} children; expected a multiple of the types"
        )
    return children // types


def refuse(votes: AbstractVotes, name: str, parameter: Tensor) -> NoReturn:
    """Raise: a parameter of a routing does not fit the shape of the votes."""
    _, children, parents, dim = votes.shape
    raise ValueError(
        f"the routing's {name} has shape {tuple(parameter.shape)}, but the votes have {children} children, {parents} "
        f"parents and {dim} components; build the routing with these sizes"
    )


def prior_of_every_child(prior: Float[Tensor, "parent type"], votes: AbstractVotes) -> Float[Tensor, "parent child"]:
    """A learned number of each parent and kind of child, for children that are ordered (position, type)."""
    if prior.shape[0] != votes.shape[2] or votes.shape[1] % prior.shape[1]:
        refuse(votes, "prior", prior)
    return prior.repeat(1, votes.shape[1] // prior.shape[1])


def check_parents(votes: AbstractVotes, name: str, parameter: Tensor | None) -> None:
    """A parameter of a routing, such as its bias, is of the parents that votes are for, or one for all."""
    if parameter is None or parameter.numel() == 1:
        return
    if tuple(parameter.shape) != tuple(votes.shape[2 : 2 + parameter.ndim]):
        refuse(votes, name, parameter)


RoutingFactory = Callable[..., AbstractRouting]
"""``(parents=…, dim=…) -> AbstractRouting``: a routing class or a partial of one."""


def build_routing(routing: RoutingFactory, layer: LayerInfo) -> AbstractRouting:
    """The routing of a layer, from what builds one: a routing that is built already would be shared by layers."""
    if isinstance(routing, nn.Module):
        name = type(routing).__name__
        raise TypeError(f"routing is a {name} that is built already; expected what builds one: {name} or a partial")
    built = routing(parents=layer.parents, dim=layer.dim)
    built.build(layer)
    return built
