"""The reference of a routing: ``REFERENCE`` in ``tests/reference/<module of the routing>_loops.py``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from tests.reference.loops import length_loops

BACKENDS = ("dense", "dense-reference", "reference", "matmul", "fused")
"""Backends for votes given as poses and weight, and, with ``dense`` in the name, for a tensor of votes."""


@dataclass(frozen=True)
class Reference:
    """The slow loops of a routing, and the facts that the contract needs.

    Attributes:
        loops: poses and activations of the parents by slow loops, from votes, activations of the children and the
            module under test.
        switches: values of its constructor's arguments, the default first; the second value changes the parents.
        elsewhere: arguments that the loops do not have; a separate file tests them.
        given: combinations of arguments that are always tested, by name.
        backends: of ``BACKENDS``: a routing that reads the poses of children cannot be given the tensor of votes.
        added: addition of the algorithm to the sum of a child's couplings, which is one otherwise.
        normalised: whether poses are normalised over the batch after the last iteration, which its trace is without.
        activations: of children: ``"needed"`` if the routing refuses to run without them; ``"weighing"`` if, besides,
            a child counts for as much as it is active.
        agreeing: whether couplings depend on how close votes are; those of inverted attention and of Heinsen's
            routing depend on whether a vote is useful.
        exchangeable: whether children, and initially parents, differ only in their votes.
    """

    loops: Callable[[Tensor, Tensor, Any], tuple[Tensor, Tensor]]
    switches: dict[str, Sequence[Any]] = field(default_factory=dict)
    elsewhere: Sequence[str] = ()
    given: Callable[[], dict[str, dict[str, Any]]] = dict
    backends: Sequence[str] = BACKENDS
    added: Callable[[Any], float | Tensor] = lambda _: 0.0
    normalised: bool = False
    activations: Literal["ignored", "needed", "weighing"] = "ignored"
    agreeing: bool = False
    exchangeable: bool = True


def with_lengths(poses: Tensor) -> tuple[Tensor, Tensor]:
    """Capsules whose activations are the lengths of their poses."""
    return poses, length_loops(poses)


def by_statistics(norm: nn.BatchNorm1d, rows: Tensor) -> Tensor:
    """Batch normalisation as in evaluation, by the running statistics."""
    normalised = (rows - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    return normalised * norm.weight + norm.bias if norm.affine else normalised
