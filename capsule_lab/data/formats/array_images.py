"""The images of a file of arrays, found by their names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from capsule_lab.data.formats.array_files import ArrayFile
from capsule_lab.data.formats.array_values import Values, arranged, as_bytes, find_axes
from capsule_lab.errors import DataError

PARTS = ("train", "val", "test")
IMAGES = ("images", "x", "X", "data")
"""Names of an array of images; the first that a file has is used."""
IMAGES_OF_PART = ("x_{}", "X_{}", "{}_images")
"""Names of the images of one of ``PARTS``."""


class NamedArray(NamedTuple):
    """One array of a file; as text, what messages call it."""

    file: ArrayFile
    name: str

    def __str__(self) -> str:
        return f"{self.file.path}: {self.name}"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.file.shape_of(self.name)

    def read(self) -> Values:
        return self.file.read(self.name)


def first_of(names: Iterable[str], candidates: Sequence[str]) -> str | None:
    """Return the first of ``candidates`` that is in ``names``."""
    return next((name for name in candidates if name in names), None)


def read_images(
    path: Path,
    image_shape: Sequence[int],
    name: str | None = None,
    axes: str | None = None,
    limits: Sequence[float] | None = None,
) -> Tensor:
    """Return the images of a file, labelled or not, ``(n, channel, height, width)`` uint8.

    They are the array ``images``, ``x``, ``X`` or ``data``, else the test images, validation images or training images.

    Args:
        path: the file.
        image_shape: expected ``(channel, height, width)``.
        name, axes, limits: see ``images``, ``axes`` and ``range`` of ``ArraysDataModule``.

    Raises:
        DataError: if the file cannot be read, or has other images.
    """
    file = ArrayFile(path)
    names = [*IMAGES] if name is None else [name, *IMAGES]
    for part in reversed(PARTS):
        names += [each.format(part) for each in IMAGES_OF_PART]
    if path.suffix.lower() == ".npy":
        names = [path.stem]
    found = first_of(file.headers, names)
    if found is None:
        raise DataError(
            f"{path} has the arrays {', '.join(file.headers) or 'of no name'}; expected one of {', '.join(IMAGES)}: "
            "rename it"
        )
    array = NamedArray(file, found)
    axes = find_axes(
        array.shape,
        axes,
        str(array),
        image_shape=image_shape,
        is_of_matlab=file.is_of_matlab,
    )
    return as_bytes(arranged(array.read(), axes), limits, str(array))
