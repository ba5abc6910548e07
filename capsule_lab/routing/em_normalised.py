"""EM routing whose activations are the logistic of a *batch-normalised* evidence: a network of it learns.

Ours. Differences from ``em_routing`` (Hinton 2018, procedure 1): a parent is active if its children's votes agree more
than is usual for it, ``a_j = logistic(BN(-1/2 sum_d ln sigma_jd^2))``: the unit of the evidence, there a fixed inverse
temperature and two betas, is learned. Ribeiro, Leontidis and Kollias, AAAI 2020, normalise theirs so. The E-step weighs
a parent by its mass, as mixtures of Gaussians do. With the evidence normalised, the floor under the variances may be as
large as the votes ask for: with a small one the gradient is chaotic after two iterations (docs/guides/not_learning.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.errors import check_choice, check_number
from capsule_lab.functional import float32_under_autocast
from capsule_lab.kernels import AbstractVotes, Backend, check_backend, route
from capsule_lab.routing.base import AbstractRouting, Normalisation, Normaliser
from capsule_lab.routing.batch_norm import BatchNorm
from capsule_lab.routing.em import fit_parents
from capsule_lab.types import Capsules, OnIteration, RoutingTrace, Votes


@float32_under_autocast
def em_evidence(
    votes: Float[Tensor, "batch child parent dim"] | Votes,
    activations: Float[Tensor, "batch child"],
    temperature: Float[Tensor, ""] | float = 1.0,
    *,
    iterations: int = 2,  # ours: more do not help, see results/
    min_variance: float = 1.0,  # ours: see the top of this file
    mass_eps: float = 1e-5,  # official code of Hinton 2018, class capsules
    normalise: Normaliser | None = None,
    on_iteration: OnIteration | None = None,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "batch parent dim"], Float[Tensor, "batch parent"], Float[Tensor, "batch parent"]]:
    """Poses of parents, the evidence for them, ``-1/2 sum_d ln sigma_jd^2``, and their mean variance.

    Args:
        votes, activations: ``V_ij``, the tensor or poses and weight; ``a_i`` in [0, 1].
        temperature: log-couplings are divided by it before they are normalised: above 1 couplings are more equal.
        iterations: at least 1; 1 means equal couplings, that is no routing.
        min_variance, mass_eps: added to every variance, to every mass.
        normalise, on_iteration, backend: see ``AbstractRouting``.

    >>> votes, activations = torch.ones(1, 5, 2, 4), torch.full((1, 5), 0.5)  # five children that agree
    >>> em_evidence(votes, activations, min_variance=0.01)[1]  # -1/2 * 4 ln 0.01
    tensor([[9.2103, 9.2103]])
    """
    normalise = normalise or Normaliser()

    def procedure(votes: AbstractVotes, activations: Tensor) -> tuple[Tensor, ...]:
        parents, log_variance = fit_parents(
            votes, activations, lambda _, mass, __: mass.log(), iterations=iterations, normalise=normalise,
            first=normalise, temperature=temperature, on_iteration=on_iteration, min_variance=min_variance,
            mass_eps=mass_eps,
        )  # fmt: skip
        return parents.poses, -0.5 * log_variance, parents.variances.mean(2)

    rows, watched = normalise.rows_per_image, on_iteration is not None
    found = route(procedure, votes, activations, backend=backend, rows_per_image=rows, whole_batch=watched)
    poses, evidence, variances = found
    return poses, evidence, variances


class NormalisedEMRouting(AbstractRouting):
    """``em_evidence``, batch-normalised; see the top of this file.

    Running statistics are kept over the batches of all processes, see ``BatchNorm``. One type of capsule has one pair
    of statistics, whatever its position.

    Args:
        parents, dim: number of parents (in a convolutional layer of parent types), components of a pose.
        iterations, min_variance, mass_eps, backend: see ``em_evidence``.
        normalisation: which parents compete for a child in a convolutional layer, see ``Normalisation``.
        temperature: see ``em_evidence``; the initial one, if it is learned.
        learn_temperature: one for the layer, as a logarithm.
        pose_norm: also normalise each component of the parents' poses, which are children of the next layer: means of
            votes are several times smaller than votes. For class capsules there is no next layer.
        relative_floor: ``min_variance`` is in units of the votes' own variance, whose running mean the layer keeps.
        gain: initial scale of the normalised evidence.

    Raises:
        ValueError: for fewer than one iteration, a number out of range or an unknown switch; in ``forward``, for
            children without activations.
    """

    scheduled: Mapping[str, type[int] | type[float]] = {"iterations": int, "temperature": float}
    votes_variance: Tensor

    def __init__(
        self,
        parents: int,
        dim: int,
        *,
        iterations: int = 2,  # ours
        normalisation: Normalisation = "all_parents",
        temperature: float = 1.0,
        learn_temperature: bool = False,
        min_variance: float = 1.0,  # ours: see the top of this file
        relative_floor: bool = False,
        mass_eps: float = 1e-5,  # official code of Hinton 2018, class capsules
        pose_norm: bool = True,
        gain: float = 1.0,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        if iterations < 1:
            raise ValueError(f"routing iterations is {iterations}; expected 1 (no routing) or more")
        check_choice("routing normalisation", normalisation, get_args(Normalisation))
        check_number("routing temperature", temperature, above=0)
        check_number("routing min_variance", min_variance, above=0)
        check_number("routing mass_eps", mass_eps, above=0)
        check_number("routing gain", gain, above=0)
        self.iterations = iterations
        self.normalisation = normalisation
        self.temperature = float(temperature)
        self.min_variance = min_variance
        self.mass_eps = mass_eps
        self.backend = check_backend(backend)
        learned = learn_temperature and iterations > 1  # one iteration has no E-step, in which it would matter
        self.log_temperature = nn.Parameter(torch.tensor(temperature).log()) if learned else None
        if learn_temperature:
            self.scheduled = {"iterations": int}
        self.evidence_norm = BatchNorm(parents)
        nn.init.constant_(self.evidence_norm.weight, gain)
        self.pose_norm = BatchNorm(parents * dim) if pose_norm else None
        self.relative_floor = relative_floor
        if relative_floor:
            self.register_buffer("votes_variance", torch.ones(()))

    def forward(
        self,
        votes: Float[Tensor, "batch child parent dim"] | Votes,
        activations: Float[Tensor, "batch child"] | None = None,
        *,
        normalise: Normaliser | None = None,
        on_iteration: OnIteration | None = None,
    ) -> Capsules:
        if activations is None:
            raise ValueError("EM routing got no activations of the children; expected (batch, child) in [0, 1]")
        temperature = self.temperature if self.log_temperature is None else self.log_temperature.exp()
        scale = self.votes_variance.sqrt() if self.relative_floor else None
        poses, evidence, variances = em_evidence(
            votes if scale is None else _divided(votes, scale),
            activations,
            temperature,
            iterations=self.iterations,
            min_variance=self.min_variance,
            mass_eps=self.mass_eps,
            normalise=normalise,
            on_iteration=None if on_iteration is None else self._in_units_of_votes(on_iteration, scale),
            backend=self.backend,
        )
        if scale is not None:
            poses = poses * scale
            self._measure_votes(variances)
        if self.pose_norm is not None:
            poses = self.pose_norm(poses.flatten(1)).view_as(poses)
        logits = self.evidence_norm(evidence)
        return Capsules(poses, logits.sigmoid(), logits)

    def _in_units_of_votes(self, on_iteration: OnIteration, scale: Tensor | None) -> OnIteration:
        """Traces of ``em_evidence`` as those of the votes given; outside of training with logits and activations."""

        def observe(trace: RoutingTrace) -> None:
            assert trace.variances is not None
            logits = None if self.training else self.evidence_norm(-0.5 * trace.variances.log().sum(2))
            present = None if logits is None else logits.sigmoid()
            unit = trace.poses.new_ones(()) if scale is None else scale
            variances = trace.variances * unit.square()
            on_iteration(RoutingTrace(*trace[:2], trace.poses * unit, present, logits, variances))

        return observe

    @torch.no_grad()
    def _measure_votes(self, variances: Tensor) -> None:
        """Move the running mean of the votes' variance; ``variances`` are in its units, and have the floor in them."""
        if self.training:
            now = self.votes_variance * (variances.mean() - self.min_variance).clamp_min(1e-6)  # ours: never 0
            self.votes_variance.lerp_(now, 0.1)  # 0.1: as batch normalisation


def _divided(votes: Tensor | Votes, scale: Tensor) -> Tensor | Votes:
    return votes / scale if isinstance(votes, Tensor) else votes._replace(poses=votes.poses / scale)
