"""The scheduler of a table: which jobs are launched, in which order, and how failures are handled."""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from capsule_lab import runs
from capsule_lab.commands.tables import read_table as read
from capsule_lab.errors import TableError
from capsule_lab.launchers import Job
from capsule_lab.runs import lock
from capsule_lab.tables import scheduler
from capsule_lab.tables.cells import EvaluationCell
from capsule_lab.tables.scheduler import run_table
from tests.helpers.tables import cells_of, entries_of, names, statuses, write_evaluation, write_run

ROWS = [
    {"name": "one", "overrides": []},
    {
        "name": "two",
        "overrides": ["data.shift=1"],
        "takes": {"optimizer.eps": ["one", "val/error"]},
    },
    {"name": "evaluated", "of": "two", "evaluate": ["data.eval_images=50"]},
]
LEFT = "; the same command continues"


class Launcher:
    """Writes the results that jobs would leave and records the names of jobs. Jobs of ``failing`` rows fail."""

    def __init__(self, file: Path, *failing: str) -> None:
        self.file, self.failing = file, failing
        self.launched: list[list[str]] = []

    def launch(self, jobs: Sequence[Job], deadline: float) -> dict[str, str | None]:
        self.launched.append(names(jobs))
        cells = {cell.fingerprint: cell for cell in cells_of(self.file)}
        return {job.fingerprint: self._run(cells[job.fingerprint]) for job in jobs}

    def _run(self, cell: Any) -> str | None:
        if cell.row.name in self.failing:
            return f"{cell.name} has no memory"
        if isinstance(cell, EvaluationCell):
            write_evaluation(cell, error=2.5)
        else:
            write_run(cell, val={"error": 0.125})
        return None


@pytest.fixture
def file(table_file) -> Path:
    return table_file(rows=ROWS)


def test_row_that_needs_a_result_is_launched_after_it(file: Path) -> None:
    launcher = Launcher(file)
    run_table(read(file), [], launcher.launch)
    assert launcher.launched == [
        ["one seed 0", "one seed 1"],
        ["two seed 0", "two seed 1"],
        ["evaluated seed 0", "evaluated seed 1"],
    ]
    cells = cells_of(file)
    assert set(statuses(cells)) == {"done"}
    assert "optimizer.eps=0.125" in cells[2].overrides
    run_table(read(file), [], launcher.launch)
    assert len(launcher.launched) == 3, "nothing is launched again"


LAST = {"name": "last", "overrides": ["data.shift=0"]}


@pytest.mark.parametrize(
    ("failing", "expected"),
    [
        ("one", ["failed", "waiting", "waiting"]),
        ("evaluated", ["done", "done", "failed"]),
    ],
)
def test_failed_run_is_tried_once_and_named_at_the_end(
    table_file, failing: str, expected: list[str]
) -> None:
    file = table_file(rows=ROWS, seeds=[0])
    launcher = Launcher(file, failing)
    message = rf"^1 of 3 runs of mine failed; .*: {failing} seed 0: .* has no memory"
    with pytest.raises(TableError, match=message):
        run_table(read(file), [], launcher.launch)
    assert statuses(cells_of(file)) == expected
    assert launcher.launched.count([f"{failing} seed 0"]) == 1

    again = Launcher(file)
    run_table(read(file), [], again.launch)
    assert again.launched[0] == [f"{failing} seed 0"]
    assert set(statuses(cells_of(file))) == {"done"}


def test_run_of_another_process_is_not_launched(table_file) -> None:
    file = table_file(rows=[ROWS[0], {**ROWS[2], "of": "one"}])
    launcher = Launcher(file)
    first, *_ = cells_of(file)
    with lock.train_lock(first.config):
        run_table(read(file), [], launcher.launch)
    assert launcher.launched == [["one seed 1"], ["evaluated seed 1"]]


class Slice(Launcher):
    """Has time for ``jobs`` jobs, of which the last is paused after ``steps`` steps."""

    def __init__(self, file: Path, jobs: int, steps: int = 30, failing: Sequence[str] = ()) -> None:
        super().__init__(file, *failing)
        self.left, self.steps = jobs, steps

    def launch(self, jobs: Sequence[Job], deadline: float) -> dict[str, str | None]:
        return super().launch(jobs[: self.left], deadline)

    def _run(self, cell: Any) -> str | None:
        self.left -= 1
        directory = runs.directories.root() / f"capsnet-mnist-{cell.fingerprint}"
        shutil.rmtree(directory, ignore_errors=True)
        if self.left > 0 or cell.row.name in self.failing:
            return super()._run(cell)
        runs.results.write_pause(directory, self.steps, 80)
        return None

    def run(self) -> None:
        clock = SimpleNamespace(time=lambda: 100.0 if self.left <= 0 else 0.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scheduler, "time", clock)
            run_table(read(self.file), [], self.launch, 100.0)


def test_sweep_with_a_budget_continues_paused_runs_first(
    table_file, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "capsule_lab")
    file = table_file(rows=[*ROWS, LAST], seeds=[0])
    none_done = f"0 of 4 runs complete, 1 paused, 3 not started{LEFT}"
    one_done = f"1 of 4 runs complete, 1 paused, 2 not started{LEFT}"
    for jobs, steps, message, expected in (
        (1, 50, none_done, ["paused", "waiting", "waiting", "missing"]),
        (2, 40, one_done, ["done", "missing", "waiting", "paused"]),
        (1, 50, one_done, ["done", "missing", "waiting", "paused"]),
        (9, 110, "4 done", ["done", "done", "done", "done"]),
    ):
        launcher = Slice(file, jobs, steps)
        launcher.run()
        assert caplog.messages[-1] == f"mine: {message}"
        assert statuses(cells_of(file)) == expected
        states = [entry.state for entry in entries_of(file)]
        assert states.count("0 of 1, 1 paused") == expected.count("paused")
    first_jobs = launcher.launched[0]
    assert first_jobs == ["last seed 0", "two seed 0"], "the paused run is launched first"


@pytest.mark.parametrize("jobs", [0, 1])
def test_budget_too_short_for_any_step_is_an_error(table_file, jobs: int) -> None:
    """Otherwise a loop over such commands would never end."""
    file = table_file(rows=ROWS, seeds=[0])
    Slice(file, 1).run()
    message = r"^no run of mine made a step or was tested before the time was over, "
    with pytest.raises(TableError, match=message):
        Slice(file, jobs).run()


class Resumed(Slice):
    """Resumes runs that were interrupted, which removes the records of their interruption."""

    def _run(self, cell: Any) -> str | None:
        lock._record_file(cell.fingerprint).unlink()
        return super()._run(cell)


def test_budget_in_which_an_interrupted_run_made_steps_is_no_error(
    table_file, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "capsule_lab")
    file = table_file(rows=[LAST], seeds=[0])
    (cell,) = cells_of(file)
    interrupted = lock.LockRecord("1", None, "stopped by SIGINT")
    lock._write_record(cell.fingerprint, interrupted)
    Resumed(file, 1, steps=40).run()
    message = f"mine: 0 of 1 runs complete, 1 paused, 0 not started{LEFT}"
    assert caplog.messages[-1] == message


def test_earlier_failure_outside_the_budget_is_no_error(
    table_file, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "capsule_lab")
    file = table_file(rows=[ROWS[0], LAST], seeds=[0])
    with pytest.raises(TableError, match="1 of 2 runs of mine failed"):
        Slice(file, 2, failing=["one"]).run()
    Slice(file, 1, steps=40).run()
    message = f"mine: 0 of 2 runs complete, 1 paused, 0 not started, 1 failed{LEFT}"
    assert caplog.messages[-1] == message


def test_nothing_is_launched_if_any_row_is_invalid(table_file) -> None:
    wrong = {**ROWS[1], "overrides": ["optimizer.epsilon=1"]}
    file = table_file(rows=[ROWS[0], wrong])
    launcher = Launcher(file)
    with pytest.raises(TableError, match=r"^row two: optimizer\.epsilon does not exist"):
        run_table(read(file), [], launcher.launch)
    assert launcher.launched == []
