"""Do votes agree? Distances of votes from the poses of their parents, and the effect of shifts and shuffling.

Hinton 2018, figure 2: distances ``d_ij = |V_ij - mu_j|`` over all components, coordinates included, weighted by the
couplings that were used for ``mu_j``. Functions take votes as returned by ``LayerTrace.votes``.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from capsule_lab.types import RoutingTrace
from capsule_studies.measures.couplings import Couplings, Labels
from capsule_studies.measures.features import of_label
from capsule_studies.measures.reconstruction_detection import area_under_roc

Votes = Float[Tensor, "image child parent dim"]
Poses = Float[Tensor, "image parent dim"]
Activations = Float[Tensor, "image child"]


def vote_distances(votes: Votes, poses: Poses) -> Couplings:
    """Return the Euclidean distance of each vote from its parent's pose, not in units of its standard deviation."""
    return (votes - poses.unsqueeze(1)).norm(dim=3)


def weighted_means(votes: Votes, couplings: Couplings, activations: Activations) -> Poses:
    """Return the means of the votes, weighted by ``a_i R_ij``, before any further step of a routing."""
    weights = couplings * activations.unsqueeze(2)
    mass = weights.sum(1)
    sums = torch.einsum("bij,bijd->bjd", weights, votes)
    return sums / mass.unsqueeze(2)


def mean_distances(
    distances: Couplings, couplings: Couplings, activations: Activations
) -> Float[Tensor, "image parent"]:
    """Return the mean distance of each parent's votes, weighted by ``a_i R_ij``; NaN for a parent without mass."""
    of_one_component = distances.unsqueeze(3)
    means = weighted_means(of_one_component, couplings, activations)
    return means.squeeze(2)


def tightness(
    means: Float[Tensor, "image parent"], labels: Labels
) -> tuple[Float[Tensor, " image"], Int64[Tensor, " image"]]:
    """Return the smallest mean distance of a wrong class over that of the label, and the label's rank, from 1.

    If the ratio is above 1, the label's cluster is the tightest.
    """
    of_labels = of_label(means, labels)
    others = means.scatter(1, labels.unsqueeze(1), torch.inf)
    ratio = others.amin(1) / of_labels
    tighter = others < of_labels.unsqueeze(1)
    rank = tighter.sum(1) + 1
    return ratio, rank


def shuffled_auc(
    votes: Votes, trace: RoutingTrace, activations: Activations, labels: Labels
) -> float:
    """Measure how well the label's mean distance separates an image's votes from shuffled votes: 0.5 chance, 1 always.

    In the shuffled set, each child's vote, coupling and activation come from a random image of the same class, drawn
    for each child; poses are again weighted means. The result is the area under the ROC curve, by distance, of shuffled
    against true images. Images that are the only one of their class are left out; NaN if there are no others.
    """
    images, children = activations.shape
    child = torch.arange(children, device=votes.device).expand(images, -1)
    parent = labels.unsqueeze(1).expand(-1, children)  # the label of the image whose place it is

    def distances(donor: Int64[Tensor, "image child"]) -> Float[Tensor, " image"]:
        """Return the label's mean distances when each child's vote comes from its donor, an image."""
        own = votes[donor, child, parent]  # [image child dim]
        couplings = trace.couplings[donor, child, parent]
        weights = couplings * activations[donor, child]
        mass = weights.sum(1)
        sums = (weights.unsqueeze(2) * own).sum(1)
        pose = sums / mass.unsqueeze(1)
        distance = (own - pose.unsqueeze(1)).norm(dim=2)
        weighted = weights * distance
        return weighted.sum(1) / mass

    image = torch.arange(images, device=votes.device)
    itself = image.unsqueeze(1).expand(-1, children)
    other = _shuffled(labels.cpu(), children).to(votes.device)
    true = distances(itself)
    shuffled = distances(other)
    has_same_label = labels.unsqueeze(1) == labels  # [image image]
    has_others = has_same_label.sum(1) > 1
    true = true[has_others & true.isfinite()]
    shuffled = shuffled[has_others & shuffled.isfinite()]
    if not len(true) or not len(shuffled):
        return float("nan")
    return area_under_roc(true, shuffled)


def _shuffled(labels: Labels, children: int) -> Int64[Tensor, "image child"]:
    """Draw for each child a permutation of the images of each class."""
    generator = torch.Generator().manual_seed(0)
    donor = torch.zeros(len(labels), children, dtype=torch.int64)
    for label in labels.unique():
        rows = (labels == label).nonzero().squeeze(1)
        numbers = torch.rand(len(rows), children, generator=generator)
        donor[rows] = rows[numbers.argsort(0)]
    return donor


def common_displacement(
    before: Float[Tensor, "child dim"],
    after: Float[Tensor, "child dim"],
    weights: Float[Tensor, " child"],
) -> float:
    """Return the share of the votes' movement that is common to all: 1 if they move together, 0 if not at all.

    ``1 - sum w |delta_i - delta_mean|^2 / sum w |delta_i|^2`` with the weighted mean of ``delta_i = after - before``.
    """

    def weighted_square(values: Tensor) -> Tensor:
        of_children = values.square().sum(1)
        return (weights * of_children).sum()

    delta = after - before
    mean = (weights.unsqueeze(1) * delta).sum(0) / weights.sum()
    moved = weighted_square(delta)
    apart = weighted_square(delta - mean)
    return float(1 - apart / moved)
