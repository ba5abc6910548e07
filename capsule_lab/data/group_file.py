"""The file that gives the group, such as the patient, of each picture in a folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from capsule_lab.data.picture_lines import Line, read_lines
from capsule_lab.errors import printable


class GroupFile(NamedTuple):
    """The content of the file.

    Attributes:
        group_of: name of the group by picture.
        sha256: hash of the file.
    """

    group_of: dict[str, str]
    sha256: str


def read_groups(path: Path, pictures: Sequence[str]) -> GroupFile:
    """Read a CSV with a header and the columns ``file`` and ``group``, see ``read_lines``.

    Raise a ``DataError`` also for a picture without a group or in two groups.
    """
    return GroupFile(*read_lines("data.groups", path, pictures, "group", _group_of))


def _group_of(lines: Iterator[Line]) -> dict[str, str]:
    line_of: dict[str, Line] = {}
    for line in lines:
        if not line.text:
            raise ValueError(f"{line.shown} has no group; expected a name")
        first = line_of.setdefault(line.file, line)
        if first.text != line.text:
            raise ValueError(
                f"{line.shown} is in group {printable(line.text)}, and in {printable(first.text)} in line "
                f"{first.number}; expected one group for each picture"
            )
    return {file: line.text for file, line in line_of.items()}
