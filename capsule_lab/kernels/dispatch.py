"""Run a routing procedure on votes with the backend that was asked for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from capsule_lab.functional import dense_votes
from capsule_lab.kernels import ops
from capsule_lab.kernels.backends import Backend, chosen, fused_kernels
from capsule_lab.kernels.base import AbstractVotes
from capsule_lab.kernels.dense import MatmulVotes, PlainVotes
from capsule_lab.kernels.fused import FusedVotes
from capsule_lab.types import Votes

VOTES_IN_CACHE = 8 * 2**20  # ours: bytes of votes made at a time on a CPU; fastest of 1 to 1000 MB

Procedure = Callable[[AbstractVotes, Tensor | None], tuple[Tensor, ...]]


def route(
    procedure: Procedure,
    votes: Tensor | Votes,
    activations: Tensor | None,
    *,
    backend: Backend,
    together: int = 1,
    at_once: bool = False,
) -> tuple[Tensor, ...]:
    """``procedure(votes, activations)``.

    Args:
        procedure: a routing algorithm, from votes and activations of the children to tensors of parents.
        votes: made, or what they are made from.
        activations: of the children, if they have any.
        backend: see ``Backend``.
        together: rows of the batch that depend on each other: the positions of an image.
        at_once: all rows in one call of the procedure, as who watches it expects.
    """
    choice = chosen(backend, votes)
    if not isinstance(votes, Votes):
        return procedure((PlainVotes if choice == "reference" else MatmulVotes)(votes), activations)
    if choice == "fused":
        return procedure(FusedVotes(votes), activations)
    if choice == "reference":
        return procedure(PlainVotes(dense_votes(*votes)), activations)
    rows = len(votes.poses)
    if votes.poses.device.type == "cpu" and not at_once and not torch.compiler.is_compiling():
        rows = _rows_in_cache(votes, together)
    below = votes.poses.split(max(rows, 1))
    presence = [None] * len(below) if activations is None else activations.split(max(rows, 1))
    above = [
        procedure(MatmulVotes(dense_votes(poses, votes.weight)), present)
        for poses, present in zip(below, presence, strict=True)
    ]
    return above[0] if len(above) == 1 else tuple(torch.cat(parts) for parts in zip(*above, strict=True))


def _rows_in_cache(votes: Votes, together: int) -> int:
    """As many rows as keep their votes in cache, in whole images."""
    child, inner, parent, columns = votes.weight.shape
    dim = votes.poses.shape[2] // inner * columns
    of_image = together * child * parent * dim * votes.poses.element_size()
    return together * max(VOTES_IN_CACHE // of_image, 1)


def couplings_of_children(log_couplings: Tensor, child: Tensor, children: int) -> Tensor | None:
    """Softmax over all entries of an image that belong to one child, by a fused kernel; ``None`` if there is none."""
    kernels = fused_kernels(log_couplings.device.type)
    return ops.softmax_by_child(log_couplings, child, children) if hasattr(kernels, "softmax_by_child") else None
