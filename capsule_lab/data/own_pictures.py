"""What data sets of your own have in common, whatever their files: splits that do not change, and augmentation."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import PurePath
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from capsule_lab.data.base import AbstractDataModule
from capsule_lab.data.folds import Groups
from capsule_lab.data.loader import Images
from capsule_lab.data.mnist import check_shift
from capsule_lab.data.splits import (
    Indices,
    Validation,
    parse_share,
    split_fold,
    split_groups,
    split_validation,
)
from capsule_lab.data.transforms import (
    random_mirror,
    random_shift,
    to_unit_interval,
    transform_each,
)
from capsule_lab.errors import DataError, check_number, one_line
from capsule_lab.types import TrainingData

log = logging.getLogger(__name__)

_FEW = 1000  # ours: our networks overfit on fewer training pictures
_SPLIT_SEED = 0  # ours: test and validation pictures must not change with the seed of a run
_OF_TEST = ("test_share", "folds", "fold")  # options that decide which pictures are tested
_MIRROR = 2  # stream of its random draws, after those of the shift


class AbstractOwnPictures(AbstractDataModule):
    """Base class of pictures of your own; pixels in [0, 1].

    Test pictures that are not given apart are drawn from all pictures, also from those given for validation; then
    validation pictures that are not given apart are drawn from the rest. Both are in proportion to the classes, with
    several labels at random, and do not depend on the seed. Networks overfit on a few hundred pictures without
    augmentation; shifts are therefore on by default. A subclass calls ``use_size`` as soon as it knows the size of the
    images.

    Args:
        test_share: share of all pictures to test on, if none are given apart; 1 evaluates all pictures of another file
            or folder, and leaves none to train on.
        folds: number of folds into which all pictures are divided, in place of ``test_share``; ``None`` for none.
        fold: index of the fold to test on, from 0.
        shift: largest shift of training pictures in each direction, in pixels; ``None`` is a tenth of each side.
        mirror: mirror half of the training pictures.
        augment_with: further random transformations, each the name of a class of ``torchvision.transforms.v2`` or a
            mapping of the name to its arguments; applied before mirroring and shifting.
        batch_size, eval_batch_size, validation, validation_share, options: see ``AbstractDataModule``.
    """

    validations = ("stratified", "none")
    options_of_draw: ClassVar[tuple[str, ...]] = ()
    """Further options that decide which pictures are drawn for the test."""

    def __init__(
        self,
        *,
        test_share: float | str = "1/5",
        folds: int | None = None,
        fold: int | None = None,
        shift: int | None = None,
        mirror: bool = False,
        augment_with: Sequence[Any] = (),
        batch_size: int = 32,  # ours: several steps per epoch also with few pictures
        eval_batch_size: int = 100,  # ours
        validation: str = "stratified",
        **options: Any,
    ) -> None:
        super().__init__(
            batch_size=batch_size, eval_batch_size=eval_batch_size, validation=validation, **options
        )
        self.test_share = parse_share(test_share, "data.test_share")
        _check_fold(folds, fold)
        self.folds = folds
        self.fold = fold
        self.shift = shift
        self.mirror = mirror
        self.augment_with = augment_with
        self.largest_shift = (0, 0)
        self.pipeline: Any = None

    def use_size(self, height: int, width: int, channels: int) -> None:
        """Check the options of augmentation for images of this size, and use them.

        Raises:
            ValueError: if they are not suitable for such images.
        """
        self.largest_shift = (height // 10, width // 10)
        if self.shift is not None:
            check_shift(self.shift, min(height, width))
            self.largest_shift = (self.shift, self.shift)
        self.pipeline = transformations(self.augment_with, (channels, height, width))

    @abstractmethod
    def has_test_pictures(self) -> bool:
        """Whether the test pictures are given apart, so that none are drawn."""

    @abstractmethod
    def is_validation(self, images: Images) -> npt.NDArray[np.bool_]:
        """Return for each training picture whether it is given apart for validation, as an array of bool."""

    def facts_of_draw(self, training: TrainingData) -> Sequence[str]:
        """Return names of facts in the provenance that decide which pictures are drawn, and are those of a training."""
        return ()

    def groups_of(self, images: Images) -> Groups | None:
        """Return the group of each image, such as its patient, ``(n,)`` of text or numbers; ``None`` without groups.

        ``images`` are what ``load`` of the source returns, or a subset of them. Images of one group are never on both
        sides of a split.
        """
        return None

    def load(self, *, train: bool) -> Images:
        are_given_apart = self.has_test_pictures()
        images = super().load(train=train or not are_given_apart)
        if are_given_apart:
            if self.folds is not None:
                raise DataError(
                    f"data.folds is {self.folds}, and pictures for the test are given apart; expected one of them: "
                    "leave data.folds out, or put all pictures into one set"
                )
            return images
        if self.test_share == 1 and self.folds is None:
            if train:
                raise DataError(
                    "data.test_share is 1, which leaves no pictures to train or validate on; expected less than 1, or "
                    "evaluate with split=test"
                )
            return images
        if self.folds is None or self.fold is None:
            rest, test = self._hold_out(images, self.test_share, "data.test_share")
        else:
            groups = self.groups_of(images)
            rest, test = split_fold(
                images.strata(),
                groups,
                self.folds,
                self.fold,
                _SPLIT_SEED,
                self.spec.classes,
            )
        return images.subset(rest if train else test)

    def split_training(self, images: Images) -> tuple[Indices, Indices]:
        is_val = self.is_validation(images)
        if is_val.any():
            return np.flatnonzero(~is_val), np.flatnonzero(is_val)
        self._check_draw((*_OF_TEST, "validation", "validation_share"))
        return self._hold_out(
            images,
            self.validation_share,
            "data.validation_share",
            cast(Validation, self.validation),
        )

    def _hold_out(
        self, images: Images, share: Fraction, option: str, validation: Validation = "stratified"
    ) -> tuple[Indices, Indices]:
        """Return the indices of the other images and of a share of them, without a group on both sides."""
        labels = images.strata()
        groups = self.groups_of(images)
        classes = self.spec.classes
        if groups is None or validation == "none":
            return split_validation(labels, validation, share, _SPLIT_SEED, option, classes)
        return split_groups(labels, groups, share, _SPLIT_SEED, option, classes)

    def _setup_training(self) -> None:
        super()._setup_training()
        self._describe_sides()

    def advise_training(self) -> None:
        number = len(self.sets["train"].labels)
        if number < _FEW:
            log.warning(
                "%d training pictures are few: the training error will fall far below the validation error; add "
                "pictures or transformations, such as data.mirror=true or data.augment_with=[{RandomRotation: {degrees:"
                " 10}}]",
                number,
            )

    def _describe_sides(self) -> None:
        """Record folds and groups in the provenance; warn of classes that one side lacks, also with several labels.

        Raise a ``DataError`` if a group is on two sides, because they are given apart.
        """
        train = self.sets["train"]
        is_in_proportion = self.spec.labels_per_image == 1
        if self.folds is None and self.groups_of(train) is None and is_in_proportion:
            return
        sides = {"train": train, "val": self.sets["val"], "test": self.load(train=False)}
        found: dict[str, Any] = {"folds": self.folds, "fold": self.fold}
        groups = {side: self.groups_of(images) for side, images in sides.items()}
        number_of_groups = _check_apart(groups)
        if number_of_groups:
            found["groups"] = number_of_groups
        self.provenance["split"] |= found
        for side, images in sides.items():
            self._warn_of_missing_classes(side, images)

    def _warn_of_missing_classes(self, side: str, images: Images) -> None:
        labels = images.labels.numpy()
        present = labels if labels.ndim == 1 else labels.nonzero()[1]
        missing = np.setdiff1d(np.arange(self.spec.num_classes), present)
        if len(missing) and len(images.labels):
            names = [
                self.spec.classes[label] if self.spec.classes else f"class {label}"
                for label in missing
            ]
            log.warning(
                "the %s pictures%s have none of %s: their error says nothing about it",
                side,
                "" if self.fold is None else f" of fold {self.fold}",
                ", ".join(names),
            )

    def _setup_test(self) -> None:
        if not self.has_test_pictures():
            is_of_training = self._check_draw(_OF_TEST)
            if self.training and not is_of_training and self.test_share != 1:
                log.warning(
                    "only the share of these pictures that a training would leave for the test is tested; "
                    "data.test_share=1 tests all of them, if none was trained on"
                )
        super()._setup_test()
        groups = self.groups_of(self.sets["test"])
        if groups is not None:
            self.test_clusters = np.unique(groups, return_inverse=True)[1]

    def _check_draw(self, options: Sequence[str]) -> bool:
        """Refuse to draw pictures of a training for its evaluation; return whether these are pictures of the training.

        ``options`` decide which pictures are drawn.
        """
        training = self.training
        if training is None:
            return False
        changed = self._changed_facts(training)
        if training.is_elsewhere and changed:
            return False
        if changed:
            raise DataError(
                "pictures, labels or groups changed since the training, so that others would be drawn, some of which "
                "were trained on; restore them, or test other pictures by data.path=… data.test_share=1"
            )
        for name in (*options, *self.options_of_draw):
            before, now = training.options.get(name), training.now.get(name)
            if _comparable(name, now) != _comparable(name, before):
                raise DataError(
                    f"data.{name} is {_shown(now)}, but {_shown(before)} in the training, so that pictures of the "
                    "training would be tested; expected the same, or data.path=… of other pictures"
                )
        return True

    def _changed_facts(self, training: TrainingData) -> set[str]:
        """Return the names of facts of the provenance that differ from the training, except for names of files."""
        changed = set()
        for key in self.facts_of_draw(training):
            before, now = training.provenance.get(key), self.provenance.get(key)
            if _without_names(now) != _without_names(before):
                changed.add(key)
        return changed

    def transform(self, images: Tensor, key: Tensor, *, augment: bool) -> Tensor:
        if not augment:
            return to_unit_interval(images)
        if self.pipeline is not None:
            images = transform_each(self.pipeline, images, key)
        pixels = to_unit_interval(images)
        if self.mirror:
            pixels = random_mirror(pixels, key, _MIRROR)
        return random_shift(pixels, key, self.largest_shift)


def _without_names(fact: Any) -> Any:
    """Return a fact of the provenance; of hashes by file, the hashes."""
    return sorted(fact.values()) if isinstance(fact, Mapping) else fact


def _comparable(name: str, value: Any) -> Any:
    """Return the value of an option, the same for all spellings of a share, and for a file in all folders."""
    if value is None:
        return None
    if name.endswith("share"):
        return parse_share(value, f"data.{name}")
    return PurePath(value).name if isinstance(value, str) else value


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


def _check_fold(folds: int | None, fold: int | None) -> None:
    """Raise a ``ValueError`` if the options ``folds`` and ``fold`` do not fit together."""
    if folds is None:
        if fold is not None:
            raise ValueError(
                f"data.fold is {fold} without data.folds; expected both, such as data.folds=5 data.fold=0"
            )
        return
    check_number("data.folds", folds, 2)
    if fold is None:
        raise ValueError(
            f"data.folds is {folds} without data.fold; expected data.fold=0 to {folds - 1}"
        )
    check_number("data.fold", fold, 0, folds - 1)


def _check_apart(groups: Mapping[str, Groups | None]) -> dict[str, int]:
    """Return the number of groups on each side; raise a ``DataError`` if one of them is on two sides."""
    side_of: dict[Any, str] = {}
    numbers = {}
    for side, names in groups.items():
        different = [] if names is None else np.unique(names).tolist()
        for name in different:
            other = side_of.setdefault(name, side)
            if other != side:
                raise DataError(
                    f"group {name} has pictures in {other} and in {side}; expected each group in one of them: move "
                    "its pictures"
                )
        numbers[side] = len(different)
    return numbers if side_of else {}


def transformations(names: Sequence[Any], image_shape: tuple[int, int, int]) -> Any:
    """Build the option ``augment_with``, or return ``None`` if it is empty, after a trial on a black image.

    Only classes of ``torchvision.transforms.v2`` with plain arguments are built, because a configuration may come from
    somebody else's file. Raise a ``ValueError`` if a name is not such a class, or if arguments or result are not
    suitable.
    """
    if not names:
        return None
    from torchvision.transforms import v2  # slow to import

    pipeline = v2.Compose([_transformation(item) for item in names])
    image = torch.zeros(1, *image_shape, dtype=torch.uint8)
    expected = f"{image.dtype} of shape {tuple(image.shape[1:])}"
    try:
        result = transform_each(pipeline, image, torch.zeros(1, dtype=torch.int64))
        found = f"{result.dtype} of shape {tuple(result.shape[1:])}"
    except Exception as error:  # of any kind, from torchvision
        found = one_line(error)
    if found != expected:
        raise ValueError(
            f"data.augment_with gives {found}; expected transformations that keep {expected}"
        )
    return pipeline


def _transformation(item: Any) -> Any:
    """Build one item of ``augment_with``."""
    from torchvision.transforms import v2

    given = dict(item) if isinstance(item, Mapping) else {item: {}}
    name, arguments = next(iter(given.items()), (None, {}))
    kind = getattr(v2, name, None) if isinstance(name, str) else None
    if len(given) != 1 or not isinstance(kind, type) or not issubclass(kind, v2.Transform):
        raise ValueError(
            f"data.augment_with contains {item!r}; expected classes of torchvision.transforms.v2 with their "
            "arguments, such as [{RandomRotation: {degrees: 10}}]"
        )
    try:
        return kind(**(arguments or {}))
    except Exception as error:  # of any kind, from torchvision
        raise ValueError(
            f"data.augment_with: {name} refuses its arguments: {one_line(error)}"
        ) from error
