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
# Renzulli 2022, official code (src/inference.py) where there are ten classes: couplings of 0, 0.1, ..., 1
TREE_LEVELS = 11

_ROUNDING = 16  # ours: couplings that differ by fewer units in the last place are equal

Couplings = Float[Tensor, "image child parent"]
Labels = Int64[Tensor, " image"]
Seen = Bool[Tensor, "child parent"]
Number = Float[Tensor, ""]


def strongest_parent(couplings: Float[Tensor, "*child parent"]) -> Int64[Tensor, "*child"]:
    """Return the parent with each child's largest coupling; -1 if several parents have it, as with equal couplings.

    >>> strongest_parent(torch.tensor([[0.2, 0.8], [0.5, 0.5]]))
    tensor([ 1, -1])
    """
    largest, parent = couplings.max(-1, keepdim=True)
    rounding = _ROUNDING * torch.finfo(couplings.dtype).eps
    count = (couplings >= largest * (1 - rounding)).sum(-1)
    return torch.where(count == 1, parent.squeeze(-1), -1)


def parent_changes(before: Couplings, after: Couplings) -> Number:
    """Return the share of children with another strongest parent after than before, of those with one at both times.

    It is NaN if there are none, as after an iteration with equal couplings.
    """
    first, second = strongest_parent(before), strongest_parent(after)
    have_both = (first >= 0) & (second >= 0)
    changes = (first != second)[have_both]
    return changes.to(before.dtype).mean()


def child_entropy(couplings: Couplings, seen: Seen | None = None) -> Float[Tensor, "image child"]:
    """Return the entropy of each child's couplings over that of equal couplings: 1 equal, 0 a single parent.

    Couplings of a child that do not sum to one, as in leaky routing, are normalised; couplings below 0, possible with a
    prior, count as 0. The result is 0 for a child seen by one parent, NaN for a child seen by none.

    >>> child_entropy(torch.tensor([[[0.5, 0.5], [1.0, 0.0]]]))
    tensor([[1., 0.]])
    """
    positive = couplings.clamp_min(0)
    smallest = torch.finfo(couplings.dtype).tiny
    total = positive.sum(2, keepdim=True).clamp_min(smallest)
    shares = positive / total
    entropy = torch.special.entr(shares).sum(2)
    if seen is None:
        parents = couplings.shape[2]
        return entropy / math.log(max(parents, 2))
    count = seen.sum(1)
    largest = count.clamp_min(2).to(entropy.dtype).log()
    return torch.where(count > 0, entropy / largest, torch.nan)


def weighted_entropy(
    couplings: Couplings,
    activations: Float[Tensor, "image child"],
    seen: Seen | None = None,
) -> Number:
    """Return the mean of ``child_entropy`` over children, weighted by their activations."""
    entropy = child_entropy(couplings, seen)
    weights = activations * ~entropy.isnan()
    weighted = weights * entropy.nan_to_num()
    return weighted.sum() / weights.sum()


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
    rounding = _ROUNDING * torch.finfo(couplings.dtype).eps
    couplings = couplings.double()
    every = couplings.new_ones(couplings.shape[1:]) if seen is None else seen.double()
    count = every.sum(1).clamp_min(1)  # [child]

    def over_parents(values: Tensor) -> Tensor:
        of_parents = values * every
        return of_parents.sum(1) / count  # [child]

    variances = couplings.var(0, correction=0)  # [child parent]
    over_images = over_parents(variances).sum()
    mean = over_parents(couplings.mean(0))
    deviations = couplings - mean.view(1, -1, 1)
    squares = deviations.square().mean(0)  # [child parent]
    spread = over_parents(squares).sum()
    size = over_parents(couplings.square().mean(0)).sum()
    varies = spread > rounding**2 * size
    return torch.where(varies, 1 - over_images / spread, torch.nan)


def class_information(couplings: Couplings, labels: Labels, classes: int) -> Number:
    """Return the mutual information in bits of the label and each child's strongest parent, mean over children.

    It is computed from counts of ``argmax_j R_ij`` and labels; with few images it is too high, by about
    ``(J - 1) (classes - 1) / (2 images ln 2)`` bits: compare with ``class_information`` of shuffled labels.
    """
    _, children, parents = couplings.shape
    chosen = couplings.argmax(2)  # [image child]
    pairs = chosen * classes + labels.unsqueeze(1)  # [image child]: number of parent and label
    index = pairs.t()  # [child image]
    once = torch.ones_like(index, dtype=torch.float64)
    counts = once.new_zeros(children, parents * classes)
    counts = counts.scatter_add(1, index, once)
    shares = counts / len(labels)
    joint = shares.unflatten(1, (parents, classes))
    of_labels = _entropy(joint.sum(1), 1)  # [child]
    of_parents = _entropy(joint.sum(2), 1)
    of_both = _entropy(joint, (1, 2))
    information = of_labels + of_parents - of_both
    bits = information / math.log(2)
    return bits.mean().to(couplings.dtype)


def _entropy(shares: Tensor, dims: int | tuple[int, ...]) -> Tensor:
    """Return the entropy in nats of shares that sum to one over ``dims``."""
    return torch.special.entr(shares).sum(dims)


def starved_share(mass: Float[Tensor, "image parent"]) -> Number:
    """Return the share of parents with less than 1 % of the parents' mean mass, ``sum_i a_i R_ij``, in every image."""
    limit = STARVED * mass.mean(1, keepdim=True)
    starved = (mass < limit).all(0)  # [parent]
    return starved.to(mass.dtype).mean()


def count_trees(couplings: Couplings, labels: Labels) -> dict[str, float]:
    """Count the different trees (matrices of quantised couplings) of the images of a class (Renzulli 2022).

    Couplings are rounded to levels of their child's largest coupling, so that many parents do not reduce the count. The
    results are means over classes: the number of trees, the entropy of their distribution in bits, and the number of
    images, the largest possible number of trees.
    """
    smallest = torch.finfo(couplings.dtype).tiny
    largest = couplings.amax(2, keepdim=True).clamp_min(smallest)
    relative = (couplings / largest).clamp_min(0)
    levels = relative * (TREE_LEVELS - 1)
    trees = levels.round().to(torch.uint8)
    trees = trees.flatten(1)  # [image child·parent]
    numbers, entropies, images = [], [], []
    for label in labels.unique():
        of_class = trees[labels == label]
        _, counts = of_class.unique(dim=0, return_counts=True)
        shares = counts.double() / counts.sum()
        entropy = float(_entropy(shares, 0))
        numbers.append(len(counts))
        entropies.append(entropy / math.log(2))
        images.append(len(of_class))
    classes = len(numbers)
    return {
        "trees_per_class": sum(numbers) / classes,
        "entropy_of_trees": sum(entropies) / classes,
        "images_per_class": sum(images) / classes,
    }


def logit_change(
    votes: Float[Tensor, "image child parent dim"], poses: Float[Tensor, "image parent dim"]
) -> Number:
    """Return the mean change of logits by an iteration with these poses, ``|u_hat_ij . v_j|`` (Sabour, appendix A)."""
    change = torch.einsum("bijd,bjd->bij", votes, poses)
    return change.abs().mean()


def distance_from_orthogonal(weight: Float[Tensor, "child inner parent columns"]) -> float:
    """Return the mean distance of transformations to the nearest scaled orthogonal matrix, relative to their norm.

    The nearest orthogonal matrix to ``W = U S V^T`` is ``U V^T``, here times the mean singular value, because a common
    scale of all components does not change the shape. Training does not constrain transformations to be rotations.
    """
    matrices = weight.transpose(1, 2).flatten(0, 1)
    values = torch.linalg.svdvals(matrices)  # [child·parent value]
    deviations = values - values.mean(1, keepdim=True)
    distances = deviations.norm(dim=1) / values.norm(dim=1)
    return float(distances.mean())
