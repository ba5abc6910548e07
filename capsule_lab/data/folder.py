"""A data set of your own: a folder of pictures with a subfolder for each class, or with a file of their labels."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
from PIL import ImageColor

from capsule_lab.data.folder_listing import ListedPicture
from capsule_lab.data.folder_packing import PackedFolder, Size, height_and_width
from capsule_lab.data.folds import Groups
from capsule_lab.data.formats import pictures
from capsule_lab.data.group_file import GroupFile, read_groups
from capsule_lab.data.label_file import LabelFile, read_labels
from capsule_lab.data.loader import Images, Rows
from capsule_lab.data.own_pictures import AbstractOwnPictures
from capsule_lab.errors import check_choice, check_number, size_option
from capsule_lab.system.files import expanded
from capsule_lab.types import DataSpec, TrainingData

log = logging.getLogger(__name__)

_THREADS = 8  # ours: more would wait for the disk
_SMALLEST_SHARE = 0.5  # ours: share of a picture that a crop should keep
_SMALLEST_SIDE = 2  # a single pixel has no shape
_FEWEST_PIXELS = 4  # ours: fewer pixels, along the short side of a padded picture, show nothing


class PictureFolder(AbstractOwnPictures):
    """Pictures in a folder for each class, like torchvision's ``ImageFolder``; pixels in [0, 1].

    The layout is ``<path>/<class>/**.png``, or ``<path>/train/<class>/**.png`` with ``val`` and ``test`` beside
    ``train``; pictures in ``val`` and ``test`` replace those that are drawn. With ``labels``, names of folders are not
    classes, and pictures have any number of labels. The constructor reads no files; ``spec``
    lists the folder.

    Args:
        path: the folder.
        size: pixels a side of square images, or height and width of oblong ones.
        channels: 1, 3, or ``"auto"``: 1 if a sample of the pictures is grey.
        fit: see ``formats.pictures.fitted``.
        background: name or ``#rrggbb`` of the colour that replaces transparency.
        bad: ``"fail"`` or ``"skip"`` pictures that cannot be read.
        labels: CSV with the labels of each picture, see ``label_file.read_labels``; a relative path is in ``path``.
        groups: CSV with the group of each picture, see ``group_file.read_groups``; a relative path is in ``path``.
        workers: number of threads that read pictures, or ``"auto"``.
        options: see ``AbstractOwnPictures`` and ``AbstractDataModule``.

    Raises:
        DataError: from ``spec`` and ``prepare_data``, if the folder or its pictures cannot be used.
    """

    real_source: PackedFolder

    def __init__(
        self,
        *,
        path: str | None = None,
        size: Size = 64,
        channels: Literal["auto"] | int = "auto",
        fit: pictures.Fit = "crop",
        background: str = "white",
        bad: Literal["fail", "skip"] = "fail",
        labels: str | None = None,
        groups: str | None = None,
        workers: Literal["auto"] | int = "auto",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        height, width = self.image_size = _checked_size(size)
        check_choice("data.channels", channels, ("auto", 1, 3))
        check_choice("data.fit", fit, ("crop", "pad", "stretch"))
        check_choice("data.bad", bad, ("fail", "skip"))
        if workers != "auto":
            check_number("data.workers", workers, 1)
        try:
            ImageColor.getrgb(background)
        except ValueError as error:
            raise ValueError(
                f"data.background is {background!r}; expected a colour, such as white or #808080"
            ) from error
        self.fit = fit
        self.background = background
        self.labels = labels
        self.groups = groups
        self.use_size(height, width, 1 if channels == 1 else 3)
        self.real_source = PackedFolder(
            path,
            self.directory,
            bad=bad,
            workers=_default_workers() if workers == "auto" else workers,
            size=size,
            fit=fit,
            background=background,
        )
        self.real_source.channels = None if channels == "auto" else channels
        self.real_source.by_class = labels is None
        self._spec: DataSpec | None = None

    @property
    def spec(self) -> DataSpec:
        if self._spec is None:
            classes = self.real_source.listing.classes
            if self.labels is not None:
                classes = self._label_file.classes
            self._use_classes(classes, self.real_source.find_channels())
        assert self._spec is not None
        return self._spec

    def use_spec(self, spec: DataSpec) -> None:
        source = self.real_source
        source.known = spec.class_names
        source.channels = source.channels or spec.image_shape[0]
        self._use_classes(spec.class_names, source.channels)

    def _use_classes(self, classes: tuple[str, ...], channels: int) -> None:
        image_shape = (channels, *self.image_size)
        labels_per_image = 1 if self.labels is None else 0
        self._spec = DataSpec(image_shape, len(classes), classes, labels_per_image=labels_per_image)

    @property
    def input_form(self) -> dict[str, Any]:
        return super().input_form | {"fit": self.fit, "background": self.background}

    def has_test_pictures(self) -> bool:
        return "test" in self.real_source.listing.parts

    def is_validation(self, images: Images) -> npt.NDArray[np.bool_]:
        return np.array([picture.part == "val" for picture in self._pictures_of(images)])

    def _pictures_of(self, images: Images) -> list[ListedPicture]:
        stored = self.real_source.kept
        return [stored[row] for row in cast(Rows, images.images).rows.tolist()]

    def load(self, *, train: bool) -> Images:
        images = super().load(train=train)
        if self.labels is None:
            return images
        files = [picture.file for picture in self._pictures_of(images)]
        return images._replace(labels=self._label_file.rows(files))

    @cached_property
    def _label_file(self) -> LabelFile:
        source = self.real_source
        path = source.root / expanded(self.labels or "")
        return read_labels(path, self._listed_files(), source.known)

    @cached_property
    def _group_file(self) -> GroupFile:
        path = self.real_source.root / expanded(self.groups or "")
        return read_groups(path, self._listed_files())

    def facts_of_draw(self, training: TrainingData) -> Sequence[str]:
        facts = ["pictures", "left_out", "labels_sha256", "groups_sha256"]
        before, now = training.options, training.now
        # the hash is of pixels
        is_prepared_alike = all(
            before.get(name) == now.get(name) for name in ("size", "fit", "background")
        )
        if training.is_elsewhere or is_prepared_alike:
            facts.append("sha256")
        return facts

    def _listed_files(self) -> list[str]:
        return [picture.file for picture in self.real_source.listing.files]

    def groups_of(self, images: Images) -> Groups | None:
        if self.groups is None:
            return None
        group_of = self._group_file.group_of
        pictures_of_groups = self._pictures_of(images)
        return np.array([group_of[picture.file] for picture in pictures_of_groups], dtype=str)

    def describe(self) -> dict[str, Any]:
        found = super().describe()
        if self.labels is not None:
            found["labels_sha256"] = self._label_file.sha256
        if self.groups is not None:
            found["groups_sha256"] = self._group_file.sha256
        return found

    def _setup_training(self) -> None:
        super()._setup_training()
        warn_of_fit(self.real_source.index.get("sides", ()), *self.image_size, self.fit)


def _default_workers() -> int:
    return min(_THREADS, os.cpu_count() or 1)


def _checked_size(size: Size) -> tuple[int, int]:
    """Return height and width of the option ``size``."""
    sides = [size, size] if isinstance(size, int) else size
    are_two = isinstance(sides, Sequence) and [*map(type, sides)] == [int, int]
    if not are_two or min(sides) < _SMALLEST_SIDE:
        raise ValueError(
            f"data.size is {size!r}; expected pixels a side, {_SMALLEST_SIDE} or more, or [height, width]"
        )
    return height_and_width(size)


def warn_of_fit(sides: Sequence[Sequence[int]], height: int, width: int, fit: pictures.Fit) -> None:
    """Warn if an image of this size shows little of most pictures, whose widths and heights are ``sides``."""
    if not sides or fit == "stretch":
        return

    def share(picture: Sequence[int]) -> float:
        """Return the share of a picture that its middle in the proportions of the image shows."""
        picture_width, picture_height = picture
        wider = (picture_width * height) / (picture_height * width)
        return min(wider, 1 / wider)

    by_share = sorted(sides, key=share)
    picture = by_share[len(by_share) // 2]
    picture_width, picture_height = picture
    is_wider = picture_width * height > picture_height * width
    side = height if is_wider else width
    is_thin = share(picture) * side < _FEWEST_PIXELS
    if fit == "pad" and is_thin:
        log.warning(
            "with data.fit=pad, most pictures take fewer than %d of %d pixels in one direction, such as one of %d wide "
            "and %d high; set data.fit=stretch, which changes their proportions, or a larger data.size",
            _FEWEST_PIXELS,
            side,
            picture_width,
            picture_height,
        )
    if fit == "crop" and share(picture) < _SMALLEST_SHARE:
        instead = "stretch, which changes their proportions"
        if not is_thin:
            scale = min(height, width) / min(picture)
            same = size_option(round(scale * picture_height), round(scale * picture_width))
            instead = f"pad, which keeps everything, or stretch; or set {same}, their proportions"
        log.warning(
            "data.fit=crop keeps the middle only, in the proportions of data.size, and cuts off the larger part of "
            "most pictures, such as %.0f %% of one of %d wide and %d high; set data.fit=%s",
            100 * (1 - share(picture)),
            picture_width,
            picture_height,
            instead,
        )
