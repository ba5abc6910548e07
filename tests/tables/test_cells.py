"""Cells of a table: the runs that a table expands to, and the status of each."""

import inspect
import json
import shlex
from pathlib import Path
from unittest.mock import Mock

import pytest

from capsule_lab import runs
from capsule_lab.commands import compose
from capsule_lab.config.composition import to_container
from capsule_lab.errors import RunError, TableError
from capsule_lab.runs import lock
from capsule_lab.system import protocol
from capsule_lab.tables import expand as expand_module
from capsule_lab.tables.cells import SeededConfig
from capsule_lab.tables.expand import distinct, merged
from tests.helpers.tables import cells_of, names, statuses, write_run

ROWS = [
    {"name": "one", "overrides": ["routing.iterations=1"]},
    {"name": "two", "overrides": ["routing.iterations=2"]},
]


@pytest.fixture
def cells(table_file):
    return cells_of(table_file(rows=ROWS))


def hash_of(overrides) -> str:
    return runs.directories.config_hash(compose("train", overrides))


def test_table_expands_to_a_cell_for_each_row_and_seed(cells) -> None:
    assert names(cells) == ["one seed 0", "one seed 1", "two seed 0", "two seed 1"]
    fingerprints = {cell.fingerprint for cell in cells}
    assert len(fingerprints) == 4


@pytest.mark.parametrize("number", [0, 3])
def test_fingerprint_is_the_hash_of_the_composed_command(cells, number: int) -> None:
    cell = cells[number]
    program, name, *overrides = shlex.split(cell.command)
    assert [program, name] == ["capsule-lab", "train"]
    assert hash_of(overrides) == cell.fingerprint


@pytest.mark.whole
def test_configurations_that_differ_in_values_share_a_composition(table_file, monkeypatch) -> None:
    rows = [*ROWS, {"name": "three", "overrides": ["routing=uniform"]}]
    columns = {
        "a": {},
        "b": {"metric": "val/error"},
        "c": {"overrides": ["data.batch_size=4"]},
    }
    file = table_file(rows=rows, columns=columns)
    counted = Mock(wraps=expand_module.compose)
    monkeypatch.setattr(expand_module, "_composed", inspect.unwrap(expand_module._composed))
    monkeypatch.setattr(expand_module, "compose", counted)
    shared: dict = {}
    cells = cells_of(file, composed=shared)
    cells += cells_of(file, composed=shared, standin=True)
    assert len(cells) == 36
    assert counted.call_count == 2
    by_overrides = {cell.overrides: cell for cell in cells}
    for overrides, cell in by_overrides.items():
        whole = compose("train", overrides)
        assert runs.directories.config_hash(whole) == cell.fingerprint
        assert cell.config == whole
        assert cell.composed.container(cell.seed) == to_container(whole)


@pytest.mark.parametrize("more", [[], ["+trainer.name=x"]], ids=str)
def test_value_may_refer_to_the_seed(table_file, more: list[str]) -> None:
    """With an addition (``+key=value``), too, for which Hydra composes each cell anew."""
    overrides = ["model.class_dim=${seed}", *more]
    for cell in cells_of(table_file(seeds=[3, 5]), overrides):
        container = cell.composed.container(cell.seed)
        assert container["model"]["class_dim"] == cell.seed
        assert cell.config.model.class_dim == cell.seed
        assert hash_of(cell.overrides) == cell.fingerprint


def test_overrides_of_the_command_win_and_reach_every_cell(table_file) -> None:
    columns = {"a": {"overrides": ["data.batch_size=4"]}}
    file = table_file(rows=ROWS, columns=columns)
    cells = cells_of(file, ["routing.iterations=5", "data.batch_size=16"])
    for cell in cells:
        assert cell.config.routing.iterations == 5
        assert cell.config.data.batch_size == 16
    assert len(distinct(cells)) == 2
    without, *_ = cells_of(file, ["~callbacks.progress"])
    assert "progress" not in without.config.callbacks


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ([["a=1", "b=2"], ["a=3"]], ["b=2", "a=3"]),
        ([["model=x", "model.a=1"], ["model=y"]], ["model.a=1", "model=y"]),
        ([["+a.b=1"], ["a.b=2"]], ["a.b=2"]),
        ([["a={b: 1}"], ["a.b=2"], ["a={b: 5}"]], ["a.b=2", "a={b: 5}"]),
        ([["a.b=1"], ["~a.b"]], ["~a.b"]),
        ([["group@package=x"], ["group@package=y"]], ["group@package=y"]),
    ],
)
def test_later_override_of_a_key_replaces_the_earlier_one(
    lists: list[list[str]], expected: list[str]
) -> None:
    assert merged(*lists) == expected


@pytest.mark.parametrize(
    "override",
    [
        "seed=5",
        "ckpt=runs/x",
        "+train.directory=x",
        "train.resume=false",
    ],
)
def test_override_of_a_key_that_the_table_sets_is_refused(table_file, override: str) -> None:
    with pytest.raises(TableError, match=r"^every run has \+?[\w.]+=\S+; leave it out, "):
        cells_of(table_file(), [override])


def test_columns_with_different_metrics_share_one_run(table_file) -> None:
    columns = {
        "all": {},
        "novel": {"metric": "test/novel/error"},
        "train": {"metric": "train/error"},
    }
    cells = cells_of(table_file(columns=columns, seeds=[0]))
    assert (len(cells), len(distinct(cells))) == (3, 1)
    write_run(cells[0], error=4.5)
    assert [cell.value(cell.column.metric) for cell in cells] == [4.5, 2.0, 4.5]


def test_metric_that_was_not_measured_is_an_error_that_names_it(table_file) -> None:
    (cell,) = cells_of(table_file(seeds=[0]))
    write_run(cell)
    message = "has no test/novl; expected one of test/error, test/novel/error, val"
    with pytest.raises(TableError, match=message):
        cell.value("test/novl")


@pytest.mark.parametrize(
    "metric", ["training_seconds", "hardware", "hardware/a", "provenance/name", "classes/images"]
)
def test_part_of_the_record_that_is_no_metric_is_an_error_that_names_metrics(
    table_file, metric: str
) -> None:
    (cell,) = cells_of(table_file(seeds=[0]))
    write_run(cell, classes={"images": {"cat": 3}})
    message = f"has no {metric}; expected one of test/error, test/novel/error, val/error"
    with pytest.raises(TableError, match=message):
        cell.value(metric)


def test_wrong_override_names_its_row(table_file) -> None:
    rows = [{"name": "typo", "overrides": ["model.chanels=1"]}]
    message = r"^row typo: model\.chanels does not exist; did you mean model\.channels\?"
    with pytest.raises(TableError, match=message):
        cells_of(table_file(rows=rows))


def test_cell_without_a_run_is_missing(cells) -> None:
    assert statuses(cells) == ["missing"] * 4
    for cell in cells:
        assert cell.log is None
    first, *_ = cells
    _, _, _, *overrides = first.job.arguments
    expected = [*first.overrides, "train.resume=true"]
    assert overrides == expected, "another sweep may have trained it"


def test_finished_run_is_done(cells) -> None:
    directory = write_run(cells[0])
    assert (cells[0].status, cells[1].status) == ("done", "missing")
    assert cells[0].finished[0] == directory


def test_outcome_is_that_of_a_job_that_ended_since_the_status_was_read(cells) -> None:
    assert cells[0].status == "missing"
    assert cells[0].job.outcome() == "ended without a result"
    write_run(cells[0], error=23.957)
    assert cells[0].job.outcome() == "23.96 %"


def test_latest_of_several_attempts_counts(cells) -> None:
    second = write_run(cells[0], attempt="-2", error=2)
    first = write_run(cells[0], error=1)
    tenth = write_run(cells[0], attempt="-10", error=3)
    assert cells[0].directories == [tenth, second, first]
    assert cells[0].value("test/error") == 3


FAILED = ["failed", "missing", "missing", "missing"]
"""The statuses if the first of four cells failed."""


@pytest.mark.parametrize("damage", [{"status": "failed"}, {"config_hash": "00000000"}], ids=str)
def test_foreign_result_does_not_count(cells, caplog, damage: dict[str, str]) -> None:
    file = write_run(cells[0]) / "metrics.json"
    result = json.loads(file.read_text())
    file.write_text(json.dumps({**result, **damage}))
    assert statuses(cells) == FAILED
    assert cells[0].value("test/error") is None
    assert "is damaged" not in caplog.text


def test_damaged_result_does_not_count(cells, caplog) -> None:
    file = write_run(cells[0]) / "metrics.json"
    file.write_text("{")
    assert statuses(cells) == FAILED
    assert cells[0].value("test/error") is None
    assert f"{file} is damaged" in caplog.text


def test_damaged_curves_have_no_value(cells) -> None:
    cell, *_ = cells
    directory = write_run(cell)
    result = runs.results.read_result(directory, cell.fingerprint)
    of_other_curves = {**result, "curves": "0" * 64}
    runs.files.write_record(directory / "metrics.json", of_other_curves)
    with pytest.raises(TableError, match=r"has no train/error in its metrics\.csv"):
        cell.value("train/error")


def test_failure_is_read_from_the_directory_if_there_is_no_lock_record(cells) -> None:
    cell, *_ = cells
    directory = write_run(cell, status="failed")
    runs.results.write_failure(directory, RunError("no disk"))
    assert cell.failure == "no disk"


def test_failed_cell_has_the_error_and_the_log(cells, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, *_ = cells
    monkeypatch.setenv(protocol.LOG, "somewhere.log")
    config = compose("train", cell.overrides)
    with pytest.raises(RunError), lock.train_lock(config):
        raise RunError("no disk")
    assert statuses(cells) == FAILED
    assert cell.error == "no disk"
    assert cell.log == "somewhere.log"
    assert cell.failure == "no disk (log: somewhere.log)"
    record = lock.LockRecord("1", "x.log", "killed by SIGKILL; its log is x.log")
    lock._write_record(cell.fingerprint, record)
    assert cell.failure == cell.error


def test_run_of_several_processes_is_given_its_directory(table_file) -> None:
    file = table_file(seeds=[0])
    (cell,) = cells_of(file, ["trainer.devices=2"])
    _, _, _, *overrides = cell.job.arguments
    new = Path("runs").absolute() / f"mine-one-{cell.fingerprint}"
    *_, directory, _ = overrides
    assert directory == f"train.directory='{new}'"
    assert hash_of(overrides) == cell.fingerprint
    begun = write_run(cell, status="failed")
    (again,) = cells_of(file, ["trainer.devices=2"])
    *_, directory, resume = again.job.arguments
    assert directory == f"train.directory='{begun}'"
    assert resume == "train.resume=true"


def test_locked_run_is_running(cells) -> None:
    with lock.train_lock(compose("train", cells[0].overrides)):
        assert statuses(cells) == ["running", "missing", "missing", "missing"]


def test_killed_run_has_failed_without_a_message(cells) -> None:
    write_run(cells[0], status="training")
    assert cells[0].status == "failed"
    assert "ended without an error message" in cells[0].error


def test_run_out_of_time_is_paused(cells) -> None:
    """The latest attempt counts, even if an earlier one has an invalid result."""
    first, second, *_ = cells
    write_run(first, status="training")
    directory = write_run(first, attempt="-2")
    (directory / "metrics.json").unlink()
    runs.results.write_pause(directory, 30, 80)
    assert statuses(cells) == ["paused", "missing", "missing", "missing"]
    assert first.described == "paused 37 %"
    assert second.described == "missing"
    assert first.value("test/error") is None


def test_run_that_was_paused_and_then_failed_has_failed(cells) -> None:
    cell, *_ = cells
    directory = write_run(cell, status="training")
    runs.results.write_pause(directory, 30, 80)
    record = lock.LockRecord("1", None, "no disk")
    lock._write_record(cell.fingerprint, record)
    assert cell.status == "failed"
    assert cell.error == "no disk"


def test_row_that_takes_a_result_waits_for_it(table_file) -> None:
    taking = {"name": "two", "overrides": [], "takes": {"optimizer.eps": ["one", "val/error"]}}
    file = table_file(rows=[ROWS[0], taking])
    first, _, waiting, other = cells_of(file)
    assert waiting.status == "waiting"
    assert waiting.waits_for == "one"
    write_run(first, val={"error": 0.125})
    *_, now, still = cells_of(file)
    assert now.status == "missing"
    assert "optimizer.eps=0.125" in now.overrides
    assert now.fingerprint != waiting.fingerprint
    assert still.status == "waiting"
    assert still.fingerprint == other.fingerprint


def test_composition_that_cells_share_keeps_its_seed() -> None:
    shared = SeededConfig(compose("train", ["seed=7"]))
    assert shared.container(3)["seed"] == 3
    assert shared.with_seed(4).seed == 4
    assert shared.config.seed == 7
