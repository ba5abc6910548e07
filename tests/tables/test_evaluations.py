"""Rows that evaluate the weights of another row: they are expanded, run, retried and reported like trained rows."""

import shlex
from pathlib import Path

import pandas as pd
import pytest

from capsule_lab import runs
from capsule_lab.commands import compose
from capsule_lab.commands.tables import read_table as read
from capsule_lab.config.composition import to_container
from capsule_lab.errors import TableError
from capsule_lab.system import protocol
from capsule_lab.tables.expand import distinct, expand, verify
from capsule_lab.tables.summary import summarise
from tests.helpers.commands import Cli
from tests.helpers.extensions import needs_studies
from tests.helpers.tables import names, write_evaluation, write_run

TRAINED = {"name": "trained", "overrides": []}
EVALUATED = {"name": "evaluated", "of": "trained", "evaluate": ["data.eval_images=50"]}
SAME = {"name": "same", "of": "trained", "evaluate": ["data.eval_images=50"]}


@pytest.fixture
def file(table_file) -> Path:
    return table_file(rows=[TRAINED, EVALUATED])


def test_evaluation_waits_for_the_run_of_its_seed(file: Path) -> None:
    first, *_ = expand(read(file))
    write_run(first)
    _, _, ready, waiting = expand(read(file))
    assert names([ready, waiting]) == ["evaluated seed 0", "evaluated seed 1"]
    assert (ready.status, ready.waits_for) == ("missing", "")
    assert (waiting.status, waiting.waits_for) == ("waiting", "trained")


def test_damaged_evaluation_is_missing(file: Path) -> None:
    first, *_ = expand(read(file))
    write_run(first)
    _, _, cell, _ = expand(read(file))
    result = write_evaluation(cell, error=2.0)
    for content, status in (
        (result.read_text(), "done"),
        ("{", "missing"),
        ('{"test": {"error": NaN}}', "missing"),
    ):
        result.write_text(content)
        _, _, cell, _ = expand(read(file))
        assert cell.status == status, content


@pytest.mark.parametrize(("tested", "name"), [("last", "checkpoints/last.ckpt"), (None, "")])
def test_evaluation_uses_the_weights_that_the_run_tested(
    file: Path, tested: str | None, name: str
) -> None:
    directory = write_run(expand(read(file))[0], weights_tested=tested)
    _, _, cell, _ = expand(read(file))
    overrides = [f"ckpt={directory / name}", "trainer.accelerator=cpu", "+data.eval_images=50"]
    assert cell.command == shlex.join(["capsule-lab", "evaluate", *overrides])
    config = compose("evaluate", overrides)
    assert config.data.eval_images == 50
    assert config.trainer.accelerator == "cpu"


def test_evaluation_trusts_the_packages_of_the_training_configuration(table_file) -> None:
    targets = ["routing._target_=mine.Routing", "optimizer._target_=theirs.Adam"]
    own = {"name": "trained", "overrides": targets}
    asking = {**SAME, "evaluate": ["trust=[other]"]}
    file = table_file(rows=[own, EVALUATED, asking], seeds=[0])
    _, evaluated, asked = expand(read(file))
    assert evaluated.overrides[2:] == ("trust=[mine,theirs]", "+data.eval_images=50")
    assert asked.overrides[2:] == ("trust=[other]",)


@pytest.mark.parametrize("evaluate", [["data.eval_images=50"], [], ["data=mnist", "split=val"]])
def test_fingerprint_covers_training_and_evaluation(table_file, evaluate: list[str]) -> None:
    """The job runs the command and passes the path of the result in its environment."""
    file = table_file(rows=[TRAINED, {**EVALUATED, "evaluate": evaluate}], seeds=[0])
    training, cell = expand(read(file))
    content = {**to_container(compose("train", training.overrides)), "evaluate": evaluate}
    assert runs.directories.config_hash(content) == cell.fingerprint != training.fingerprint
    directory = write_run(training)
    _, cell = expand(read(file))
    verify(cell)
    assert cell.job.arguments == ("-m", "capsule_lab", "evaluate", *cell.overrides)
    record = directory / "evaluations" / f"{cell.fingerprint}.json"
    assert cell.job.environment == {protocol.RESULT: str(record)}


def test_evaluations_are_distinct_by_overrides_and_by_training_run(table_file) -> None:
    other = {"name": "other", "overrides": ["data.shift=1"]}
    of_other = {**EVALUATED, "name": "of_other", "of": "other"}
    more = {**EVALUATED, "name": "more", "evaluate": ["data.eval_images=60"]}
    rows = [TRAINED, other, EVALUATED, of_other, more, SAME]
    cells = expand(read(table_file(rows=rows, seeds=[0])))
    assert len(cells) == 6
    rows_of_distinct = [cell.row for cell in distinct(cells)]
    assert names(rows_of_distinct) == ["trained", "other", "evaluated", "of_other", "more"]


def test_evaluation_takes_the_devices_of_training(table_file) -> None:
    _, cell = expand(read(table_file(rows=[TRAINED, EVALUATED], seeds=[0])), ["trainer.devices=2"])
    assert "trainer.devices=2" in cell.overrides
    assert cell.training.job.config.trainer.devices == 2


@needs_studies
def test_networks_trained_in_different_precisions_are_not_mixed_in_a_column(table_file) -> None:
    attacked = {"name": "attacked", "of": "trained", "by": "attack", "evaluate": ["attack=fgsm"]}
    file = table_file(rows=[TRAINED, attacked], columns={"it": {"metric": "attack/0.1/accuracy"}})
    first, second, *_ = expand(read(file))
    write_run(first, precision="32-true")
    write_run(second, precision="bf16-mixed")
    for cell in expand(read(file))[2:]:
        write_evaluation(cell, error=1.0, attack={"0.1/accuracy": 50.0}, precision="32-true")
    message = r"seed 0 .* has precision 32-true, but .* bf16-mixed, evaluated in 32-true"
    with pytest.raises(TableError, match=message):
        summarise(read(file))


def test_summary_has_the_result_of_the_evaluation_and_the_size_of_its_run(file: Path) -> None:
    for cell in expand(read(file))[:2]:
        write_run(cell)
    write_evaluation(expand(read(file))[2], error=7.5)
    trained, evaluated = summarise(read(file))
    assert trained.ours.center == 1.0
    assert evaluated.ours.center == 7.5
    assert evaluated.ours.count == 1
    assert evaluated.state == "1 of 2, 1 missing"
    assert evaluated.shared("parameters") == "1,234"
    assert evaluated.shared("hardware") == "another machine"
    assert evaluated.runs[0].minutes == pytest.approx(6 / 60)
    assert evaluated.minutes is None, "no times of a column with two machines"


def test_evaluation_of_weights_trained_on_a_standin_counts_as_standin(file: Path) -> None:
    write_run(expand(read(file))[0], provenance={"source": "standin", "name": "bundled digits"})
    write_evaluation(expand(read(file))[2], error=7.5)
    _, entry = summarise(read(file))
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
    columns = {"a": {"overrides": ["data.shift=1"]}, "b": {"overrides": ["data.shift=2"]}}
    cells = expand(read(table_file(rows=rows, columns=columns, seeds=[0])))
    assert names(cells) == ["trained a seed 0", "evaluated a seed 0"]


def test_evaluations_are_planned_and_reported(cli: Cli, table_file) -> None:
    """Two rows with the same evaluation share it; ``test_sweep.py`` and ``test_scheduler.py`` run and repeat some."""
    file = table_file(rows=[TRAINED, EVALUATED, SAME])
    ended = cli("sweep", f"table={file}", "--dry-run")
    assert ended.out.splitlines()[-1] == "mine: 2 missing, 2 waiting"
    assert "waiting for trained  evaluated seed 0" in ended.out
    assert "evaluate 'ckpt=???' trainer.accelerator=cpu +data.eval_images=50" in ended.out
    for cell in expand(read(file))[:2]:
        write_run(cell)
    _, _, first, second, *_ = expand(read(file))
    write_evaluation(first, error=7.0)
    write_evaluation(second, error=8.0)
    ended = cli("report", f"table={file}", "out=.")
    assert (ended.status, ended.err) == (0, "")
    lines = pd.read_csv("mine.csv", index_col="row")
    assert [*lines.index] == ["trained", "evaluated", "same"]
    assert lines["ours"].tolist() == [1.0, 7.5, 7.5]
    assert lines["runs"]["same"] == "2 of 2"
