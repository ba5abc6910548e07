"""Slow float64 transcription of EM routing with normalised evidence, up to its normalisation."""

import math
from typing import Any

from torch import Tensor

from tests.reference.contract import Reference, by_statistics
from tests.reference.loops import double, softmax_list, zeros

LN_2PI = math.log(2 * math.pi)


def em_evidence_loops(
    votes: list[list[list[float]]],
    activations: list[float],
    *,
    iterations: int,
    temperature: float,
    min_variance: float,
    mass_eps: float,
    prior: list[list[float]] | None = None,
) -> tuple[list[list[float]], list[float]]:
    """One image, ``votes[child][parent][component]``, to poses and evidence ``-1/2 sum ln sigma^2``."""
    children, parents = range(len(votes)), range(len(votes[0]))
    components = range(len(votes[0][0]))
    log_prior = zeros(len(children), len(parents))
    if prior:
        for i in children:
            for j in parents:
                log_prior[i][j] = prior[j][i % len(prior[j])]
    couplings = [softmax_list(log_prior[i]) for i in children]
    for _ in range(iterations):
        masses = []
        poses = []
        variances = []
        for j in parents:
            mass = sum(couplings[i][j] * activations[i] for i in children) + mass_eps
            share = [couplings[i][j] * activations[i] / mass for i in children]
            pose = [0.0] * len(components)
            variance = [min_variance] * len(components)
            for d in components:
                pose[d] = sum(share[i] * votes[i][j][d] for i in children)
                variance[d] += sum(share[i] * (votes[i][j][d] - pose[d]) ** 2 for i in children)
            masses.append(mass)
            poses.append(pose)
            variances.append(variance)
        couplings = []
        for i in children:
            explained = []
            for j in parents:
                log_density = 0.0
                for d, v in enumerate(variances[j]):
                    squared = (votes[i][j][d] - poses[j][d]) ** 2
                    log_density -= 0.5 * (LN_2PI + math.log(v) + squared / v)
                log_joint = math.log(masses[j]) + log_density
                explained.append(log_joint / temperature + log_prior[i][j])
            couplings.append(softmax_list(explained))
    return poses, [-0.5 * sum(math.log(v) for v in variances[j]) for j in parents]


def parents_by_loops(votes: Tensor, activations: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    """With running statistics, as in evaluation mode."""
    prior = None if module.prior is None else module.prior.tolist()
    all_poses = []
    all_evidence = []
    for vote, active in zip(votes.tolist(), activations.tolist(), strict=True):
        of_image = em_evidence_loops(vote, active, prior=prior, **module.options)
        all_poses.append(of_image[0])
        all_evidence.append(of_image[1])
    poses = double(all_poses)
    evidence = double(all_evidence)
    if module.pose_norm is not None:
        poses = by_statistics(module.pose_norm, poses.flatten(1)).view_as(poses)
    return poses, by_statistics(module.evidence_norm, evidence).sigmoid()


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
