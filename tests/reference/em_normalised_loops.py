"""Slow float64 transcription of EM routing with normalised evidence, up to its normalisation."""

import math
from itertools import product
from typing import Any

from torch import Tensor

from tests.reference.contract import Reference, by_statistics
from tests.reference.em_loops import Vector, gaussian, log_density
from tests.reference.loops import double, softmax_list, zeros


def em_evidence_loops(
    votes: list[list[Vector]],
    activations: Vector,
    *,
    iterations: int,
    temperature: float,
    min_variance: float,
    mass_eps: float,
    prior: list[Vector] | None = None,
) -> tuple[list[Vector], Vector]:
    """One image, ``votes[child][parent][component]``, to poses and evidence ``-1/2 sum ln sigma^2``."""
    children = range(len(votes))
    parents = range(len(votes[0]))
    log_prior = zeros(len(children), len(parents))
    if prior:
        types = len(prior[0])
        for i, j in product(children, parents):
            log_prior[i][j] = prior[j][i % types]
    couplings = [softmax_list(of_child) for of_child in log_prior]
    for _ in range(iterations):
        masses = []
        poses = []
        variances = []
        for j in parents:
            votes_of_parent = [votes[i][j] for i in children]
            weights = [couplings[i][j] * activations[i] for i in children]
            mass = sum(weights) + mass_eps
            pose, variance = gaussian(votes_of_parent, weights, mass, min_variance)
            masses.append(mass)
            poses.append(pose)
            variances.append(variance)
        couplings = []
        for i in children:
            explained = []
            for j in parents:
                density = log_density(votes[i][j], poses[j], variances[j])
                log_joint = math.log(masses[j]) + density
                explained.append(log_joint / temperature + log_prior[i][j])
            couplings.append(softmax_list(explained))
    evidence = []
    for variance in variances:
        log_volume = sum(math.log(v) for v in variance)
        evidence.append(-0.5 * log_volume)
    return poses, evidence


def parents_by_loops(votes: Tensor, activations: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    """With running statistics, as in evaluation mode."""
    prior = None if module.prior is None else module.prior.tolist()
    all_poses = []
    all_evidence = []
    for vote, active in zip(votes.tolist(), activations.tolist(), strict=True):
        poses, evidence = em_evidence_loops(vote, active, prior=prior, **module.options)
        all_poses.append(poses)
        all_evidence.append(evidence)
    stacked = double(all_poses)
    if module.pose_norm is not None:
        normalised = by_statistics(module.pose_norm, stacked.flatten(1))
        stacked = normalised.view_as(stacked)
    logits = by_statistics(module.evidence_norm, double(all_evidence))
    return stacked, logits.sigmoid()


REFERENCE = Reference(
    parents_by_loops,
    switches={
        "iterations": (2, 1, 3, 5),
        "normalisation": ("all_parents", "window"),
        "temperature": (1.0, 0.5, 4.0),
        "min_variance": (1.0, 0.1),
        "mass_eps": (1e-5, 0.1),
        "pose_norm": (True, False),
        "learned_prior": (False, True),
    },
    normalised=True,
    activations="weighing",
    agreeing=True,
)
