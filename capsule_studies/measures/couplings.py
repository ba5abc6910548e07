"""Measures of couplings: how unequal they are, how much they depend on the image, and whether they form trees.

Functions take couplings as returned by ``LayerTrace.couplings``; ``seen`` contains which parents see a child in a
convolutional layer, ``None`` means all. Untrained networks have most of these properties as well: compare results with
those of an untrained network.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

STARVED = 0.01  # ours: share of the mean mass of a parent
DEAD = 0.01
"""Ours: a dead capsule's activations are all below it, as in ``metrics.DeadCapsuleRate``."""
TREE_LEVELS = 11  # Renzulli 2022, from memory: levels of a quantised coupling

Couplings = Float[Tensor, "image child parent"]
Labels = Int64[Tensor, " image"]
Seen = Bool[Tensor, "child parent"]
Number = Float[Tensor, ""]


def child_entropy(couplings: Couplings, seen: Seen | None = None) -> Float[Tensor, "image child"]:
    """Return the entropy of each child's couplings over that of equal couplings: 1 equal, 0 a single parent.

    Couplings of a child that do not sum to one, as in leaky routing, are normalised; couplings below 0, possible with a
    prior, count as 0. The result is 0 for a child seen by one parent, NaN for a child seen by none.

    >>> child_entropy(torch.tensor([[[0.5, 0.5], [1.0, 0.0]]]))
    tensor([[1., 0.]])
    """
    positive = couplings.clamp_min(0)
    shares = positive / positive.sum(2, keepdim=True).clamp_min(torch.finfo(couplings.dtype).tiny)
    entropy = torch.special.entr(shares).sum(2)
    if seen is None:
        return entropy / math.log(max(couplings.shape[2], 2))
    count = seen.sum(1)
    largest = count.clamp_min(2).to(entropy.dtype).log()
    return torch.where(count > 0, entropy / largest, torch.nan)


def weighted_entropy(
    couplings: Couplings, activations: Float[Tensor, "image child"], seen: Seen | None = None
) -> Number:
    """Return the mean of ``child_entropy`` over children, weighted by their activations."""
    entropy = child_entropy(couplings, seen)
    weights = activations * ~entropy.isnan()
    return (weights * entropy.nan_to_num()).sum() / weights.sum()


def t_score(couplings: Couplings, seen: Seen | None = None) -> Number:
    """Return the T-score (Peer 2018): 1 if couplings form a tree, each child with one parent; 0 if they are equal."""
    return 1 - child_entropy(couplings, seen).nanmean()


def d_score(activations: Float[Tensor, "image capsule"]) -> Number:
    """Return the largest standard deviation over images of a capsule's activation (Peer 2018).

    It is 0 if no activation depends on the image. Use it for hidden layers: the loss separates those of classes. Peer's
    code computes it per batch, so that it depends on the batch size; here it is over all images, without correction.
    """
    return activations.std(0, correction=0).max()


def static_share(couplings: Couplings, seen: Seen | None = None) -> Number:
    """Return the share of the variation of a child's couplings that is common to all images; 1: independent of images.

    It is 1 minus the variance over images (mean over pairs), divided by the variance over images and parents (mean over
    children). It is NaN for equal couplings, which do not vary.
    """
    every = couplings.new_ones(couplings.shape[1:]) if seen is None else seen.to(couplings.dtype)
    count = every.sum(1).clamp_min(1)  # [child]

    def over_parents(values: Tensor) -> Tensor:
        return (values * every).sum(1) / count  # [child]

    over_images = over_parents(couplings.var(0, correction=0)).sum()
    mean = over_parents(couplings.mean(0))
    deviations = couplings - mean.view(1, -1, 1)
    spread = over_parents(deviations.square().mean(0)).sum()
    varies = spread > torch.finfo(couplings.dtype).eps
    return torch.where(varies, 1 - over_images / spread, torch.nan)


def class_information(couplings: Couplings, labels: Labels, classes: int) -> Number:
    """Return the mutual information in bits of the label and each child's strongest parent, mean over children.

    It is computed from counts of ``argmax_j R_ij`` and labels; with few images it is too high, by about
    ``(J - 1) (classes - 1) / (2 images ln 2)`` bits: compare with ``class_information`` of shuffled labels.
    """
    parents = couplings.shape[2]
    chosen = couplings.argmax(2)  # [image child]
    counts = couplings.new_zeros(chosen.shape[1], parents * classes, dtype=torch.float64)
    index = (chosen * classes + labels.unsqueeze(1)).t()  # [child image]
    counts = counts.scatter_add(1, index, torch.ones_like(index, dtype=torch.float64))
    joint = (counts / len(labels)).unflatten(1, (parents, classes))
    of_labels = torch.special.entr(joint.sum(1)).sum(1)  # [child]
    of_parents = torch.special.entr(joint.sum(2)).sum(1)
    of_both = torch.special.entr(joint).sum((1, 2))
    information = of_labels + of_parents - of_both
    return (information / math.log(2)).mean().to(couplings.dtype)


def starved_share(mass: Float[Tensor, "image parent"]) -> Number:
    """Return the share of parents with less than 1 % of the parents' mean mass, ``sum_i a_i R_ij``, in every image."""
    return (mass < STARVED * mass.mean(1, keepdim=True)).all(0).to(mass.dtype).mean()


def count_trees(couplings: Couplings, labels: Labels) -> dict[str, float]:
    """Count the different trees (matrices of quantised couplings) of the images of a class (Renzulli 2022).

    Couplings are rounded to levels of their child's largest coupling, so that many parents do not reduce the count. The
    results are means over classes: the number of trees, the entropy of their distribution in bits, and the number of
    images, the largest possible number of trees.
    """
    largest = couplings.amax(2, keepdim=True).clamp_min(torch.finfo(couplings.dtype).tiny)
    levels = (couplings / largest).clamp_min(0) * (TREE_LEVELS - 1)
    trees = levels.round().to(torch.uint8).flatten(1)  # [image child·parent]
    numbers, entropies, images = [], [], []
    for label in labels.unique():
        _, counts = trees[labels == label].unique(dim=0, return_counts=True)
        shares = counts.double() / counts.sum()
        numbers.append(len(counts))
        entropies.append(float(torch.special.entr(shares).sum()) / math.log(2))
        images.append(int(counts.sum()))
    return {
        "trees_per_class": sum(numbers) / len(numbers),
        "entropy_of_trees": sum(entropies) / len(entropies),
        "images_per_class": sum(images) / len(images),
    }


def logit_change(
    votes: Float[Tensor, "image child parent dim"], poses: Float[Tensor, "image parent dim"]
) -> Number:
    """Return the mean change of logits by an iteration with these poses, ``|u_hat_ij . v_j|`` (Sabour, appendix A)."""
    return torch.einsum("bijd,bjd->bij", votes, poses).abs().mean()


def distance_from_orthogonal(weight: Float[Tensor, "child inner parent columns"]) -> float:
    """Return the mean distance of transformations to the nearest scaled orthogonal matrix, relative to their norm.

    The nearest orthogonal matrix to ``W = U S V^T`` is ``U V^T``, here times the mean singular value, because a common
    scale of all components does not change the shape. Training does not constrain transformations to be rotations.
    """
    matrices = weight.transpose(1, 2).flatten(0, 1)
    values = torch.linalg.svdvals(matrices)  # [child·parent value]
    deviations = values - values.mean(1, keepdim=True)
    return float((deviations.norm(dim=1) / values.norm(dim=1)).mean())
