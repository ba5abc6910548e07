"""Validation splits. Validation images come from the training set, never from the official test set."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

import numpy as np
import numpy.typing as npt

from capsule_lab.data.folds import Groups, fold_of_each
from capsule_lab.data.stratified import Indices, stratified_split
from capsule_lab.errors import check_number

Validation = Literal["first", "stratified", "none"]
Viewpoints = Literal["full", "azimuth", "elevation"]

FAMILIAR = {  # Hinton 2018, section 5: a third of all views; numbers as in smallNORB's info files
    "azimuth": (30, 32, 34, 0, 2, 4),  # x 10 degrees
    "elevation": (0, 1, 2),  # 30, 35 and 40 degrees above the table
}


def parse_share(share: float | str, option: str = "data.validation_share") -> Fraction:
    """Parse an option such as ``validation_share``, a number or a fraction such as ``"1/6"``."""
    try:
        return Fraction(share).limit_denominator(10**6)  # ours: floats such as 0.1
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        raise ValueError(
            f"{option} is {share!r}; expected a number or a fraction such as 1/6"
        ) from error


def split_validation(
    labels: npt.NDArray[np.int64],
    validation: Validation,
    share: Fraction,
    seed: int,
    option: str = "data.validation_share",
    classes: Sequence[str] = (),
) -> tuple[Indices, Indices]:
    """Return the indices of the training and of the validation images.

    ``validation="first"`` takes the first images, as the authors of CapsNet do with 10,000 of MNIST's 60,000;
    ``"stratified"`` draws the same ``share`` of every class, by ``seed``; ``"none"`` trains on all images. Raise a
    ``ValueError`` if the share, which comes from ``option``, leaves one side without any image, or without an image of
    every class. The share or option that it recommends is accepted by the next call. Messages name a class as
    ``classes`` do, if there are any.
    """
    number = len(labels)
    everything = np.arange(number, dtype=np.int64)
    size = round(number * share)
    if validation == "none":
        return everything, everything[:0]
    if validation == "first":
        if not 0 < size < number:
            raise ValueError(
                f"{option} is {share}, {size} of {number} images; expected at least one image and fewer than all, "
                "or data.validation=none"
            )
        return everything[size:], everything[:size]
    _check_share(labels, size, share, option, classes)
    return stratified_split(labels, len(labels) - size, seed)


def _check_share(
    labels: npt.NDArray[np.int64], size: int, share: Fraction, option: str, names: Sequence[str]
) -> None:
    """Check that both a draw of ``size`` images and the others can have an image of every class."""
    classes, counts = np.unique(labels, return_counts=True)
    fewest = len(classes)
    most = len(labels) - len(classes)
    if counts.min() > 1:
        if fewest <= size <= most:
            return
        possible = min(max(size, fewest), most)
        instead = f"set {option}={Fraction(possible, len(labels))}"
    else:
        rarest = _named(int(classes[counts.argmin()]), names)
        instead = f"there is a single image of class {rarest}, add others"
    without = ", or set data.validation=none" if option == "data.validation_share" else ""
    raise ValueError(
        f"{option} is {share}, {size} of {len(labels)} images; expected images of every class on both sides: "
        f"{instead}{without}"
    )


def split_fold(
    labels: npt.NDArray[np.int64],
    groups: Groups | None,
    folds: int,
    fold: int,
    seed: int,
    classes: Sequence[str] = (),
) -> tuple[Indices, Indices]:
    """Return the indices of the images of all other folds and of this fold, see ``folds.fold_of_each``.

    Raise a ``ValueError`` if a class, which ``classes`` name, has fewer images, or ``groups`` of them, than there are
    folds.
    """
    fewest, needed = _fewest(labels, groups, folds, classes)
    if fewest < folds:
        instead = f"set data.folds={fewest}" if fewest > 1 else "add others"
        raise ValueError(f"data.folds is {folds}, but {needed}: {instead}")
    return _parts(labels, groups, folds, fold, seed)


def split_groups(
    labels: npt.NDArray[np.int64],
    groups: Groups,
    share: Fraction,
    seed: int,
    option: str,
    classes: Sequence[str] = (),
) -> tuple[Indices, Indices]:
    """Return the indices of the training and of the held-out images, so that no group is on both sides.

    The held-out images are the first of ``round(1 / share)`` folds. Raise a ``ValueError`` if the share, which comes
    from ``option``, is not above 0 and up to 1/2, or a class, which ``classes`` name, has fewer groups.
    """
    if not 0 < share <= Fraction(1, 2):
        raise ValueError(f"{option} is {share} with groups; expected a share above 0, up to 1/2")
    folds = round(1 / share)
    fewest, needed = _fewest(labels, groups, folds, classes)
    if fewest < folds:
        instead = f"set {option}=1/{fewest}" if fewest > 1 else "add others"
        raise ValueError(
            f"{option} is {share}, one of {folds} parts without a common group, but {needed}: {instead}"
        )
    return _parts(labels, groups, folds, 0, seed)


def _parts(
    labels: npt.NDArray[np.int64],
    groups: Groups | None,
    folds: int,
    fold: int,
    seed: int,
) -> tuple[Indices, Indices]:
    """Return the indices of the images of the other folds and of this one."""
    of_each = fold_of_each(labels, groups, folds, seed)
    is_held_out = of_each == fold
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


def _fewest(
    labels: npt.NDArray[np.int64], groups: Groups | None, folds: int, classes: Sequence[str]
) -> tuple[int, str]:
    """Return the number of images of the rarest class, or of ``groups`` of them, and a text of what ``folds`` need."""
    counts = {}
    for label in np.unique(labels):
        is_of_class = labels == label
        count = is_of_class.sum() if groups is None else len(np.unique(groups[is_of_class]))
        counts[int(label)] = int(count)
    rarest = min(counts, key=counts.__getitem__)
    fewest = counts[rarest]
    noun = "image" if groups is None else "group"
    plural = "" if fewest == 1 else "s"
    number = f"{fewest} {noun}{plural}"
    if len(counts) == 1:  # images with several labels, which are drawn at random
        return fewest, f"the data set has {number}; expected {folds} or more"
    name = _named(rarest, classes)
    return fewest, f"class {name} has {number}; expected {folds} or more of every class"


def _named(label: int, classes: Sequence[str]) -> str:
    return classes[label] if classes else str(label)


def take_stratified(
    indices: Indices, labels: npt.NDArray[np.int64], size: int, seed: int
) -> Indices:
    """Draw ``size`` of ``indices`` in proportion to the classes, such as for training on few labels."""
    check_number("data.train_images", size, 1, len(indices))
    if size == len(indices):
        return indices
    counts = np.unique_counts(labels[indices]).counts
    smaller_side = min(size, len(indices) - size)
    if smaller_side < len(counts) or counts.min() < 2:  # too few for every class
        order = np.random.default_rng(seed).permutation(len(indices))
        return np.sort(indices[order[:size]])
    kept, _ = stratified_split(labels[indices], size, seed)
    return np.sort(indices[kept])


def split_by_instance(
    labels: npt.NDArray[np.int64],
    instances: npt.NDArray[np.int64],
    held_out: int,
    seed: int,
    fold: int = 0,
) -> tuple[Indices, Indices]:
    """Return the indices of the training and of the validation images, so that no object is on both sides.

    Views of one object are nearly identical: a split that ignores objects measures memorisation. ``instances`` are the
    indices of the objects in their classes; ``held_out`` of them validate, drawn separately for each class. ``fold`` is
    the index of the draw with this ``seed``. Folds do not have an object in common: together they are a
    cross-validation.
    """
    is_held_out = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        is_of_class = labels == label
        objects = np.unique(instances[is_of_class])
        check_number("data.validation_instances", held_out, 1, len(objects) - 1)
        check_number("data.validation_fold", fold, 0, len(objects) // held_out - 1)
        order = np.random.default_rng((seed, int(label))).permutation(objects)
        first = fold * held_out
        drawn = order[first : first + held_out]
        is_held_out |= is_of_class & np.isin(instances, drawn)
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


def split_by_viewpoint(
    values: npt.NDArray[np.int64], viewpoints: Viewpoints
) -> tuple[Indices, Indices]:
    """Return the indices of the images from familiar and from novel viewpoints (Hinton 2018, section 5).

    ``values`` is the azimuth or elevation of each image, as in the info files; with ``"full"``, all are familiar.
    """
    if viewpoints == "full":
        everything = np.arange(len(values), dtype=np.int64)
        return everything, everything[:0]
    is_familiar = np.isin(values, FAMILIAR[viewpoints])
    return np.flatnonzero(is_familiar), np.flatnonzero(~is_familiar)


def index_hash(indices: Indices) -> str:
    """Compute a short fingerprint of a split, for tests and provenance."""
    content = np.ascontiguousarray(indices, dtype="<i8").tobytes()
    return hashlib.sha256(content).hexdigest()[:16]
