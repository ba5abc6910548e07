"""Slow float64 transcription of EM routing with normalised evidence, up to its normalisation."""

import math
from typing import Any

import torch
from torch import Tensor

from tests.reference.contract import Reference, by_statistics
from tests.reference.loops import softmax_list

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
    log_prior = [[prior[j][i % len(prior[j])] if prior else 0.0 for j in parents] for i in children]
    couplings = [softmax_list(log_prior[i]) for i in children]
    for _ in range(iterations):
        masses, poses, variances = [], [], []
        for j in parents:
            mass = sum(couplings[i][j] * activations[i] for i in children) + mass_eps
            share = [couplings[i][j] * activations[i] / mass for i in children]
            pose = [sum(share[i] * votes[i][j][d] for i in children) for d in components]
            variances.append(
                [
                    min_variance + sum(share[i] * (votes[i][j][d] - pose[d]) ** 2 for i in children)
                    for d in components
                ]
            )
            masses.append(mass)
            poses.append(pose)
        couplings = []
        for i in children:
            explained = []
            for j in parents:
                log_density = sum(
                    -0.5 * (LN_2PI + math.log(v) + (votes[i][j][d] - poses[j][d]) ** 2 / v)
                    for d, v in enumerate(variances[j])
                )
                explained.append(
                    (math.log(masses[j]) + log_density) / temperature + log_prior[i][j]
                )
            couplings.append(softmax_list(explained))
    return poses, [-0.5 * sum(math.log(v) for v in variances[j]) for j in parents]


def parents_by_loops(votes: Tensor, activations: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    """With running statistics, as in evaluation mode."""
    prior = None if module.prior is None else module.prior.tolist()
    images = [
        em_evidence_loops(*image, prior=prior, **module.options)
        for image in zip(votes.tolist(), activations.tolist(), strict=True)
    ]
    poses, evidence = (
        torch.tensor(each, dtype=torch.float64) for each in zip(*images, strict=True)
    )
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
