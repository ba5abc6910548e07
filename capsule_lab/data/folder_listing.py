"""The pictures of a folder and their classes, taken from the names of files and folders; no picture is opened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from capsule_lab.data.formats import pictures
from capsule_lab.errors import DataError, is_unicode

PARTS = ("train", "val", "test")


class ListedPicture(NamedTuple):
    """A file in a folder of pictures.

    Attributes:
        file: its path, relative to the folder.
        label: index of its class.
        part: the folder it is in, one of ``PARTS``; empty if the folder is not divided into parts.
    """

    file: str
    label: int
    part: str


class Listing(NamedTuple):
    """All pictures in a folder.

    Attributes:
        classes: names of the classes, sorted.
        files: the pictures, sorted by part, class and path.
    """

    classes: tuple[str, ...]
    files: list[ListedPicture]

    @property
    def parts(self) -> set[str]:
        return {picture.part for picture in self.files}


def list_folder(path: Path, known: tuple[str, ...] = ()) -> Listing:
    """List the pictures in ``<path>/<class>/**``, or in ``<path>/train/<class>/**`` and the same for val and test.

    ``known`` are the classes of a trained network, which number the folders; by default the classes are the folders.
    Raise a ``DataError`` if there is no such folder, or if its folders are not those of two or more classes.
    """
    parts = _folders_of_parts(path)
    names_in_part = {part: _folder_names(folder) for part, folder in parts.items()}
    first_part = next(iter(parts))
    folders = names_in_part[first_part]
    classes = known or tuple(folders)
    _check_classes(classes, folders, path, parts[first_part])
    files: list[ListedPicture] = []
    for part, names in names_in_part.items():
        for name in names:
            folder = parts[part] / name
            if name not in classes:
                owner = "the network" if known else "train"
                raise DataError(
                    f"{folder} is not a class of {owner}; expected folders named {', '.join(classes)}"
                )
            label = classes.index(name)
            relative = [os.path.relpath(file, path) for file in _pictures_of_class(folder)]
            files += [ListedPicture(file, label, part) for file in relative]
    return Listing(classes, files)


def list_pictures(path: Path) -> Listing:
    """List the pictures in ``<path>/**``, or in ``<path>/train/**`` and the same for val and test, as of one class.

    Raise a ``DataError`` if the folder cannot be read, or if a part has no pictures.
    """
    files: list[ListedPicture] = []
    for part, folder in _folders_of_parts(path).items():
        relative = [os.path.relpath(file, path) for file in _pictures_of_class(folder)]
        files += [ListedPicture(file, 0, part) for file in relative]
    return Listing(("",), files)


def _folders_of_parts(path: Path) -> dict[str, Path]:
    """Return the folder of each part, which contains those of the classes; without parts, ``path`` under ``""``."""
    names = _folder_names(path)
    if "train" not in names:
        return {"": path}
    others = [name for name in names if name not in PARTS]
    if others:
        raise DataError(
            f"{path} has train and {others[0]}; expected only train, val and test beside it: rename it"
        )
    return {part: path / part for part in PARTS if part in names}


def _folder_names(path: Path) -> list[str]:
    """Return the sorted names of the folders in ``path``, including links to folders."""
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries if os.path.isdir(entry)]
    except OSError as error:
        raise DataError(
            f"data.path: {path} cannot be read ({error.strerror}); expected a folder with a folder of pictures for "
            "each class"
        ) from error
    return sorted(name for name in names if not pictures.is_hidden(name))


def _check_classes(
    classes: tuple[str, ...], folders: list[str], path: Path, first_part: Path
) -> None:
    """Check that there are two or more classes with names in Unicode, and ``folders`` in the first part."""
    for name in classes:
        if not is_unicode(name):
            raise DataError(
                f"{path} has a folder named {name!a}; expected a name in UTF-8: rename it"
            )
    if len(classes) < 2 or not folders:
        found = f"one class, {classes[0]}" if folders else "no folders"
        raise DataError(
            f"{first_part} has {found}; expected two classes or more, and a folder of pictures for each of them, or "
            "data.labels=<a CSV file with the columns file and labels>"
        )


def _pictures_of_class(folder: Path) -> list[str]:
    found = pictures.pictures_in(folder)
    if not found:
        raise DataError(
            f"{folder} has no pictures; expected files that end in {', '.join(pictures.ENDINGS)}: add some, or "
            "remove the folder"
        )
    return found
