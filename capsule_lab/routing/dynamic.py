"""Dynamic routing between capsules: Sabour, Frosst and Hinton, NeurIPS 2017, procedure 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Unpack, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.errors import check_choice
from capsule_lab.functional import SQUASHES, Squash, float32_under_autocast, length
from capsule_lab.kernels import AbstractVotes, Backend, route
from capsule_lab.routing import base
from capsule_lab.shapes import checks_routing
from capsule_lab.types import Capsules, OnIteration, RoutingTrace, Votes

__all__ = ["DynamicRouting", "dynamic_routing"]

Gradient = Literal["full", "last"]
Update = Literal["add", "replace"]


@checks_routing
@float32_under_autocast
def dynamic_routing(
    votes: Float[Tensor, "batch child parent dim"] | Votes,
    *,
    iterations: int = 3,  # Sabour 2017, section 2
    bias: Float[Tensor, "parent dim"] | None = None,
    prior: Float[Tensor, "parent type"] | None = None,
    update: Update = "add",
    leaky: bool = False,
    gradient: Gradient = "full",
    squash: Squash = "squash",  # Sabour 2017, equation 1
    normalise: base.Normaliser | None = None,
    on_iteration: OnIteration | None = None,
    backend: Backend = "auto",
) -> Capsules:
    """Compute parents from the agreement of their children's votes (Sabour 2017, procedure 1).

    Symbols of the paper: ``u_hat`` votes, ``b_ij`` logits, ``c_ij`` couplings, ``s_j`` total input, ``v_j`` poses.
    Logits of every image and call start at zero or at ``prior``, which is the same for all images.

    Args:
        votes: prediction of each child for each parent, or poses and weight.
        iterations: at least 1; with 1, couplings are uniform, that is, there is no routing.
        bias: added to ``s_j`` in every iteration; in the official code, not in the paper's pseudo-code.
        prior: initial log-couplings for each parent and kind of child, with children ordered (position, type);
            "log prior probabilities" that "can be learned discriminatively" (section 2). ``None``: zero.
        update: ``"add"`` adds the agreement to the logits (paper). ``"replace"`` also removes the agreement of earlier
            iterations, as a tutorial's port does by mistake; the results differ from the third iteration on.
        leaky: see ``softmax_over_parents``; cannot be combined with ``normalise``.
        gradient: ``"full"`` differentiates through all iterations (official code); ``"last"`` treats the
            agreement as constant, as many ports do. Forward results are the same.
        squash: function from ``s_j`` to the pose, see ``capsule_lab.functional.SQUASHES``.
        normalise, on_iteration, backend: see ``AbstractRouting``.

    Returns poses ``(batch, parent, dim)``, their lengths in [0, 1), and their logits ``2 ln |s_j|``.

    >>> votes = torch.ones(1, 5, 2, 4)  # five children that agree
    >>> dynamic_routing(votes).poses.shape
    torch.Size([1, 2, 4])
    """
    _check(iterations, update, gradient, squash)
    functions = SQUASHES[squash]
    normalise = base.leaky_normaliser(leaky, normalise)

    def procedure(votes: AbstractVotes, _: Tensor | None) -> tuple[Tensor, ...]:
        logits = start = _initial_logits(votes, prior)  # b_ij [b j i]
        for iteration in range(iterations):
            couplings = normalise(logits)  # c_ij [b j i]
            total = votes.weighted_sum(couplings)  # s_j [b j d]
            total = total if bias is None else total + bias
            poses = functions.poses(total)  # v_j [b j d]
            if on_iteration is not None:
                parents = poses, length(poses), functions.logits(total)
                on_iteration(RoutingTrace(iteration, couplings.transpose(1, 2), *parents))
            if iteration < iterations - 1:
                agreement = votes.agreement(poses)  # u_hat . v_j [b j i]
                agreement = agreement if gradient == "full" else agreement.detach()
                logits = (logits if update == "add" else start) + agreement
        return poses, length(poses), functions.logits(total)

    return Capsules(*route(procedure, votes, None, normalise, on_iteration, backend))


def _initial_logits(
    votes: AbstractVotes, prior: Tensor | None
) -> Float[Tensor, "batch parent child"]:
    """Return logits of zero, or the prior of each child for every image."""
    logits = votes.zero_logits()
    return logits if prior is None else logits + base.prior_of_every_child(prior, votes)


class DynamicRouting(base.AbstractRouting):
    """``dynamic_routing`` with a learned bias; activations of the parents are the lengths of their poses.

    Args:
        bias: learn a bias per parent and component (160 parameters for ten digits of 16).
        learned_prior: learn ``prior``, starting at zero: one log-coupling for each parent and child or, if
            transformations are shared, for each parent and kind of child.
        parents, dim, backend: see ``AbstractRouting``; the others: see ``dynamic_routing``.
    """

    scheduled: Mapping[str, type[int] | type[float]] = {"iterations": int}
    uses_activations = False

    def __init__(
        self,
        parents: int,
        dim: int,
        *,
        iterations: int = 3,
        bias: bool = True,
        learned_prior: bool = False,
        update: Update = "add",
        leaky: bool = False,
        gradient: Gradient = "full",
        squash: Squash = "squash",
        backend: Backend = "auto",
    ) -> None:
        _check(iterations, update, gradient, squash)
        super().__init__(
            backend=backend,
            iterations=iterations,
            learned_prior=learned_prior,
            update=update,
            leaky=leaky,
            gradient=gradient,
            squash=squash,
        )
        self.leaky = leaky
        self.bounded = self.sigmoid_logits = SQUASHES[squash].bounded
        initial_bias = torch.full((parents, dim), 0.1)  # 0.1: official code
        self.bias = nn.Parameter(initial_bias) if bias else None

    def forward(
        self, votes: Tensor | Votes, activations: Tensor | None = None, **call: Unpack[base.Call]
    ) -> Capsules:
        options = {"bias": self.bias, "prior": self.built_prior, **self.options}
        return dynamic_routing(votes, **options, backend=self.backend, **call)


def _check(iterations: int, update: str, gradient: str, squash: str) -> None:
    base.check_iterations(iterations)
    check_choice("routing update", update, get_args(Update))
    check_choice("routing gradient", gradient, get_args(Gradient))
    check_choice("routing squash", squash, get_args(Squash))
