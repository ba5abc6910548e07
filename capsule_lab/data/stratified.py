"""A stratified split with scikit-learn's result, so that a split neither depends on its version nor needs it.

``np.random.RandomState`` draws the same numbers in every version of NumPy (NEP 19).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


def stratified_split(
    labels: npt.NDArray[np.int64], train_size: int, seed: int
) -> tuple[Indices, Indices]:
    """Divide all images in proportion to the classes; return the indices of both parts, ascending.

    The result is that of ``train_test_split(train_size=…, stratify=labels, random_state=seed)`` in scikit-learn 1.9.

    Args:
        labels: class of each image; every class has at least two images.
        train_size: number of images in the first part; each part has at least as many images as there are classes.
        seed: 0 to 2**32 - 1.
    """
    _, class_of, counts = np.unique(labels, return_inverse=True, return_counts=True)
    generator = np.random.RandomState(seed)
    train_counts = _in_proportion(counts, train_size, generator)
    test_counts = _in_proportion(counts - train_counts, len(labels) - train_size, generator)
    train: list[Indices] = []
    test: list[Indices] = []
    for index, count in enumerate(counts):
        members = np.flatnonzero(class_of == index)[generator.permutation(count)]
        end = train_counts[index]
        train.append(members[:end])
        test.append(members[end : end + test_counts[index]])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


def _in_proportion(
    counts: npt.NDArray[np.int64], size: int, generator: np.random.RandomState
) -> npt.NDArray[np.int64]:
    """Return how many of ``size`` images each class gets: the largest remainders are rounded up, ties drawn.

    It is ``_approximate_mode`` of scikit-learn 1.9, ``utils/extmath.py``.
    """
    exact = counts / counts.sum() * size
    taken = np.floor(exact)
    remainders = exact - taken
    missing = int(size - taken.sum())
    for remainder in np.unique(remainders)[::-1]:
        if missing == 0:
            break
        (tied,) = np.nonzero(remainders == remainder)
        drawn = generator.choice(tied, min(len(tied), missing), replace=False)
        taken[drawn] += 1
        missing -= len(drawn)
    return taken.astype(np.int64)
