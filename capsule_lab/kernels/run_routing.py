"""Run a routing procedure on votes with a given backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from capsule_lab.functional import dense_votes
from capsule_lab.kernels import ops
from capsule_lab.kernels.backends import Backend, fused_kernels, select_backend
from capsule_lab.kernels.base import AbstractVotes, Normalise
from capsule_lab.kernels.dense import MatmulVotes, PlainVotes
from capsule_lab.kernels.fused import FusedVotes
from capsule_lab.types import OnIteration, Votes

# ours: bytes of votes computed at a time on a CPU; fastest in 1 to 1000 MB
VOTES_IN_CACHE = 8 * 2**20

Procedure = Callable[[AbstractVotes, Any], tuple[Tensor, ...]]
"""A routing algorithm: function from votes and activations of the children (or ``None``) to tensors of parents."""


def route(
    procedure: Procedure,
    votes: Tensor | Votes,
    activations: Tensor | None,
    normalise: Normalise | None,
    on_iteration: OnIteration | None,
    backend: Backend,
    *,
    fused: bool = True,
) -> tuple[Tensor, ...]:
    """Return ``procedure(votes, activations)``.

    On a CPU, ``matmul`` runs the procedure on chunks of images whose votes fit into the cache. With ``on_iteration``,
    which expects all images, it runs on all of them at once. ``fused=False`` declares that the procedure has no fused
    form, see ``select_backend``. The other arguments are those of the routing function. Raise ``ValueError`` if votes
    do not have 4 dimensions.
    """
    if isinstance(votes, Tensor) and votes.ndim != 4:
        raise ValueError(
            f"votes have shape {tuple(votes.shape)}; expected (batch, child, parent, dim)"
        )
    choice = select_backend(backend, votes, fused=fused)
    if not isinstance(votes, Votes):
        dense = PlainVotes(votes) if choice == "reference" else MatmulVotes(votes)
        return procedure(dense, activations)
    if choice == "fused":
        return procedure(FusedVotes(votes), activations)
    if choice == "reference":
        return procedure(PlainVotes(dense_votes(votes.poses, votes.weight)), activations)
    # a split would fix the size of the batch
    if torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return procedure(MatmulVotes(dense_votes(votes.poses, votes.weight)), activations)
    rows = votes.poses.shape[0]
    if votes.poses.device.type == "cpu" and on_iteration is None:
        rows = _rows_in_cache(votes, normalise.rows_per_image if normalise else 1)
    chunks = votes.poses.split(max(rows, 1))
    of_chunks = [None] * len(chunks) if activations is None else activations.split(max(rows, 1))
    parents = []
    for poses, of_chunk in zip(chunks, of_chunks, strict=True):
        dense = MatmulVotes(dense_votes(poses, votes.weight))
        of_parents = procedure(dense, of_chunk)
        if len(of_parents[0]) != len(poses):  # broadcast over couplings of other rows
            raise ValueError(
                f"routing returned {len(of_parents[0])} rows for {len(poses)} rows of votes; expected a normaliser "
                "that keeps the shape of log-couplings, and if couplings depend on the image rows_per_image=the number "
                "of all rows"
            )
        parents.append(of_parents)
    if len(parents) == 1:
        return parents[0]
    return tuple(torch.cat(parts) for parts in zip(*parents, strict=True))


def _rows_in_cache(votes: Votes, rows_per_image: int) -> int:
    """Return the number of rows whose votes fit into the cache, in whole images."""
    child, inner, parent, columns = votes.weight.shape
    dim = votes.poses.shape[2] // inner * columns
    bytes_per_image = rows_per_image * child * parent * dim * votes.poses.element_size()
    return rows_per_image * max(VOTES_IN_CACHE // max(bytes_per_image, 1), 1)


def child_softmax(log_couplings: Tensor, child: Tensor, children: int) -> Tensor | None:
    """Softmax over all entries of an image that belong to one child; ``None`` if there is no fused kernel."""
    if torch.compiler.is_exporting():  # other programs do not have our operators
        return None
    kernels = fused_kernels(log_couplings.device.type)
    return (
        ops.softmax_by_child(log_couplings, child, children)
        if hasattr(kernels, "softmax_by_child")
        else None
    )
