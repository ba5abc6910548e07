"""What has run of the plan of November 2026: counts and hours of cells, and the block of its page."""

from pathlib import Path

import pytest

from capsule_lab.tables.cells import EvaluationCell
from capsule_studies.claims.progress import (
    PLAN,
    Progress,
    hours_missing,
    progress_of,
    with_progress,
)
from tests.helpers.tables import cells_of, write_evaluation, write_run, write_table

ROWS = [
    {"name": "one", "overrides": []},
    {"name": "the_same", "overrides": []},
    {"name": "inside", "of": "one", "by": "evaluate", "evaluate": ["split=test"]},
]


def test_cells_that_have_run_and_their_hours(tmp_path: Path) -> None:
    """Two rows show the same runs, which count once."""
    table = write_table(tmp_path, rows=ROWS, seeds=[0, 1, 2, 3])
    cells = cells_of(table)
    trainings = [cell for cell in cells if not isinstance(cell, EvaluationCell)]
    for cell, hours in zip(trainings[:3], [1, 2, 9], strict=True):
        write_run(cell, training_seconds=3600 * hours)
    inside = [cell for cell in cells_of(table) if isinstance(cell, EvaluationCell)]
    write_evaluation(inside[0], error=1.0, evaluation_seconds=1800)
    after = cells_of(table)
    of_training = progress_of([cell for cell in after if not isinstance(cell, EvaluationCell)])
    of_evaluation = progress_of([cell for cell in after if isinstance(cell, EvaluationCell)])
    assert of_training == Progress(planned=4, run=3, hours=12, usual_hours=2)
    assert of_training.missing == 1
    assert of_evaluation == Progress(planned=4, run=1, hours=0.5, usual_hours=0.5)


@pytest.mark.parametrize(
    ("parts", "hours"),
    [
        ([Progress(4, 3, 12.0, 2.0), Progress(4, 1, 0.5, 0.5)], 2 + 3 * 0.5),
        ([Progress(4, 3, 12.0, 2.0), Progress(4, 0, 0.0, 0.0)], 2 + 8 / 2),
        ([Progress(4, 0, 0.0, 0.0), Progress(0, 0, 0.0, 0.0)], 8),
        ([Progress(4, 4, 12.0, 2.0)], 0),
    ],
    ids=["both have run", "no evaluation has run", "nothing has run", "all has run"],
)
def test_hours_of_missing_cells(parts: list[Progress], hours: float) -> None:
    assert hours_missing(parts, estimate=8) == pytest.approx(hours)


@pytest.mark.slow
def test_the_page_says_what_the_archives_have() -> None:
    """After new runs: ``python -m capsule_studies.claims.progress``."""
    text = PLAN.read_text()
    assert with_progress(text) == text
