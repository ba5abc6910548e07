"""Rows that evaluate the weights of another row: they are expanded, run, retried and reported like trained rows."""

import shlex
from pathlib import Path

import pytest

from capsule_lab import runs
from capsule_lab.config.compose import compose, quoted
from capsule_lab.errors import TableError
from capsule_lab.runs.results import RESULT_VARIABLE
from capsule_lab.tables.expand import distinct, expand, verify
from capsule_lab.tables.reader import read
from capsule_lab.tables.summary import summarise
from tests.helpers.commands import Cli
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
    assert [(cell.name, cell.status, cell.waits_for) for cell in (ready, waiting)] == [
        ("evaluated seed 0", "missing", ""),
        ("evaluated seed 1", "waiting", "trained"),
    ]


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
    assert cell.command == (
        f"python -m capsule_lab.evaluate ckpt={directory / name} trainer.accelerator=cpu +data.eval_images=50"
    )
    config = compose("evaluate", shlex.split(cell.command)[3:])
    assert (config.data.eval_images, config.trainer.accelerator) == (50, "cpu")


def test_evaluation_trusts_the_packages_of_the_training_configuration(table_file) -> None:
    own = {
        "name": "trained",
        "overrides": ["routing._target_=mine.Routing", "optimizer._target_=theirs.Adam"],
    }
    asking = {**SAME, "evaluate": ["trust=[other]"]}
    _, evaluated, asked = expand(read(table_file(rows=[own, EVALUATED, asking], seeds=[0])))
    assert evaluated.overrides[2:] == ("trust=[mine,theirs]", "+data.eval_images=50")
    assert asked.overrides[2:] == ("trust=[other]",)


@pytest.mark.parametrize("evaluate", [["data.eval_images=50"], [], ["data=mnist", "split=val"]])
def test_fingerprint_covers_training_and_evaluation(table_file, evaluate: list[str]) -> None:
    """The job runs the command and passes the path of the result in its environment."""
    file = table_file(rows=[TRAINED, {**EVALUATED, "evaluate": evaluate}], seeds=[0])
    training, cell = expand(read(file))
    config = compose(
        "train", [*training.overrides, f"+evaluate=[{','.join(map(quoted, evaluate))}]"]
    )
    assert runs.directories.config_hash(config) == cell.fingerprint != training.fingerprint
    directory = write_run(training)
    _, cell = expand(read(file))
    verify(cell)
    assert cell.job.arguments == ("-m", "capsule_lab.evaluate", *cell.overrides)
    assert cell.job.environment == {
        RESULT_VARIABLE: str(directory / "evaluations" / f"{cell.fingerprint}.json")
    }


def test_evaluations_are_distinct_by_overrides_and_by_training_run(table_file) -> None:
    other = {"name": "other", "overrides": ["data.shift=1"]}
    of_other = {**EVALUATED, "name": "of_other", "of": "other"}
    more = {**EVALUATED, "name": "more", "evaluate": ["data.eval_images=60"]}
    cells = expand(
        read(table_file(rows=[TRAINED, other, EVALUATED, of_other, more, SAME], seeds=[0]))
    )
    assert len(cells) == 6
    assert [cell.row.name for cell in distinct(cells)] == [
        "trained",
        "other",
        "evaluated",
        "of_other",
        "more",
    ]


def test_evaluation_takes_the_devices_of_training(table_file) -> None:
    _, cell = expand(read(table_file(rows=[TRAINED, EVALUATED], seeds=[0])), ["trainer.devices=2"])
    assert "trainer.devices=2" in cell.overrides
    assert cell.training.job.config.trainer.devices == 2


def test_networks_trained_in_different_precisions_are_not_mixed_in_a_column(table_file) -> None:
    attacked = {"name": "attacked", "of": "trained", "by": "attack", "evaluate": ["attack=fgsm"]}
    file = table_file(rows=[TRAINED, attacked], columns={"it": {"metric": "attack/0.1/accuracy"}})
    for cell, precision in zip(expand(read(file))[:2], ("32-true", "bf16-mixed"), strict=True):
        write_run(cell, precision=precision)
    for cell in expand(read(file))[2:]:
        write_evaluation(cell, error=1.0, attack={"0.1/accuracy": 50.0}, precision="32-true")
    with pytest.raises(
        TableError,
        match=r"seed 0 .* has precision 32-true, but .* bf16-mixed, evaluated in 32-true",
    ):
        summarise(read(file))


def test_summary_has_the_result_of_the_evaluation_and_the_size_of_its_run(file: Path) -> None:
    for cell in expand(read(file))[:2]:
        write_run(cell)
    write_evaluation(expand(read(file))[2], error=7.5)
    trained, evaluated = summarise(read(file))
    assert (trained.ours.center, evaluated.ours.center, evaluated.ours.count) == (1.0, 7.5, 1)
    assert evaluated.state == "1 of 2, 1 missing"
    assert (evaluated.shared("parameters"), evaluated.shared("hardware")) == (
        "1,234",
        "another machine",
    )
    assert evaluated.runs[0].minutes == pytest.approx(6 / 60)
    assert evaluated.minutes is None, "no times of a column with two machines"


def test_evaluation_of_weights_trained_on_a_standin_counts_as_standin(file: Path) -> None:
    write_run(expand(read(file))[0], provenance={"source": "standin", "name": "bundled digits"})
    write_evaluation(expand(read(file))[2], error=7.5)
    (entry,) = [entry for entry in summarise(read(file)) if entry.row.of]
    assert (entry.ours, entry.standin.center) == (None, 7.5)


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
    assert [part for part in parts.split("|") if part not in ended.err] == [], ended.err
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
    for cell, error in zip(expand(read(file))[2:4], (7.0, 8.0), strict=True):
        write_evaluation(cell, error=error)
    ended = cli("report", f"table={file}", "out=.")
    assert (ended.status, ended.err) == (0, "")
    lines = [
        line.split("|")[1:]
        for line in Path("mine.md").read_text().splitlines()
        if line.startswith("| ")
    ][2:]
    assert [line[0].strip() for line in lines] == ["trained", "evaluated", "same"]
    assert lines[1][1:6] == lines[2][1:6] != lines[0][1:6]
    assert lines[1][-2].strip() == "2 of 2"
