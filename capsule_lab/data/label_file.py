"""The file that gives the labels, any number of them, of each picture in a folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from capsule_lab.data.picture_lines import Line, read_lines
from capsule_lab.errors import DataError, printable

SEPARATOR = ";"


class LabelFile(NamedTuple):
    """The content of the file.

    Attributes:
        classes: names of the classes, sorted, or in the order of the network.
        labels_of: names of the classes of each picture.
        sha256: hash of the file.
    """

    classes: tuple[str, ...]
    labels_of: dict[str, list[str]]
    sha256: str

    def rows(self, pictures: Sequence[str]) -> Bool[Tensor, "image class"]:
        """Return for each picture whether it has each class."""
        rows = torch.zeros(len(pictures), len(self.classes), dtype=torch.bool)
        number_of = {name: number for number, name in enumerate(self.classes)}
        for row, file in zip(rows, pictures, strict=True):
            row[[number_of[name] for name in self.labels_of[file]]] = True
        return rows


def read_labels(path: Path, pictures: Sequence[str], known: tuple[str, ...] = ()) -> LabelFile:
    """Read a CSV with a header and the columns ``file`` and ``labels``, names separated by ``;``, see ``read_lines``.

    ``known`` are the classes of a trained network; by default, classes are the names in the file. Raise a ``DataError``
    also for a picture with two lines, an empty name, a name twice, a class that the network does not know, and for
    fewer than two classes.
    """
    option = "data.labels"
    labels_of, sha256 = read_lines(option, path, pictures, "labels", _labels_of)
    names = sorted({name for labels in labels_of.values() for name in labels})
    unknown = [name for name in names if known and name not in known]
    if unknown:
        raise DataError(
            f"{option}: {printable(str(path))} has the label {printable(unknown[0])}; expected classes of the network: "
            f"{printable(', '.join(known))}"
        )
    classes = known or tuple(names)
    if len(classes) < 2:
        found = f"one class, {printable(classes[0])}" if classes else "no labels"
        raise DataError(
            f"{option}: {printable(str(path))} has {found}; expected two classes or more: for pictures with and "
            "without something, name both, or use a folder for each"
        )
    return LabelFile(classes, labels_of, sha256)


def _labels_of(lines: Iterator[Line]) -> dict[str, list[str]]:
    line_of: dict[str, Line] = {}
    labels_of: dict[str, list[str]] = {}
    for line in lines:
        first = line_of.setdefault(line.file, line)
        if first is not line:
            raise ValueError(
                f"{line.shown} has labels in line {first.number}, too; expected one line for each picture, with all of "
                f"its labels separated by {SEPARATOR}"
            )
        labels = [name.strip() for name in line.text.split(SEPARATOR)] if line.text else []
        if "" in labels:
            raise ValueError(
                f"{line.shown} has {printable(line.text)}; expected names of classes separated by {SEPARATOR}, or "
                "nothing"
            )
        twice = [name for name in labels if labels.count(name) > 1]
        if twice:
            raise ValueError(
                f"{line.shown} has the label {printable(twice[0])} twice; expected each label once"
            )
        labels_of[line.file] = labels
    return labels_of
