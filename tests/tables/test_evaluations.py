"""Rows that evaluate the weights of another row: they are expanded, run, retried and reported like trained rows."""

import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from capsule_lab import runs
from capsule_lab.commands import compose
from capsule_lab.config.composition import to_container
from capsule_lab.errors import TableError
from capsule_lab.system import protocol
from capsule_lab.tables import formats
from capsule_lab.tables.cells import EvaluationCell, TrainingCell
from capsule_lab.tables.expand import distinct, verify
from tests.helpers.commands import Cli
from tests.helpers.extensions import needs_studies
from tests.helpers.tables import cells_of, entries_of, names, write_evaluation, write_run

TRAINED = {"name": "trained", "overrides": []}
EVALUATED = {"name": "evaluated", "of": "trained", "evaluate": ["data.eval_images=50"]}
SAME = {"name": "same", "of": "trained", "evaluate": ["data.eval_images=50"]}


@pytest.fixture
def file(table_file) -> Path:
    return table_file(rows=[TRAINED, EVALUATED])


ON_CPU = "trainer.accelerator=cpu"


SOME_IMAGES = "+data.eval_images=50"


def test_evaluation_waits_for_the_run_of_its_seed(file: Path) -> None:
    first, *_ = cells_of(file)
    write_run(first)
    _, _, ready, waiting = cells_of(file)
    assert names([ready, waiting]) == ["evaluated seed 0", "evaluated seed 1"]
    assert ready.status == "missing"
    assert ready.waits_for == ""
    assert waiting.status == "waiting"
    assert waiting.waits_for == "trained"


def test_damaged_evaluation_is_missing(file: Path) -> None:
    first, *_ = cells_of(file)
    write_run(first)
    _, _, cell, _ = cells_of(file)
    result = write_evaluation(cell, error=2.0)
    for content, status in (
        (result.read_text(), "done"),
        ("{", "missing"),
        ('{"test": {"error": NaN}}', "missing"),
    ):
        result.write_text(content)
        _, _, cell, _ = cells_of(file)
        assert cell.status == status, content


@pytest.mark.parametrize(("tested", "name"), [("last", "checkpoints/last.ckpt"), (None, "")])
def test_evaluation_uses_the_weights_that_the_run_tested(
    file: Path, tested: str | None, name: str
) -> None:
    training, *_ = cells_of(file)
    directory = write_run(training, weights_tested=tested)
    _, _, cell, _ = cells_of(file)
    overrides = [f"ckpt={directory / name}", ON_CPU, SOME_IMAGES]
    assert cell.command == shlex.join(["capsule-lab", "evaluate", *overrides])
    config = compose("evaluate", overrides)
    assert config.data.eval_images == 50
    assert config.trainer.accelerator == "cpu"


def test_report_names_the_commits_of_trainings_too(file: Path) -> None:
    trainings = [cell for cell in cells_of(file) if isinstance(cell, TrainingCell)]
    for cell in trainings:
        write_run(cell, commit="abc-dirty")
    for cell in cells_of(file)[len(trainings) :]:
        write_evaluation(cell, error=2.0, commit="def")
    entries = [entry for entry in entries_of(file) if entry.row.name == "evaluated"]
    remarks = formats.remarks(entries)
    (several,) = [remark for remark in remarks if "runs of 2 commits" in remark]
    assert "evaluated seed" in several
    (uncommitted,) = [remark for remark in remarks if remark.startswith("uncommitted code")]
    assert uncommitted.endswith("the commit, abc-dirty")


def test_evaluation_trusts_the_packages_of_the_training_configuration(table_file) -> None:
    targets = ["routing._target_=mine.Routing", "optimizer._target_=theirs.Adam"]
    own = {"name": "trained", "overrides": targets}
    with_trust = {**SAME, "evaluate": ["trust=[other]"]}
    file = table_file(rows=[own, EVALUATED, with_trust], seeds=[0])
    _, evaluated, other = cells_of(file)
    assert evaluated.overrides[2:] == ("trust=[mine,theirs]", SOME_IMAGES)
    assert other.overrides[2:] == ("trust=[other]",)


@pytest.mark.parametrize("evaluate", [["data.eval_images=50"], [], ["data=mnist", "split=val"]])
def test_fingerprint_covers_training_and_evaluation(table_file, evaluate: list[str]) -> None:
    """The job runs the command and passes the path of the result in its environment."""
    evaluated = {**EVALUATED, "evaluate": evaluate}
    file = table_file(rows=[TRAINED, evaluated], seeds=[0])
    training, cell = cells_of(file)
    config = compose("train", training.overrides)
    content = {**to_container(config), "evaluate": evaluate}
    assert cell.fingerprint == runs.directories.config_hash(content)
    assert cell.fingerprint != training.fingerprint
    directory = write_run(training)
    _, cell = cells_of(file)
    verify(cell)
    assert cell.job.arguments == ("-m", "capsule_lab", "evaluate", *cell.overrides)
    record = directory / "evaluations" / f"{cell.fingerprint}.json"
    assert cell.job.environment == {protocol.RESULT: str(record)}


def test_evaluations_are_distinct_by_overrides_and_by_training_run(table_file) -> None:
    other = {"name": "other", "overrides": ["data.shift=1"]}
    of_other = {**EVALUATED, "name": "of_other", "of": "other"}
    more = {**EVALUATED, "name": "more", "evaluate": ["data.eval_images=60"]}
    rows = [TRAINED, other, EVALUATED, of_other, more, SAME]
    cells = cells_of(table_file(rows=rows, seeds=[0]))
    assert len(cells) == 6
    rows_of_distinct = [cell.row for cell in distinct(cells)]
    expected = ["trained", "other", "evaluated", "of_other", "more"]
    assert names(rows_of_distinct) == expected


def test_evaluation_takes_the_devices_of_training(table_file) -> None:
    file = table_file(rows=[TRAINED, EVALUATED], seeds=[0])
    _, cell = cells_of(file, ["trainer.devices=2"])
    assert "trainer.devices=2" in cell.overrides
    assert cell.training.job.config.trainer.devices == 2


@needs_studies
def test_networks_trained_in_different_precisions_are_not_mixed_in_a_column(table_file) -> None:
    attacked = {"name": "attacked", "of": "trained", "by": "attack", "evaluate": ["attack=fgsm"]}
    columns = {"it": {"metric": "attack/0.1/accuracy"}}
    file = table_file(rows=[TRAINED, attacked], columns=columns)
    first, second, *_ = cells_of(file)
    write_run(first, precision="32-true")
    write_run(second, precision="bf16-mixed")
    _, _, *evaluations = cells_of(file)
    for cell in evaluations:
        write_evaluation(cell, error=1.0, attack={"0.1/accuracy": 50.0}, precision="32-true")
    message = r"seed 0 .* has precision 32-true, but .* bf16-mixed, evaluated in 32-true"
    with pytest.raises(TableError, match=message):
        entries_of(file)


def write_one_evaluation(file: Path, **of_runs: Any) -> None:
    """Write the runs of both seeds and the evaluation of the first one, with an error of 7.5."""
    first, second, *_ = cells_of(file)
    write_run(first, **of_runs)
    write_run(second, **of_runs)
    _, _, evaluation, _ = cells_of(file)
    write_evaluation(evaluation, error=7.5)


def test_summary_has_the_result_of_the_evaluation_and_the_size_of_its_run(file: Path) -> None:
    write_one_evaluation(file)
    trained, evaluated = entries_of(file)
    assert trained.ours.center == 1.0
    assert evaluated.ours.center == 7.5
    assert evaluated.ours.count == 1
    assert evaluated.state == "1 of 2, 1 missing"
    assert evaluated.shared("parameters") == "1,234"
    assert evaluated.shared("hardware") == "another machine"
    assert evaluated.runs[0].minutes == pytest.approx(6 / 60)
    assert evaluated.minutes is None, "no times of a column with two machines"


def test_evaluation_of_weights_trained_on_a_standin_counts_as_standin(file: Path) -> None:
    write_one_evaluation(file, provenance={"source": "standin", "name": "bundled digits"})
    _, entry = entries_of(file)
    assert entry.row.of
    assert entry.ours is None
    assert entry.standin.center == 7.5


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        (
            "data.eval_image=13",
            "row evaluated: data.eval_image does not exist|did you mean data.eval_images",
        ),
        ("split=tets", "row evaluated: split is 'tets'|expected 'test' or 'val'"),
        ("data.eval_images=many", "row evaluated: data.eval_images is many|expected"),
    ],
    ids=str,
)
def test_wrong_override_trains_nothing(
    cli: Cli, table_file, tmp_path: Path, override: str, parts: str
) -> None:
    file = table_file(rows=[TRAINED, {**EVALUATED, "evaluate": [override]}], seeds=[0])
    ended = cli("sweep", f"table={file}")
    assert ended.status == 2
    assert ended.err.count("\n") == 1
    for part in parts.split("|"):
        assert part in ended.err
    assert list(tmp_path.glob("runs/capsnet-*")) == []


def test_row_without_runs_in_a_column_has_no_evaluations_in_it(table_file) -> None:
    rows = [{"name": "trained", "overrides": {"a": []}}, EVALUATED]
    columns = {
        "a": {"overrides": ["data.shift=1"]},
        "b": {"overrides": ["data.shift=2"]},
    }
    cells = cells_of(table_file(rows=rows, columns=columns, seeds=[0]))
    assert names(cells) == ["trained a seed 0", "evaluated a seed 0"]


def test_evaluations_are_planned_and_reported(cli: Cli, table_file) -> None:
    """Two rows with the same evaluation share it; ``test_sweep.py`` and ``test_scheduler.py`` run and repeat some."""
    file = table_file(rows=[TRAINED, EVALUATED, SAME])
    ended = cli("sweep", f"table={file}", "--dry-run")
    assert ended.out.splitlines()[-1] == "mine: 2 missing, 2 waiting"
    assert "waiting for trained  evaluated seed 0" in ended.out
    assert f"evaluate 'ckpt=???' {ON_CPU} {SOME_IMAGES}" in ended.out
    first, second, *_ = cells_of(file)
    write_run(first)
    write_run(second)
    _, _, first, second, *_ = cells_of(file)
    write_evaluation(first, error=7.0)
    write_evaluation(second, error=8.0)
    ended = cli("report", f"table={file}", "out=.")
    assert (ended.status, ended.err) == (0, "")
    lines = pd.read_csv("mine.csv", index_col="row")
    assert [*lines.index] == ["trained", "evaluated", "same"]
    assert lines["ours"].tolist() == [1.0, 7.5, 7.5]
    assert lines["runs"]["same"] == "2 of 2"


@pytest.mark.parametrize(
    ("measuring", "shown"),
    [
        ([], ["trained", "evaluated", "same", "other"]),
        (["evaluated"], ["trained", "evaluated", "same"]),
        (["other"], ["trained", "other"]),
        (["evaluated", "other"], ["trained", "evaluated", "same", "other"]),
    ],
)
def test_a_column_leaves_out_evaluations_that_measure_something_else(
    table_file, measuring: list[str], shown: list[str]
) -> None:
    """Unless no evaluation has the metric, or one with the same overrides has it."""
    other = {**EVALUATED, "name": "other", "evaluate": ["data.eval_images=60"]}
    second = {**TRAINED, "name": "second", "overrides": ["data.shift=1"]}
    same = {**SAME, "of": "second"}
    columns = {"error": {}, "novel": {"metric": "test/novel/error"}}
    rows = [TRAINED, second, EVALUATED, same, other]
    file = table_file(rows=rows, columns=columns, seeds=[0])
    for cell in distinct(cells_of(file)):
        if not isinstance(cell, EvaluationCell):
            write_run(cell)
    for cell in distinct(cells_of(file)):
        if isinstance(cell, EvaluationCell):
            novel = {"novel/error": 3.0} if cell.row.name in measuring else {}
            write_evaluation(cell, error=2.0, test={"error": 2.0, **novel})
    entries = entries_of(file)
    names_of = {
        column: [entry.row.name for entry in entries if entry.column.name == column]
        for column in columns
    }
    assert names_of["error"] == ["trained", "second", "evaluated", "same", "other"]
    assert [name for name in names_of["novel"] if name != "second"] == shown
