"""Files with a line for each picture in a folder, such as of its group or its labels."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from capsule_lab.errors import DataError, one_line, printable
from capsule_lab.system.files import read_regular

T = TypeVar("T")


class Line(NamedTuple):
    """A line of the file: its number from 1, the picture, and the text in the other column."""

    number: int
    file: str
    text: str

    @property
    def shown(self) -> str:
        """Number and picture, for messages."""
        return f"line {self.number}: {printable(self.file)}"


def read_lines(
    option: str,
    path: Path,
    pictures: Sequence[str],
    column: str,
    parse: Callable[[Iterator[Line]], dict[str, T]],
) -> tuple[dict[str, T], str]:
    """Read a CSV with a header and the columns ``file`` and ``column``; other columns are ignored.

    Args:
        option: what names the file, for messages.
        path: the file.
        pictures: all pictures of the folder; ``file`` is one of them.
        column: name of the other column.
        parse: returns the value of each picture; raises a ``ValueError`` that begins with ``Line.shown``.

    Returns:
        The values, and the SHA-256 of the file.

    Raises:
        DataError: with the line of a picture that is not there, or that ``parse`` refuses; and for a picture without a
            line.
    """
    where = f"{option}: {printable(str(path))}"
    try:
        content = read_regular(path)
        lines = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""))
        found = parse(_lines(lines, {*pictures}, column))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise DataError(
            f"{where} cannot be read ({reason}); expected a CSV in UTF-8 with the columns file and {column}"
        ) from error
    except ValueError as error:
        raise DataError(f"{where}, {error}") from error
    missing = sorted({*pictures} - found.keys())
    if missing:
        first = printable(missing[0])
        raise DataError(
            f"{where} has no line for {first}; expected one for each picture: {len(missing)} of {len(pictures)} have "
            "none"
        )
    return found, hashlib.sha256(content).hexdigest()


def _lines(lines: Any, pictures: set[str], column: str) -> Iterator[Line]:
    """Yield the lines below the header; raise a ``ValueError`` that begins with the number of a wrong one."""
    header: list[str] = next(lines, [])
    if header.count("file") != 1 or header.count(column) != 1:
        found = printable(",".join(header)) or "no columns"
        raise ValueError(
            f"line 1 has {found}; expected the columns file and {column}, separated by commas"
        )
    column_of_file = header.index("file")
    column_of_text = header.index(column)
    for line in filter(None, lines):  # blank lines are empty lists
        number = lines.line_num
        if len(line) != len(header):
            raise ValueError(f"line {number} has {len(line)} columns; expected {len(header)}")
        file = os.path.normpath(line[column_of_file].strip())
        found_line = Line(number, file, line[column_of_text].strip())
        if file not in pictures:
            raise ValueError(
                f"{found_line.shown} is not among the pictures; expected paths relative to data.path, such as "
                "cross/001.png"
            )
        yield found_line
