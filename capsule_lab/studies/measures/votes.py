"""Do votes agree? Distances of votes from the poses they make, and what shifts and shuffling do to them.

Hinton 2018, figure 2: distances ``d_ij = |V_ij - mu_j|`` over all components, coordinates included, weighted by the
couplings that made ``mu_j``. Functions of votes ``(image, child, parent, dim)``, such as ``LayerTrace.votes`` gives.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from capsule_lab.studies.measures.reconstruction_detection import area_under_roc
from capsule_lab.types import RoutingTrace


def vote_distances(
    votes: Float[Tensor, "image child parent dim"], poses: Float[Tensor, "image parent dim"]
) -> Float[Tensor, "image child parent"]:
    """Euclidean distance of each vote from the pose of its parent, not in units of its standard deviation."""
    return (votes - poses.unsqueeze(1)).norm(dim=3)


def vote_cosines(
    votes: Float[Tensor, "image child parent dim"], poses: Float[Tensor, "image parent dim"]
) -> Float[Tensor, "image child parent"]:
    """Cosine between each vote and the pose of its parent: what agrees in dynamic routing."""
    return torch.cosine_similarity(votes, poses.unsqueeze(1), dim=3)


def weighted_means(
    votes: Float[Tensor, "image child parent dim"],
    couplings: Float[Tensor, "image child parent"],
    activations: Float[Tensor, "image child"],
) -> Float[Tensor, "image parent dim"]:
    """Means of the votes, weighted by ``a_i R_ij``: where votes agree, whatever a routing then makes of it."""
    weights = couplings * activations.unsqueeze(2)
    return torch.einsum("bij,bijd->bjd", weights, votes) / weights.sum(1).unsqueeze(2)


def mean_distances(
    distances: Float[Tensor, "image child parent"],
    couplings: Float[Tensor, "image child parent"],
    activations: Float[Tensor, "image child"],
) -> Float[Tensor, "image parent"]:
    """Distance of the votes for each parent, weighted by ``a_i R_ij``; NaN for a parent without mass."""
    return weighted_means(distances.unsqueeze(3), couplings, activations).squeeze(2)


class Tightness(NamedTuple):
    """The cluster of votes for the label beside those of the other classes."""

    ratio: Float[Tensor, " image"]
    rank: Int64[Tensor, " image"]


def tightness(means: Float[Tensor, "image parent"], labels: Int64[Tensor, " image"]) -> Tightness:
    """Of ``mean_distances``: the smallest of a wrong class over that of the label; and the label's rank, from 1.

    Where the ratio is above 1, the label's cluster is the tightest.
    """
    own = means.gather(1, labels.unsqueeze(1))
    others = means.scatter(1, labels.unsqueeze(1), torch.inf)
    return Tightness((others.amin(1) / own.squeeze(1)), (others < own).sum(1) + 1)


def distance_histogram(
    distances: Float[Tensor, " vote"], weights: Float[Tensor, " vote"], edges: Float[Tensor, " edge"]
) -> Float[Tensor, " bin"]:
    """Weight of the votes in each bin; the last edge belongs to the last bin, what is beyond it is not counted."""
    bins = torch.bucketize(distances.contiguous(), edges, right=True) - 1
    bins = torch.where(distances == edges[-1], len(edges) - 2, bins)
    inside = (bins >= 0) & (bins < len(edges) - 1)
    return distances.new_zeros(len(edges) - 1).scatter_add(0, bins[inside], weights[inside])


def shuffled_auc(
    votes: Float[Tensor, "image child parent dim"],
    trace: RoutingTrace,
    activations: Float[Tensor, "image child"],
    labels: Int64[Tensor, " image"],
    seed: int = 0,
) -> float:
    """How well the label's mean distance tells votes of one image from votes of many: 0.5 not at all, 1 always.

    In the other set every child's vote, coupling and activation come from an image of the same class, drawn for each
    child; poses are weighted means again. The area under the curve of shuffled against true images, by distance.
    Images that are the only one of their class, which nothing can be drawn for, are left out; NaN if all are.
    """
    generator = torch.Generator().manual_seed(seed)
    images, children = activations.shape
    device = votes.device
    donor = torch.zeros(images, children, dtype=torch.int64)
    on_cpu = labels.cpu()
    for label in on_cpu.unique():
        rows = (on_cpu == label).nonzero().squeeze(1)
        drawn = torch.rand(len(rows), children, generator=generator).argsort(0)  # a permutation for each child
        donor[rows] = rows[drawn]
    several = (labels.unsqueeze(1) == labels).sum(1) > 1
    child = torch.arange(children, device=device).expand(images, -1)
    means = []
    for rows in (torch.arange(images, device=device).unsqueeze(1).expand(-1, children), donor.to(device)):
        # of the label of the image whose place it is
        parent = labels.unsqueeze(1).expand(-1, children)
        mine = votes[rows, child, parent]  # [image child dim]
        weights = (trace.couplings[rows, child, parent] * activations[rows, child]).unsqueeze(2)
        pose = (weights * mine).sum(1, keepdim=True) / weights.sum(1, keepdim=True)
        distances = (mine - pose).norm(dim=2, keepdim=True)
        means.append(((weights * distances).sum(1) / weights.sum(1)).squeeze(1))
    true, shuffled = (each[several & each.isfinite()] for each in means)
    return area_under_roc(true, shuffled) if len(true) and len(shuffled) else float("nan")


def common_displacement(
    before: Float[Tensor, "child dim"], after: Float[Tensor, "child dim"], weights: Float[Tensor, " child"]
) -> float:
    """Share of the movement of votes that is one movement of all: 1 if the cluster moves as one, 0 if not at all.

    ``1 - sum w |delta_i - delta_mean|^2 / sum w |delta_i|^2`` with the weighted mean of ``delta_i = after - before``.
    """
    delta = after - before
    mean = (weights.unsqueeze(1) * delta).sum(0) / weights.sum()
    moved = (weights * delta.square().sum(1)).sum()
    return float(1 - (weights * (delta - mean).square().sum(1)).sum() / moved)
