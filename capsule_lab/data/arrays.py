"""A data set of your own: arrays of images and labels in a file of NumPy or MATLAB."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from capsule_lab.data.download import sha256
from capsule_lab.data.formats.array_files import ArrayFile
from capsule_lab.data.formats.array_images import (
    IMAGES,
    IMAGES_OF_PART,
    PARTS,
    NamedArray,
    first_of,
    read_images,
)
from capsule_lab.data.formats.array_values import (
    Values,
    arranged,
    as_bytes,
    check_axes,
    check_range,
    find_axes,
    label_rows,
    label_values,
)
from capsule_lab.data.loader import Images, PixelArray, Rows
from capsule_lab.data.own_pictures import AbstractOwnPictures
from capsule_lab.data.sources import AbstractSource
from capsule_lab.errors import ConfigError, DataError
from capsule_lab.system.files import expanded
from capsule_lab.types import DataSpec, TrainingData

log = logging.getLogger(__name__)

_LABELS = ("labels", "y", "Y", "target")
_LABELS_OF_PART = ("y_{}", "Y_{}", "{}_labels")


class _Set(NamedTuple):
    """A set of images with its labels.

    Attributes:
        part: one of ``PARTS``; empty if it is to be divided.
        images: array of the images.
        axes: see ``find_axes``.
        labels: see ``label_values``; or rows, see ``label_rows``.
    """

    part: str
    images: NamedArray
    axes: str
    labels: Values

    @property
    def image_shape(self) -> tuple[int, int, int]:
        sizes = dict(zip(self.axes, self.images.shape, strict=True))
        return (sizes.get("c", 1), sizes["h"], sizes["w"])

    @property
    def has_one_label_each(self) -> bool:
        return self.labels.ndim == 1 or bool((self.labels.sum(1) == 1).all())


class ArraySource(AbstractSource):
    """The images of a file of arrays; headers and labels are read first, images when they are needed.

    Args:
        path: the file; ``None`` if it is not known.
        images, labels, axes, limits: see ``ArraysDataModule``.
        groups_name: ``groups`` of ``ArraysDataModule``.

    Attributes:
        known: specification of the data of a trained network; ``None`` if it is read from the file.
    """

    def __init__(
        self,
        path: str | None,
        images: str | None,
        labels: str | None,
        axes: str | None,
        limits: Sequence[float] | None,
        groups_name: str | None = None,
    ) -> None:
        self.path = None if path is None else expanded(path).absolute()
        self.images = images
        self.labels = labels
        self.groups_name = groups_name
        self.axes = axes
        self.limits = limits
        self.known: DataSpec | None = None

    @cached_property
    def file(self) -> ArrayFile:
        """The file; a ``DataError`` if the configuration does not name it."""
        if self.path is None:
            raise DataError("data.path is missing; expected data.path=<a .npz, .npy or .mat file>")
        return ArrayFile(self.path)

    @cached_property
    def sets(self) -> list[_Set]:
        """The sets of the file: one that is to be divided, or one for each part that is given apart."""
        return [*self._read_sets()]

    def _read_sets(self) -> Iterator[_Set]:
        for part, images, labels in self._arrays():
            array = labels.read()
            values = label_rows(array, str(labels))
            if values is None:
                values = label_values(array, str(labels))
            axes = find_axes(
                images.shape,
                self.axes,
                str(images),
                number=len(values),
                is_of_matlab=images.file.is_of_matlab,
            )
            yield _Set(part, images, axes, values)

    def _arrays(self) -> list[tuple[str, NamedArray, NamedArray]]:
        """Return the part, the images and the labels of each set."""
        file = self.file
        if self._has_images_only:
            return [("", NamedArray(file, file.path.stem), self._labels_beside())]
        names = file.headers
        images = first_of(names, IMAGES if self.images is None else (self.images,))
        labels = first_of(names, _LABELS if self.labels is None else (self.labels,))
        if images and labels:
            return [("", NamedArray(file, images), NamedArray(file, labels))]
        found = []
        if self.images is None and self.labels is None:
            for part in PARTS:
                images = first_of(names, [name.format(part) for name in IMAGES_OF_PART])
                labels = first_of(names, [name.format(part) for name in _LABELS_OF_PART])
                if images and labels:
                    found.append((part, NamedArray(file, images), NamedArray(file, labels)))
        if not found or found[0][0] != "train":
            raise DataError(
                f"{file.path} has the arrays {', '.join(names) or 'of no name'}; expected "
                f"{self.images or 'images, x, X or data'} with {self.labels or 'labels, y, Y or target'}, or x_train, "
                "y_train, x_test and y_test: set data.images=<name> and data.labels=<name>, or rename them"
            )
        return found

    def _labels_beside(self) -> NamedArray:
        if self.labels is None:
            raise DataError(
                f"data.labels is missing; expected data.labels=<a .npy file of the labels of {self.file.path.name}>"
            )
        return _array_beside(self.labels)

    @property
    def _has_images_only(self) -> bool:
        return self.file.path.suffix.lower() == ".npy"

    @cached_property
    def image_shape(self) -> tuple[int, int, int]:
        """``(channel, height, width)`` of all images; a ``DataError`` if they differ."""
        shapes = {each.image_shape: each.images.name for each in self.sets}
        if len(shapes) > 1:
            found = [f"{shape} in {name}" for shape, name in shapes.items()]
            raise DataError(
                f"{self.path} has images of shape {' and '.join(found)}; expected one shape: resize them"
            )
        return next(iter(shapes))

    @cached_property
    def labels_per_image(self) -> int:
        """1, or 0 for any number of labels: if a row of the labels has no 1 or several."""
        if self.known is not None:
            return self.known.labels_per_image
        return int(all(each.has_one_label_each for each in self.sets))

    @cached_property
    def labels_of_images(self) -> Values:
        """The label of each image, in the order of the file; with any number of labels, ``(n, class)`` bool."""
        labels = [each.labels for each in self.sets]
        shape: tuple[int, ...] = ()
        if self.labels_per_image == 1:
            for number, each in enumerate(self.sets):
                if each.labels.ndim == 2 and each.has_one_label_each:
                    labels[number] = each.labels.argmax(1)
        else:
            shape = labels[0].shape[1:] if self.known is None else (self.known.num_classes,)
        for each, values in zip(self.sets, labels, strict=True):
            if values.shape[1:] != shape:
                row = f"a row of 0 and 1 for {shape[0]} classes" if shape else "one label"
                whose = f"{self.sets[0].images.name} has" if self.known is None else "in training"
                raise DataError(
                    f"{each.images} has labels of shape {values.shape}; expected {row} for each image, as {whose}: "
                    "correct the labels"
                )
        return np.concatenate(labels)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes: the different labels, sorted; with any number of labels, the columns from 0."""
        labels = self.labels_of_images
        values = np.unique(labels) if labels.ndim == 1 else np.arange(labels.shape[1])
        classes = tuple(map(str, values.tolist()))
        if len(classes) < 2:
            raise DataError(
                f"{self.path} has the labels {', '.join(classes) or 'of no image'}; expected two or more classes"
            )
        return classes

    @cached_property
    def parts(self) -> Values:
        """The part of each image, in the order of the file; empty if it is to be divided."""
        parts = np.concatenate([np.full(len(each.labels), each.part) for each in self.sets])
        array = self._array("split")
        if array is None:
            return parts
        given = self._beside_labels(array)
        for part in np.unique(given).tolist():
            if part not in PARTS:
                raise DataError(
                    f"{self.path}: split has {part!r}; expected {', '.join(PARTS)}: rename it"
                )
        if not (given == "train").any():
            raise DataError(f"{self.path}: split has no train; expected images to train on")
        return given

    @cached_property
    def groups(self) -> Values | None:
        """The group of each image, in the order of the file; ``None`` without groups."""
        array = self._array_of_groups()
        return None if array is None else self._beside_labels(array)

    def _array_of_groups(self) -> NamedArray | None:
        name = self.groups_name
        if name is None:
            return self._array("groups")
        if self._has_images_only:
            return _array_beside(name)
        array = self._array(name)
        if array is None:
            raise DataError(
                f"data.groups is {name}, but {self.file.path} has the arrays {', '.join(self.file.headers)}; expected "
                "the name of the array with the group of each image: correct it"
            )
        return array

    def _array(self, name: str) -> NamedArray | None:
        """Return the array of this name beside images and labels; ``None`` if there is none."""
        if self._has_images_only or name not in self.file.headers:
            return None
        return NamedArray(self.file, name)

    def unused(self) -> list[str]:
        """Return the names of arrays that may have a value for each image, such as its patient, without groups."""
        (_, images, labels), *others = self._arrays()
        if others or self._has_images_only or self.groups is not None:
            return []
        used = (images.name, labels.name, "split")
        number = len(self.sets[0].labels)
        found = []
        for name, header in self.file.headers.items():
            has_row_each = header.shape[:1] == (number,) or math.prod(header.shape) == number
            if has_row_each and name not in used:
                found.append(name)
        return found

    def _beside_labels(self, array: NamedArray) -> Values:
        """Return the values of an array with one for each image."""
        values = label_values(array.read(), str(array))
        is_divided = len(self.sets) > 1
        number = sum(len(each.labels) for each in self.sets)
        if is_divided or len(values) != number:
            raise DataError(
                f"{array} has {len(values)} values, and there are {number} images in {len(self.sets)} arrays; expected "
                "one for each image of one array: correct it"
            )
        return values

    @cached_property
    def pixels(self) -> PixelArray:
        """The images of all sets, in the order of the file."""
        pixels = []
        for each in self.sets:
            images = arranged(each.images.read(), each.axes)
            pixels.append(as_bytes(images, self.limits, str(each.images)))
        return PixelArray(pixels[0] if len(pixels) == 1 else torch.cat(pixels))

    def is_here(self) -> bool:
        return self.path is not None and self.path.is_file()

    def find(self) -> None:
        self.provenance()

    def load(self, *, train: bool) -> Images:
        is_test = self.parts == "test"
        wanted = ~is_test if train or not is_test.any() else is_test
        rows = np.flatnonzero(wanted)
        images = Rows(self.pixels, torch.from_numpy(rows))
        return Images(cast(Tensor, images), self._as_classes()[rows])

    def _as_classes(self) -> Tensor:
        """Return the class of each image, an index of the known classes or else of ``classes``; or rows of bool."""
        labels = self.labels_of_images
        if labels.ndim == 2:
            return torch.from_numpy(labels)
        classes = self.classes if self.known is None else self.known.class_names
        index_of = {name: index for index, name in enumerate(classes)}
        values, inverse = np.unique(labels, return_inverse=True)
        names = list(map(str, values.tolist()))
        unknown = [name for name in names if name not in index_of]
        if unknown:
            shown = ", ".join(classes[:10]) + (", …" if len(classes) > 10 else "")
            raise DataError(
                f"{self.path} has the label {unknown[0]}; expected one of the {len(classes)} classes of the "
                f"network, {shown}: rename it"
            )
        indices = np.array([index_of[name] for name in names], dtype=np.int64)
        return torch.from_numpy(indices[inverse])

    def provenance(self) -> dict[str, Any]:
        return {"name": f"arrays of {self.file.path.name}", **self._facts}

    @cached_property
    def _facts(self) -> dict[str, Any]:
        _, _, labels = self._arrays()[0]
        arrays = [labels, self._array_of_groups()]
        paths = {self.file.path} | {array.file.path for array in arrays if array is not None}
        facts: dict[str, Any] = {
            "images": len(self.parts),
            "sha256": {path.name: sha256(path) for path in sorted(paths)},
        }
        if self.groups is not None:
            facts["groups"] = len(np.unique(self.groups))
        return facts


class ArraysDataModule(AbstractOwnPictures):
    """Images and labels in a ``.npz``, ``.npy`` or ``.mat`` file; pixels in [0, 1].

    The file has ``images`` and ``labels``, optionally ``groups`` and ``split`` with ``train``, ``val`` or ``test`` for
    each image; or the names of Keras, ``x_train``, ``y_train``, ``x_test``, ``y_test``, ``x_val`` and ``y_val``. Images
    are ``(n, height, width)``, or have 1, 2 or 3 channels as second or last axis. Labels are whole numbers, text, or
    rows with a single 1; the classes are the different labels, sorted. With any other rows of 0 and 1, images have any
    number of labels, and the classes are the columns. The constructor reads no files; ``spec`` reads headers and
    labels.

    Args:
        path: the file. A ``.npy`` file has the images.
        images: name of the array of images, if it is not ``images``, ``x``, ``X`` or ``data``.
        labels: name of the array of labels, if it is not ``labels``, ``y``, ``Y`` or ``target``; or the path of the
            ``.npy`` file of the labels.
        groups: name of the array of groups, if it is not ``groups``; or the path of the ``.npy`` file of the groups.
        axes: letters of the axes of the images if these are not clear, such as ``"nhwc"``: see ``find_axes``.
        range: the numbers of black and of white, if the pixels are neither uint8 nor numbers from 0 to 1.
        options: see ``AbstractOwnPictures`` and ``AbstractDataModule``.

    Raises:
        DataError: from ``spec`` and ``prepare_data``, if the file or its arrays cannot be used.
    """

    real_source: ArraySource
    options_of_draw = ("images", "labels", "groups")

    def __init__(
        self,
        *,
        path: str | None = None,
        images: str | None = None,
        labels: str | None = None,
        groups: str | None = None,
        axes: str | None = None,
        range: Sequence[float] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_axes(axes)
        check_range(range)
        self.real_source = ArraySource(path, images, labels, axes, range, groups)
        self._spec: DataSpec | None = None

    @property
    def spec(self) -> DataSpec:
        if self._spec is None:
            source = self.real_source
            spec = DataSpec(
                source.image_shape,
                len(source.classes),
                source.classes,
                labels_per_image=source.labels_per_image,
            )
            self._use(spec)
        return cast(DataSpec, self._spec)

    def use_spec(self, spec: DataSpec) -> None:
        self.real_source.known = spec
        self._use(spec)

    def _use(self, spec: DataSpec) -> None:
        self._spec = spec
        channels, height, width = spec.image_shape
        try:
            self.use_size(height, width, channels)
        except ValueError as error:  # the size is known too late for a check of the configuration
            raise ConfigError(str(error)) from error

    @property
    def input_form(self) -> dict[str, Any]:
        channels = self.spec.image_shape[0]
        if channels not in (1, 3):
            return {"kind": f"an array of {channels} channels"}
        return super().input_form

    def stored_arrays(self, path: Path) -> Tensor:
        source = self.real_source
        return read_images(path, self.spec.image_shape, source.images, source.axes, source.limits)

    def facts_of_draw(self, training: TrainingData) -> Sequence[str]:
        return ("images", "sha256")

    def has_test_pictures(self) -> bool:
        return bool((self.real_source.parts == "test").any())

    def is_validation(self, images: Images) -> npt.NDArray[np.bool_]:
        return self.real_source.parts[_rows(images)] == "val"

    def groups_of(self, images: Images) -> Values | None:
        """Return the group of each of these images, such as its patient; ``None`` without groups."""
        groups = self.real_source.groups
        return None if groups is None else groups[_rows(images)]

    def advise_training(self) -> None:
        super().advise_training()
        source = self.real_source
        unused = source.unused()
        if unused:
            log.warning(
                "%s has arrays with a row for each image that are not used: %s; if one names its patient or object, "
                "set data.groups=<name of the array>, or its images are on both sides of the split",
                source.path,
                ", ".join(unused),
            )

    def load(self, *, train: bool) -> Images:
        source = self.real_source
        if source.image_shape != self.spec.image_shape:
            raise DataError(
                f"{source.path} has images of shape {source.image_shape}; expected {self.spec.image_shape}, as the "
                "network was trained on: resize them"
            )
        return super().load(train=train)


def _array_beside(path: str) -> NamedArray:
    """Return the array of a ``.npy`` file of labels or groups."""
    file = ArrayFile(expanded(path).absolute())
    return NamedArray(file, file.path.stem)


def _rows(images: Images) -> npt.NDArray[np.int64]:
    """Return where images are in the file."""
    return cast(Rows, images.images).rows.numpy()
