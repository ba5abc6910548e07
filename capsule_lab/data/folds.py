"""Folds for a cross-validation, with scikit-learn's result, so that a fold neither depends on its version nor needs it.

``np.random.RandomState`` draws the same numbers in every version of NumPy (NEP 19).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from capsule_lab.data.stratified import Indices

Groups = npt.NDArray[Any]
"""Names or numbers of groups, ``(n,)``: images of a group are never on both sides of a split."""


def fold_of_each(
    labels: npt.NDArray[np.int64], groups: Groups | None, folds: int, seed: int
) -> Indices:
    """Divide all images into ``folds`` folds in proportion to the classes; return the fold of each image, from 0.

    Args:
        labels: class of each image.
        groups: group of each image; ``None`` if each image is a group of its own.
        folds: at most the number of groups of every class.
        seed: 0 to 2**32 - 1.
    """
    if groups is None:
        return _of_images(labels, folds, seed)
    return _of_groups(labels, groups, folds, seed)


def _of_images(labels: npt.NDArray[np.int64], folds: int, seed: int) -> Indices:
    """Divide every class evenly, as ``StratifiedKFold(folds, shuffle=True, random_state=seed)`` of scikit-learn 1.9."""
    _, first = np.unique(labels, return_index=True)
    classes = labels[np.sort(first)]  # in the order of their first images
    generator = np.random.RandomState(seed)
    fold_of = np.empty(len(labels), dtype=np.int64)
    start = 0
    for label in classes:
        is_of_class = labels == label
        count = int(is_of_class.sum())
        # each class continues where the one before it ended, so that sizes of folds differ by one
        dealt = np.arange(start, start + count) % folds
        of_class = np.sort(dealt)
        generator.shuffle(of_class)
        fold_of[is_of_class] = of_class
        start += count
    return fold_of


def _of_groups(labels: npt.NDArray[np.int64], groups: Groups, folds: int, seed: int) -> Indices:
    """Give whole groups to folds, as scikit-learn 1.9's ``StratifiedGroupKFold`` with ``shuffle=True`` does.

    The group whose classes are the least even goes first, each to the fold with which all folds have the most similar
    shares of every class.
    """
    _, class_of, class_sizes = np.unique(labels, return_inverse=True, return_counts=True)
    names, group_of = np.unique(groups, return_inverse=True)
    counts = np.zeros((len(names), len(class_sizes)))  # [group class]
    np.add.at(counts, (group_of, class_of), 1)
    order = np.arange(len(names))
    np.random.RandomState(seed).shuffle(order)
    unevenness = np.std(counts[order], axis=1)
    order = order[np.argsort(-unevenness, kind="stable")]
    in_folds = np.zeros((folds, len(class_sizes)))  # images, [fold class]
    fold_of = np.empty(len(names), dtype=np.int64)
    for group in order:
        fold = _best_fold(in_folds, counts[group], class_sizes)
        in_folds[fold] += counts[group]
        fold_of[group] = fold
    return fold_of[group_of]


def _best_fold(
    in_folds: npt.NDArray[np.float64],
    of_group: npt.NDArray[np.float64],
    class_sizes: npt.NDArray[np.int64],
) -> int:
    """Return the fold that a group makes the most similar to the others; among equal ones, that with fewest images."""
    best = 0
    smallest = np.inf
    fewest = np.inf
    for fold, images in enumerate(in_folds.sum(axis=1)):
        with_group = in_folds.copy()
        with_group[fold] += of_group
        difference = np.std(with_group / class_sizes, axis=0).mean()
        is_equal = np.isclose(difference, smallest)
        if difference < smallest or (is_equal and images < fewest):
            best, smallest, fewest = fold, difference, images
    return best
