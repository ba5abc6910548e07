"""Writes the block of results/plan_2026_11.md: which cells of the plan's tables have run, and their hours.

``python -m capsule_studies.claims.progress`` reads the run directories of the archives ``results/*_runs.tar.gz``.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from capsule_lab.commands.tables import read_table
from capsule_lab.tables.cells import Cell, EvaluationCell
from capsule_lab.tables.expand import distinct, expand
from capsule_studies.claims.read import RESULTS, with_block
from capsule_studies.claims.recompute import reading_runs_in, unpack

PLAN = RESULTS / "plan_2026_11.md"
HOURS = {
    "paik2019_routing": 5,
    "paik2019_four": 1,
    "hinton2018_table1_toynorb": 6,
    "sabour2017_fast": 32,
    "gu2020_affine": 10,
    "attack_controls_paired": 5,
    "mitterreiter2023_depth": 2,
    "few_labels_controls": 3,
    "sabour2017_inside": 4,
    "sabour2017_logits": 2,
    "routing_controls": 3,
    "random_draws": 3,
    "gu2020_affine_mnist": 4,
    "affine_positions": 3,
    "affine_positions_initial": 3,
}
"""Hours of one core that the plan estimated for its tables, in the order of the plan."""
START, END = "<!-- written by capsule_studies.claims.progress -->\n", "<!-- end -->"
_HEAD = """\
| table | trainings: planned | run | missing | evaluations: planned | run | missing | hours run | hours missing |
|---|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Progress:
    """Cells of a kind, and the hours of those that have run.

    Attributes:
        planned, run: numbers of cells.
        hours: wall-clock hours of the cells that have run, each a process with one thread.
        usual_hours: their median; of no cells, zero.
    """

    planned: int
    run: int
    hours: float
    usual_hours: float

    @property
    def missing(self) -> int:
        """Number of cells without a result."""
        return self.planned - self.run


def progress_of(cells: Sequence[Cell]) -> Progress:
    """Count the cells that have run; two cells with the same result are one."""
    cells = distinct(cells)
    hours = [cell.seconds / 3600 for cell in cells if cell.seconds is not None]
    usual = statistics.median(hours) if hours else 0.0
    return Progress(len(cells), len(hours), sum(hours), usual)


def hours_missing(parts: Sequence[Progress], estimate: float) -> float:
    """Return the hours of the missing cells, each the median of those that have run.

    The median, because single runs waited for hours while other work had the cores. If no cell of a kind has run, the
    hours are those of the estimate.

    Args:
        parts: trainings and evaluations of a table.
        estimate: hours of the whole table, by its plan.
    """
    planned = sum(part.planned for part in parts)
    hours = 0.0
    for part in parts:
        if part.run:
            hours += part.missing * part.usual_hours
        else:
            hours += part.missing * estimate / planned
    return hours


def block() -> str:
    """Return the lines of all tables."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for table in HOURS:
            archive = RESULTS / f"{table}_runs.tar.gz"
            if archive.is_file():
                unpack(archive, folder)
        with reading_runs_in(folder):
            return _HEAD + "".join(_lines())


def with_progress(text: str) -> str:
    """Return the text of the plan with the current block."""
    return with_block(text, START, END, block())


def _lines() -> Iterator[str]:
    for name, estimate in HOURS.items():
        cells = expand(read_table(name))
        trainings = progress_of([cell for cell in cells if not isinstance(cell, EvaluationCell)])
        evaluations = progress_of([cell for cell in cells if isinstance(cell, EvaluationCell)])
        parts = (trainings, evaluations)
        counts = [number for part in parts for number in (part.planned, part.run, part.missing)]
        hours = (sum(part.hours for part in parts), hours_missing(parts, estimate))
        shown = [f"`{name}`", *map(str, counts), *(f"`{each:.1f}`" for each in hours)]
        yield f"| {' | '.join(shown)} |\n"


if __name__ == "__main__":
    PLAN.write_text(with_progress(PLAN.read_text()))
