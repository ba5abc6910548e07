"""Output of rows on a terminal: as a table if it fits, else as a block of lines for each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_UNLIMITED = 10_000  # ours: characters; no table is as wide
_INDENT = (0, 0, 0, 2)  # above, right, below, left
_GAP = 3  # ours: spaces between values of a block


class Row(NamedTuple):
    """A row: its cells, the first of which is its label, and a style of rich."""

    cells: Sequence[str]
    style: str = ""


def filled_columns(rows: Sequence[Row]) -> list[int]:
    """Return the columns that have a value in any row, and always the first, that of the labels."""
    filled = {0}
    for row in rows:
        for number, cell in enumerate(row.cells):
            if cell:
                filled.add(number)
    return sorted(filled)


@dataclass(frozen=True)
class Sheet:
    """Rows under headings, without the columns that are empty in every row.

    Where the table would be wider than the terminal, each row is a block: its label, then ``heading: value`` at the
    same places in every block.

    Attributes:
        title: a line or several above the rows.
        headings: one for each cell; the first, of the labels, is not shown in blocks.
        rows: at least one.
        texts: headings of columns that are aligned at the left.
        caption: a text below the rows.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Row]
    texts: Sequence[str]
    caption: str = ""

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yield the title, the rows and the caption."""
        yield Text(self.title, style="table.title")
        table = self._table()
        unlimited = options.update(max_width=_UNLIMITED)
        if Measurement.get(console, unlimited, table).maximum <= options.max_width:
            yield table
        else:
            yield from self._blocks(options.max_width)
        if self.caption:
            yield Text(self.caption, style="table.caption")

    def _table(self) -> Table:
        table = Table()
        columns = filled_columns(self.rows)
        for column in columns:
            heading = self.headings[column]
            table.add_column(heading, justify="left" if heading in self.texts else "right")
        for row in self.rows:
            cells = [Text(row.cells[column]) for column in columns]
            table.add_row(*cells, style=row.style)
        return table

    def _blocks(self, width: int) -> Iterator[RenderableType]:
        widths = {}
        for column in filled_columns(self.rows)[1:]:
            values = [row.cells[column] for row in self.rows]
            longest = max(map(len, values))
            widths[column] = len(f"{self.headings[column]}: ") + longest
        for row in self.rows:
            yield Text(row.cells[0], style=row.style or "bold")
            for line in _lines(widths, width - _INDENT[-1]):
                text = ""
                for column in line:
                    value = row.cells[column] or "–"
                    pair = f"{self.headings[column]}: {value}"
                    text += pair.ljust(widths[column] + _GAP)
                shown = Text(text.rstrip(), style=row.style)
                yield Padding(shown, _INDENT, expand=False)


def _lines(widths: dict[int, int], width: int) -> list[list[int]]:
    """Return the columns of each line, as many as fit; one that is wider than ``width`` has its own line."""
    lines: list[list[int]] = []
    used = width
    for column, needed in widths.items():
        if used + _GAP + needed > width:
            lines.append([])
            used = -_GAP
        lines[-1].append(column)
        used += _GAP + needed
    return lines
