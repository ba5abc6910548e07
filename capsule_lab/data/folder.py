"""A data set of your own: a folder of pictures with a subfolder for each class."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
import torch
from PIL import ImageColor
from torch import Tensor

from capsule_lab.data.base import AbstractDataModule
from capsule_lab.data.folder_packing import PackedFolder
from capsule_lab.data.formats import pictures
from capsule_lab.data.loader import Images, Rows
from capsule_lab.data.mnist import check_shift
from capsule_lab.data.splits import Indices, Validation, parse_share, split_validation
from capsule_lab.data.transforms import (
    random_mirror,
    random_shift,
    to_unit_interval,
    transform_each,
)
from capsule_lab.errors import check_choice, check_number, one_line
from capsule_lab.types import DataSpec

log = logging.getLogger(__name__)

_THREADS = 8  # ours: more would wait for the disk
_SMALLEST_SHARE = 0.5  # ours: share of a picture that a crop should keep
_FEWEST_PIXELS = 4  # ours: fewer pixels, along the short side of a padded picture, show nothing
_FEW = 1000  # ours: our networks overfit on fewer training pictures
_SPLIT_SEED = 0  # ours: test and validation pictures must not change with the seed of a run
_MIRROR = 2  # stream of its random draws, after those of the shift


class PictureFolder(AbstractDataModule):
    """Pictures in a folder for each class, like torchvision's ``ImageFolder``; pixels in [0, 1].

    The layout is ``<path>/<class>/**.png``, or ``<path>/train/<class>/**.png`` with ``val`` and ``test`` beside
    ``train``. Test and validation pictures that have no folder are drawn from the others in proportion to the classes,
    and do not depend on the seed. Networks overfit on a few hundred pictures without augmentation; shifts are
    therefore on by default. The constructor reads no files; ``spec`` lists the folder.

    Args:
        path: the folder.
        size: pixels a side; pictures become squares.
        channels: 1, 3, or ``"auto"``: 1 if a sample of the pictures is grey.
        fit: see ``formats.pictures.fitted``.
        background: name or ``#rrggbb`` of the colour that replaces transparency.
        bad: ``"fail"`` or ``"skip"`` pictures that cannot be read.
        test_share: share of all pictures to test on, if there is no folder ``test``.
        shift: largest shift of training pictures in each direction, in pixels; ``None`` is a tenth of ``size``.
        mirror: mirror half of the training pictures.
        augment_with: further random transformations, each the name of a class of ``torchvision.transforms.v2`` or a
            mapping of the name to its arguments; applied before mirroring and shifting.
        workers: number of threads that read pictures, or ``"auto"``.
        batch_size, eval_batch_size, validation, validation_share, options: see ``AbstractDataModule``.

    Raises:
        DataError: from ``spec`` and ``prepare_data``, if the folder or its pictures cannot be used.
    """

    validations = ("stratified", "none")
    real_source: PackedFolder

    def __init__(
        self,
        *,
        path: str | None = None,
        size: int = 64,
        channels: Literal["auto"] | int = "auto",
        fit: pictures.Fit = "crop",
        background: str = "white",
        bad: Literal["fail", "skip"] = "fail",
        test_share: float | str = "1/5",
        shift: int | None = None,
        mirror: bool = False,
        augment_with: Sequence[Any] = (),
        workers: Literal["auto"] | int = "auto",
        batch_size: int = 32,  # ours: several steps per epoch also with few pictures
        eval_batch_size: int = 100,  # ours
        validation: str = "stratified",
        **options: Any,
    ) -> None:
        super().__init__(
            batch_size=batch_size, eval_batch_size=eval_batch_size, validation=validation, **options
        )
        check_number("data.size", size, 2)
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
        self.size = size
        self.fit = fit
        self.background = background
        self.test_share = parse_share(test_share, "data.test_share")
        self.shift = size // 10 if shift is None else shift
        check_shift(self.shift, size)
        self.mirror = mirror
        self.pipeline = transformations(augment_with, 1 if channels == 1 else 3, size)
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
        self._spec: DataSpec | None = None
        self._split: tuple[Indices, Indices] | None = None

    @property
    def spec(self) -> DataSpec:
        if self._spec is None:
            classes = self.real_source.listing.classes
            channels = self.real_source.find_channels()
            self._spec = DataSpec((channels, self.size, self.size), len(classes), classes)
        return self._spec

    def use_spec(self, spec: DataSpec) -> None:
        if spec.classes:
            source = self.real_source
            source.known = spec.classes
            source.channels = source.channels or spec.image_shape[0]
            image_shape = (source.channels, self.size, self.size)
            self._spec = DataSpec(image_shape, spec.num_classes, spec.classes)

    @property
    def input_form(self) -> dict[str, Any]:
        return super().input_form | {"fit": self.fit, "background": self.background}

    def load(self, *, train: bool) -> Images:
        images = super().load(train=train)
        if "test" in self.real_source.listing.parts:
            return images
        rest, test = split_validation(
            images.labels.numpy(),
            "stratified",
            self.test_share,
            _SPLIT_SEED,
            option="data.test_share",
        )
        return images.subset(rest if train else test)

    def split_training(self, images: Images) -> tuple[Indices, Indices]:
        stored = self.real_source.kept
        rows = cast(Rows, images.images).rows.tolist()
        is_val = np.array([stored[row].part == "val" for row in rows])
        if is_val.any():
            return np.flatnonzero(~is_val), np.flatnonzero(is_val)
        validation = cast(Validation, self.validation)
        return split_validation(
            images.labels.numpy(), validation, self.validation_share, _SPLIT_SEED
        )

    def _setup_training(self) -> None:
        super()._setup_training()
        warn_of_fit(self.real_source.index.get("sides", ()), self.size, self.fit)
        number = len(self.sets["train"].labels)
        if number < _FEW:
            log.warning(
                "%d training pictures are few: the training error will fall far below the validation error; add "
                "pictures or transformations, such as data.mirror=true or data.augment_with=[{RandomRotation: {degrees:"
                " 10}}]",
                number,
            )

    def transform(self, images: Tensor, key: Tensor, *, augment: bool) -> Tensor:
        if not augment:
            return to_unit_interval(images)
        if self.pipeline is not None:
            images = transform_each(self.pipeline, images, key)
        pixels = to_unit_interval(images)
        if self.mirror:
            pixels = random_mirror(pixels, key, _MIRROR)
        return random_shift(pixels, key, self.shift)


def _default_workers() -> int:
    return min(_THREADS, os.cpu_count() or 1)


def warn_of_fit(sides: Sequence[Sequence[int]], size: int, fit: pictures.Fit) -> None:
    """Warn if a square of ``size`` pixels shows little of most pictures, whose widths and heights are ``sides``."""
    if not sides or fit == "stretch":
        return
    by_share = sorted(sides, key=_share_of_square)
    width, height = median = by_share[len(by_share) // 2]
    share = _share_of_square(median)
    is_thin = share * size < _FEWEST_PIXELS
    if fit == "pad" and is_thin:
        log.warning(
            "with data.fit=pad, most pictures take fewer than %d of %d pixels in one direction, such as one of %dx%d; "
            "set data.fit=stretch, which changes their proportions, or a larger data.size",
            _FEWEST_PIXELS,
            size,
            width,
            height,
        )
    if fit == "crop" and share < _SMALLEST_SHARE:
        instead = "pad, which keeps everything, or stretch"
        if is_thin:
            instead = "stretch, which changes their proportions"
        log.warning(
            "data.fit=crop keeps the middle square only and cuts off the larger part of most pictures, "
            "such as %.0f %% of one of %dx%d; set data.fit=%s",
            100 * (1 - share),
            width,
            height,
            instead,
        )


def _share_of_square(sides: Sequence[int]) -> float:
    """Return the share of a picture that its middle square shows."""
    return min(sides) / max(sides)


def transformations(names: Sequence[Any], channels: int, size: int) -> Any:
    """Build the option ``augment_with``, or return ``None`` if it is empty, after a trial on a black image.

    Only classes of ``torchvision.transforms.v2`` with plain arguments are built, because a configuration may come from
    somebody else's file. Raise a ``ValueError`` if a name is not such a class, or if arguments or result are not
    suitable.
    """
    if not names:
        return None
    from torchvision.transforms import v2  # slow to import

    pipeline = v2.Compose([_transformation(item) for item in names])
    image = torch.zeros(1, channels, size, size, dtype=torch.uint8)
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
