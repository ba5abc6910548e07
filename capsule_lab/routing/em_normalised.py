"""EM routing, ours: activations are the logistic of *batch-normalised* evidence, and networks with it learn.

Differences from ``em_routing`` (Hinton 2018, procedure 1): a parent is active if its children's votes agree more
than usual, ``a_j = logistic(BN(-1/2 sum_d ln sigma_jd^2))`` (normalised as in Ribeiro 2020), which replaces the fixed
inverse temperature and two betas. The E-step weights parents by mass, as mixtures of Gaussians do. ``min_variance`` may
be large; with a small one the gradient is chaotic after two iterations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from jaxtyping import Float
from torch import Tensor

from capsule_lab.errors import check_number
from capsule_lab.functional import float32_under_autocast
from capsule_lab.kernels import AbstractVotes, Backend, route
from capsule_lab.routing import base
from capsule_lab.routing.batch_norm import BatchNorm
from capsule_lab.routing.em import make_em_step
from capsule_lab.routing.em_costs import LOG_2PI
from capsule_lab.shapes import check_probabilities, checks_routing
from capsule_lab.types import Capsules, OnIteration, RoutingTrace, Votes

__all__ = ["NormalisedEMRouting", "em_evidence"]


def _is_one(temperature: float | Tensor) -> bool:
    return not isinstance(temperature, Tensor) and temperature == 1  # a tensor on a GPU is not read


class Adjusted(base.Normaliser):
    """Normaliser of log-couplings after division by a temperature and addition of a prior, ``(parent, child)``."""

    def __init__(
        self, normalise: base.Normaliser, temperature: float | Tensor, prior: Tensor | None
    ) -> None:
        super().__init__()
        self.normalise = normalise
        self.temperature = temperature
        self.prior = prior
        self.rows_per_image = normalise.rows_per_image

    def __call__(self, log_couplings: Tensor) -> Tensor:
        return self.normalise(self._adjusted(log_couplings))

    def fused(self, log_couplings: Tensor) -> Tensor:
        return self.normalise.fused(self._adjusted(log_couplings))

    def _adjusted(self, log_couplings: Tensor) -> Tensor:
        if not _is_one(self.temperature):
            log_couplings = log_couplings / self.temperature
        return log_couplings if self.prior is None else log_couplings + self.prior


@checks_routing
@float32_under_autocast
def em_evidence(
    votes: Float[Tensor, "batch child parent dim"] | Votes,
    activations: Float[Tensor, "batch child"],
    *,
    iterations: int = 2,  # ours: more iterations do not help, see results/
    temperature: float | Tensor = 1.0,
    min_variance: float = 1.0,  # ours: see the top of this file
    mass_eps: float = 1e-5,  # official code of Hinton 2018, class capsules
    prior: Float[Tensor, "parent type"] | None = None,
    normalise: base.Normaliser | None = None,
    on_iteration: OnIteration | None = None,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "batch parent dim"], Float[Tensor, "batch parent"]]:
    """Compute the poses of the parents and the evidence for them, ``-1/2 sum_d ln sigma_jd^2``.

    Log-couplings are divided by ``temperature`` before normalisation; a value above 1 makes couplings more equal.
    ``prior`` is added to the log-couplings of every iteration, see ``dynamic_routing``: with one iteration, couplings
    are then the same for every image, and votes are stored. For the other arguments see ``em_routing``.
    """
    base.check_iterations(iterations)
    numbers = {"temperature": temperature, "min_variance": min_variance}
    for name, number in numbers.items():
        if not isinstance(number, Tensor):  # a schedule in the memory of a GPU, which is not read
            check_number(f"routing {name}", number, above=0)
    check_probabilities("em_evidence", "activations", activations)
    of_the_layer = normalise or base.Normaliser()

    def procedure(votes: AbstractVotes, activations: Tensor) -> tuple[Tensor, Tensor]:
        dim = votes.shape[3]
        shift = None if prior is None else base.prior_of_every_child(prior, votes)
        plain = _is_one(temperature) and shift is None
        normalise = of_the_layer if plain else Adjusted(of_the_layer, temperature, shift)
        em_step = make_em_step(
            votes, activations, damping=0.0, min_variance=min_variance, mass_eps=mass_eps
        )
        before = None
        for iteration in range(iterations):
            couplings, parents = em_step(before, normalise, last=iteration == iterations - 1)
            log_variance = parents.variances.log().sum(2)  # [b j]
            if on_iteration is not None:
                by_child = couplings.transpose(1, 2)
                on_iteration(
                    RoutingTrace(iteration, by_child, parents.poses, variances=parents.variances)
                )
            # logarithm of a parent's mass over sqrt(prod_d 2 pi sigma_jd^2)
            before = parents, parents.mass.log() - 0.5 * (log_variance + dim * LOG_2PI)
        return parents.poses, -0.5 * log_variance

    poses, evidence = route(
        procedure,
        votes,
        activations,
        of_the_layer,
        on_iteration,
        backend,
        # the fused step would keep the couplings of all iterations for the gradient of the prior
        fused=prior is None,
    )
    return poses, evidence


class NormalisedEMRouting(base.AbstractRouting):
    """Batch-normalised ``em_evidence``; see the top of this file.

    Running statistics include all processes, see ``BatchNorm``, with one pair for each type of capsule.

    Args:
        pose_norm: also normalise each component of the parents' poses for the next layer, because means of votes are
            several times smaller than votes. Class capsules have no next layer.
        learned_prior: learn ``prior``, starting at zero, as in ``DynamicRouting``.
        parents, dim, normalisation, backend: see ``AbstractRouting``; the others: see ``em_evidence``.
    """

    scheduled: Mapping[str, type[int] | type[float]] = {"iterations": int, "temperature": float}

    def __init__(
        self,
        parents: int,
        dim: int,
        *,
        iterations: int = 2,
        normalisation: base.Normalisation = "all_parents",
        temperature: float = 1.0,
        min_variance: float = 1.0,
        mass_eps: float = 1e-5,
        pose_norm: bool = True,
        learned_prior: bool = False,
        backend: Backend = "auto",
    ) -> None:
        numbers = {"temperature": temperature, "min_variance": min_variance, "mass_eps": mass_eps}
        for name, number in numbers.items():
            check_number(f"routing {name}", number, above=0)
        super().__init__(
            backend=backend,
            normalisation=normalisation,
            learned_prior=learned_prior,
            iterations=iterations,
            **numbers,
        )
        self.evidence_norm = BatchNorm(parents)
        self.pose_norm = BatchNorm(parents * dim) if pose_norm else None

    def forward(
        self, votes: Tensor | Votes, activations: Tensor | None = None, **call: Unpack[base.Call]
    ) -> Capsules:
        if on_iteration := call.get("on_iteration"):
            call["on_iteration"] = self._with_activations(on_iteration)
        poses, evidence = em_evidence(
            votes,
            self.require_activations(activations),
            prior=self.built_prior,
            **self.options,
            backend=self.backend,
            **call,
        )
        if self.pose_norm is not None:
            poses = self.pose_norm(poses.flatten(1)).view_as(poses)
        logits = self.evidence_norm(evidence)
        return Capsules(poses, logits.sigmoid(), logits)

    def _with_activations(self, on_iteration: OnIteration) -> OnIteration:
        """Add logits and activations to the traces, except during training, where this would update the statistics."""

        def observe(trace: RoutingTrace) -> None:
            assert trace.variances is not None
            if not self.training:
                logits = self.evidence_norm(-0.5 * trace.variances.log().sum(2))
                trace = trace._replace(activations=logits.sigmoid(), logits=logits)
            on_iteration(trace)

        return observe
