"""Dynamic routing between capsules: Sabour, Frosst and Hinton, NeurIPS 2017, procedure 1."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.errors import check_choice
from capsule_lab.functional import SQUASHES, Squash, float32_under_autocast, length
from capsule_lab.kernels import AbstractVotes, Backend, check_backend, route
from capsule_lab.routing.base import AbstractRouting, LayerInfo, Normaliser, check_parents, prior_of_every_child
from capsule_lab.types import Capsules, OnIteration, RoutingTrace, Votes

Gradient = Literal["full", "last"]
Update = Literal["add", "replace"]


@float32_under_autocast
def dynamic_routing(
    votes: Float[Tensor, "batch child parent dim"] | Votes,
    *,
    iterations: int = 3,  # Sabour 2017, section 2
    bias: Float[Tensor, "parent dim"] | None = None,
    bias_inside: bool = True,
    prior: Float[Tensor, "parent type"] | None = None,
    update: Update = "add",
    leaky: bool = False,
    gradient: Gradient = "full",
    squash: Squash = "squash",  # Sabour 2017, equation 1
    normalise: Normaliser | None = None,
    on_iteration: OnIteration | None = None,
    backend: Backend = "auto",
) -> Capsules:
    """Parents on whose poses the children's votes agree (Sabour 2017, procedure 1).

    Their symbols: ``u_hat`` votes, ``b_ij`` logits, ``c_ij`` couplings, ``s_j`` total input, ``v_j`` poses.
    Logits start anew for every image and call: at zero, or at a ``prior``, which is the same for all images.

    Args:
        votes: prediction of each child for each parent, or poses and weight.
        iterations: at least 1; 1 means uniform couplings, that is no routing.
        bias: added to ``s_j``. Not in the paper's pseudo-code; in the official code, one per parent
            and component.
        bias_inside: add the bias in every iteration, so that it takes part in the agreement (official
            code); otherwise in the last iteration only.
        prior: log-couplings to begin with, of each parent and kind of child, children being ordered (position, type);
            "log prior probabilities" that "can be learned discriminatively" (section 2). ``None``: zero.
        update: ``"add"`` the agreement to the logits (paper), or ``"replace"`` by it what earlier iterations added, as
            a tutorial's port does by mistake; different from the third iteration on.
        leaky: see ``softmax_over_parents``; not together with ``normalise``.
        gradient: ``"full"`` differentiates through all iterations (official code); ``"last"`` treats the
            couplings as constants, as many ports do. Values are the same.
        squash: what makes a pose of ``s_j``, see ``capsule_lab.functional.SQUASHES``. Without a bound on the lengths,
            which are then the logits too, no loss of probabilities fits.
        normalise: log-couplings ``(batch, parent, child)`` to couplings; default softmax over parents.
        on_iteration: called with a ``RoutingTrace`` after each iteration.
        backend: see ``AbstractRouting``.

    Returns:
        Capsules: poses ``(batch, parent, dim)``, their lengths in [0, 1), and ``2 ln |s_j|``, the logits of these.

    Raises:
        ValueError: for fewer than one iteration, an unknown ``update``, ``gradient``, ``squash`` or ``backend``,
            ``leaky`` beside ``normalise``, or a prior of other parents or children.

    >>> votes = torch.ones(1, 5, 2, 4)  # five children that agree
    >>> dynamic_routing(votes).poses.shape
    torch.Size([1, 2, 4])
    """
    _check(iterations, gradient, squash, update)
    functions = SQUASHES[squash]
    if leaky and normalise is not None:
        raise ValueError("routing is leaky and has a normaliser; expected one of them, which decides on the leak")
    normalise = normalise or Normaliser(leaky=leaky)

    def procedure(votes: AbstractVotes, _: Tensor | None) -> tuple[Tensor, Tensor]:
        check_parents(votes, "bias", bias)
        start = votes.zero_logits()  # [b j i]
        start = start if prior is None else start + prior_of_every_child(prior, votes)
        added: Tensor | None = None  # by agreement
        for iteration in range(iterations):
            last = iteration == iterations - 1
            with nullcontext() if last or gradient == "full" else torch.no_grad():
                logits = start if added is None else added if prior is None else start + added
                couplings = normalise(logits)  # [b j i]
                total = votes.weighted_sum(couplings)  # [b j d]
                if bias is not None and (bias_inside or last):
                    total = total + bias
                poses = functions.poses(total)  # [b j d]
                if not last:
                    agreement = votes.agreement(poses)
                    added = agreement if added is None or update == "replace" else added + agreement
            if on_iteration is not None:
                logits_of = functions.logits(total)
                on_iteration(RoutingTrace(iteration, couplings.transpose(1, 2), poses, length(poses), logits_of))
        return poses, functions.logits(total)

    rows, watched = normalise.rows_per_image, on_iteration is not None
    poses, logits = route(procedure, votes, None, backend=backend, rows_per_image=rows, whole_batch=watched)
    return Capsules(poses, length(poses), logits)


class DynamicRouting(AbstractRouting):
    """``dynamic_routing`` with its learned bias; activations of the parents are the lengths of their poses.

    Args:
        parents: number of parents.
        dim: components of a parent's pose.
        iterations, bias_inside, update, leaky, gradient, squash, backend: see ``dynamic_routing``.
        bias: learn a bias per parent and component (160 parameters for ten digits of 16).
        learned_prior: learn its ``prior``, which starts at zero and which ``build`` creates: a log-coupling for each
            parent and child; where transformations are shared, for each parent and kind of child.

    Raises:
        ValueError: for fewer than one iteration, an unknown ``update``, ``gradient``, ``squash`` or ``backend``; in
            ``forward``, with a prior before ``build``.
    """

    scheduled: Mapping[str, type[int] | type[float]] = {"iterations": int}
    prior: nn.Parameter | None

    def __init__(
        self,
        parents: int,
        dim: int,
        *,
        iterations: int = 3,  # Sabour 2017, section 2
        bias: bool = True,
        bias_inside: bool = True,
        learned_prior: bool = False,
        update: Update = "add",
        leaky: bool = False,
        gradient: Gradient = "full",
        squash: Squash = "squash",  # Sabour 2017, equation 1
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        _check(iterations, gradient, squash, update)
        self.backend = check_backend(backend)
        self.iterations = iterations
        self.bias_inside = bias_inside
        self.learned_prior = learned_prior
        self.register_parameter("prior", None)
        self.update: Update = update
        self.leaky = leaky
        self.gradient: Gradient = gradient
        self.squash: Squash = squash
        self.bounded = SQUASHES[squash].bounded
        self.bias = nn.Parameter(torch.full((parents, dim), 0.1)) if bias else None  # 0.1: official code

    def build(self, layer: LayerInfo) -> None:
        if self.learned_prior:
            self.prior = nn.Parameter(torch.zeros(layer.parents, layer.child_types))

    def forward(
        self,
        votes: Float[Tensor, "batch child parent dim"] | Votes,
        activations: Float[Tensor, "batch child"] | None = None,
        *,
        normalise: Normaliser | None = None,
        on_iteration: OnIteration | None = None,
    ) -> Capsules:
        if self.learned_prior and self.prior is None:
            raise ValueError("the prior has no parameters yet; expected a call of build, as layers do it")
        return dynamic_routing(
            votes,
            iterations=self.iterations,
            bias=self.bias,
            bias_inside=self.bias_inside,
            prior=self.prior,
            update=self.update,
            leaky=self.leaky,
            gradient=self.gradient,
            squash=self.squash,
            normalise=normalise,
            on_iteration=on_iteration,
            backend=self.backend,
        )


def _check(iterations: int, gradient: str, squash: str, update: str) -> None:
    if iterations < 1:
        raise ValueError(f"routing iterations is {iterations}; expected 1 (no routing) or more, the paper uses 3")
    check_choice("routing update", update, get_args(Update))
    check_choice("routing gradient", gradient, get_args(Gradient))
    check_choice("routing squash", squash, get_args(Squash))
