"""Measures of couplings: how unequal they are, how much they depend on the image, and whether they form trees.

Functions of couplings such as ``LayerTrace.couplings`` gives; ``seen`` says which parents see a child, in a
convolutional layer, ``None`` for all. Most of what they measure an untrained network has as well: without its numbers
beside them, none of these is a finding.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

STARVED = 0.01  # ours: of the mean mass of a parent
DEAD = 0.01  # ours: activation that a capsule has for no image, as of ``metrics.DeadCapsuleRate``
TREE_LEVELS = 11  # Renzulli 2022, from memory: of a quantised coupling

Couplings = Float[Tensor, "image child parent"]
Labels = Int64[Tensor, " image"]
Seen = Bool[Tensor, "child parent"]
Number = Float[Tensor, ""]


def child_entropy(couplings: Couplings, seen: Seen | None = None) -> Float[Tensor, "image child"]:
    """How evenly each child is shared: entropy of its couplings over that of equal ones; 1 equal, 0 decided.

    Couplings of a child that do not sum to one, as of a leaky routing, are renormalised; below 0, as a prior may make
    them, they count as 0. Of a child that one parent sees: 0; of one that none does: NaN.

    >>> child_entropy(torch.tensor([[[0.5, 0.5], [1.0, 0.0]]]))
    tensor([[1., 0.]])
    """
    positive = couplings.clamp_min(0)
    shares = positive / positive.sum(2, keepdim=True).clamp_min(torch.finfo(couplings.dtype).tiny)
    entropy = torch.special.entr(shares).sum(2)
    if seen is None:
        return entropy / math.log(max(couplings.shape[2], 2))
    count = seen.sum(1)
    return torch.where(count > 0, entropy / count.clamp_min(2).to(entropy.dtype).log(), torch.nan)


def weighted_entropy(
    couplings: Couplings, activations: Float[Tensor, "image child"], seen: Seen | None = None
) -> Number:
    """Mean of ``child_entropy`` over children as far as they are there: absent ones have nothing to share."""
    entropy = child_entropy(couplings, seen)
    known = ~entropy.isnan()
    return (activations * known * entropy.nan_to_num()).sum() / (activations * known).sum()


def t_score(couplings: Couplings, seen: Seen | None = None) -> Number:
    """1 if couplings are a tree, each child with one parent; 0 if they are equal (Peer 2018)."""
    return 1 - child_entropy(couplings, seen).nanmean()


def d_score(activations: Float[Tensor, "image capsule"]) -> Number:
    """The largest standard deviation over images that the activation of a capsule has (Peer 2018).

    0 for parents that are alike for all images. Of hidden layers: the loss makes the classes' differ. Peer's code
    takes it per batch, so that it depends on their size; here over all images given, divided by their number.
    """
    return activations.std(0, correction=0).max()


def static_share(couplings: Couplings, seen: Seen | None = None) -> Number:
    """How much of the variation of a child's couplings is the same for all images; 1: routing does not look at them.

    1 less the variance over images, mean over pairs, over the variance over images and parents, mean over children.
    NaN for equal couplings, which do not vary.
    """
    every = couplings.new_ones(couplings.shape[1:]) if seen is None else seen.to(couplings.dtype)
    count = every.sum(1).clamp_min(1)  # [child]
    over_images = ((couplings.var(0, correction=0) * every).sum(1) / count).sum()
    mean = (couplings.mean(0) * every).sum(1) / count
    deviations = (couplings - mean.view(1, -1, 1)).square().mean(0) * every  # [child parent]
    spread = (deviations.sum(1) / count).sum()
    return torch.where(spread > torch.finfo(couplings.dtype).eps, 1 - over_images / spread, torch.nan)


def class_information(couplings: Couplings, labels: Labels, classes: int) -> Number:
    """Mutual information, in bits, of the parent with most of a child and the label, mean over children.

    Of the counts of ``argmax_j R_ij`` and the label; from few images it is too high, by about
    ``(J - 1) (classes - 1) / (2 images ln 2)`` bits: compare with ``class_information`` of shuffled labels.
    """
    parents = couplings.shape[2]
    chosen = couplings.argmax(2)  # [image child]
    counts = couplings.new_zeros(chosen.shape[1], parents * classes, dtype=torch.float64)
    index = (chosen * classes + labels.unsqueeze(1)).t()  # [child image]
    joint = counts.scatter_add(1, index, torch.ones_like(index, dtype=torch.float64)) / len(labels)
    joint = joint.unflatten(1, (parents, classes))
    entropy = torch.special.entr(joint).sum((1, 2))
    information = sum(torch.special.entr(joint.sum(axis)).sum(1) for axis in (1, 2)) - entropy  # [child]
    return (information / math.log(2)).mean().to(couplings.dtype)


def starved_share(mass: Float[Tensor, "image parent"]) -> Number:
    """Share of parents that get less than 1 % of a parent's mean mass, ``sum_i a_i R_ij``, from every image."""
    return (mass < STARVED * mass.mean(1, keepdim=True)).all(0).to(mass.dtype).mean()


def count_trees(couplings: Couplings, labels: Labels) -> dict[str, float]:
    """How many different trees the images of a class have, matrices of quantised couplings (Renzulli 2022).

    Couplings are rounded to levels of the largest of their child, so that many parents are no fewer trees. Means over
    classes: the number of trees, the entropy of their distribution in bits, and the images, which there can be as many
    trees of.
    """
    largest = couplings.amax(2, keepdim=True).clamp_min(torch.finfo(couplings.dtype).tiny)
    rounded = ((couplings / largest).clamp_min(0) * (TREE_LEVELS - 1)).round().to(torch.uint8).flatten(1)
    found = []
    for label in labels.unique():
        counts = rounded[labels == label].unique(dim=0, return_counts=True)[1].double()
        entropy = torch.special.entr(counts / counts.sum()).sum() / math.log(2)
        found.append((len(counts), float(entropy), int(counts.sum())))
    means = (sum(each) / len(each) for each in zip(*found, strict=True))
    return dict(zip(("trees_per_class", "entropy_of_trees", "images_per_class"), means, strict=True))


def logit_change(votes: Float[Tensor, "image child parent dim"], poses: Float[Tensor, "image parent dim"]) -> Number:
    """How much logits change after an iteration with these poses: mean of ``|u_hat_ij . v_j|`` (Sabour, appendix A)."""
    return torch.einsum("bijd,bjd->bij", votes, poses).abs().mean()


def distance_from_orthogonal(weight: Float[Tensor, "child inner parent columns"]) -> float:
    """How far transformations are from rotations: distance to the nearest one of any scale over the own norm, mean.

    The nearest orthogonal matrix to ``W = U S V^T`` is ``U V^T``, here times the mean singular value, as a scale common
    to all components is no matter of shape. Nothing in training makes them rotations.
    """
    values = torch.linalg.svdvals(weight.transpose(1, 2).flatten(0, 1))  # [child·parent value]
    spread = (values - values.mean(1, keepdim=True)).norm(dim=1) / values.norm(dim=1)
    return float(spread.mean())
