"""The file that gives the group, such as the patient, of each picture in a folder."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from capsule_lab.errors import DataError, one_line, printable
from capsule_lab.system.files import read_regular


class GroupFile(NamedTuple):
    """The content of the file.

    Attributes:
        group_of: name of the group by picture.
        sha256: hash of the file.
    """

    group_of: dict[str, str]
    sha256: str


def read_groups(path: Path, pictures: Sequence[str]) -> GroupFile:
    """Read a CSV with a header and the columns ``file`` and ``group``; other columns are ignored.

    ``pictures`` are all pictures of the folder, and ``file`` is one of them. Raise a ``DataError`` that names the line
    of a picture that is not there, without a group or in two groups, and for a picture without a line.
    """
    where = f"data.groups: {printable(str(path))}"
    try:
        content = read_regular(path)
        lines = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""))
        group_of = _group_of(lines, {*pictures})
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise DataError(
            f"{where} cannot be read ({reason}); expected a CSV in UTF-8 with the columns file and group"
        ) from error
    except ValueError as error:
        raise DataError(f"{where}, {error}") from error
    missing = sorted({*pictures} - group_of.keys())
    if missing:
        first = printable(missing[0])
        raise DataError(
            f"{where} has no line for {first}; expected one for each picture: {len(missing)} of {len(pictures)} have "
            "none"
        )
    sha256 = hashlib.sha256(content).hexdigest()
    return GroupFile(group_of, sha256)


def _group_of(lines: Any, pictures: set[str]) -> dict[str, str]:
    """Return the group of each picture; raise a ``ValueError`` that begins with the number of a wrong line."""
    header: list[str] = next(lines, [])
    if header.count("file") != 1 or header.count("group") != 1:
        found = printable(",".join(header)) or "no columns"
        raise ValueError(
            f"line 1 has {found}; expected the columns file and group, separated by commas"
        )
    column_of_file = header.index("file")
    column_of_group = header.index("group")
    line_of: dict[str, int] = {}
    group_of: dict[str, str] = {}
    for line in filter(None, lines):  # blank lines are empty lists
        number = lines.line_num
        if len(line) != len(header):
            raise ValueError(f"line {number} has {len(line)} columns; expected {len(header)}")
        file = os.path.normpath(line[column_of_file].strip())
        group = line[column_of_group].strip()
        shown = printable(file)
        if file not in pictures:
            raise ValueError(
                f"line {number}: {shown} is not among the pictures; expected paths relative to data.path, such as "
                "cross/001.png"
            )
        if not group:
            raise ValueError(f"line {number}: {shown} has no group; expected a name")
        other = group_of.setdefault(file, group)
        if other != group:
            raise ValueError(
                f"line {number}: {shown} is in group {printable(group)}, and in {printable(other)} in line "
                f"{line_of[file]}; expected one group for each picture"
            )
        line_of.setdefault(file, number)
    return group_of
