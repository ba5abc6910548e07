import json
import os
import re
import shlex
import shutil
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from capsule_lab.commands import compose, tables
from capsule_lab.commands.tables import read_table
from capsule_lab.errors import InterruptError, RunError
from capsule_lab.runs import directories, lock, results
from capsule_lab.runs.results import write_failure
from tests.helpers.commands import TINY, Cli
from tests.helpers.messages import one_sentence
from tests.helpers.tables import RESULT

OVERRIDES = {
    "finished": ["seed=1"],
    "running": ["name=mine", "routing=uniform"],
    "damaged": ["seed=3"],
}
FINISHED = {
    **RESULT,
    "config_hash": "0" * 8,
    "test": {"error": 4.5},
    "val": {"error": 3.25},
    "provenance": {"source": "standin", "name": ""},
}


NOON = 1_699_960_000
"""14 November 2023, in seconds."""


UNIFORM = "contains=uniform"
"""Lists the run with ``routing=uniform`` alone."""


@pytest.fixture
def folders() -> dict[str, Path]:
    """Three runs: finished in 2023, just created, and with a damaged result."""
    created = {}
    for name, overrides in OVERRIDES.items():
        config = compose("train", [*TINY, *overrides])
        created[name] = directories.choose_directory(config, "capsnet-mnist")
        directories.create_directory(created[name], config, overrides)
    (created["damaged"] / "metrics.json").write_text('{"status"')
    write_result(created["finished"], FINISHED)
    os.utime(created["finished"] / "config.yaml", (NOON, NOON))
    (directories.root() / "reports").mkdir()
    return created


def write_result(directory: Path, result: dict[str, Any]) -> None:
    (directory / "metrics.json").write_text(json.dumps(result))


def lock_of_the_running() -> AbstractContextManager[None]:
    config = compose("train", [*TINY, *OVERRIDES["running"]])
    return lock.train_lock(config)


def rows_of(lines: list[str]) -> dict[str, list[str]]:
    """The words of each line after the first, by the first."""
    rows = {}
    for line in lines:
        name, *words = line.split()
        rows[name] = words
    return rows


def test_list_shows_state_errors_and_overrides(cli: Cli, folders: dict[str, Path]) -> None:
    with lock_of_the_running():
        ended = cli("list")
    assert (ended.status, ended.err) == (0, "")
    warning, heading, first, *others = ended.out.splitlines()
    damaged_result = folders["damaged"] / "metrics.json"
    assert warning.startswith(f"{damaged_result} is damaged")
    columns = " ".join(heading.split())
    assert columns == "run state test error val error data last written overrides"
    name, *finished, overrides = first.split()
    assert name == folders["finished"].name
    assert finished == ["finished", "4.50", "%", "3.25", "%", "standin", "2023-11-14"]
    assert overrides == "seed=1"
    rows = rows_of(others)
    assert len(rows) == 2
    running = rows[folders["running"].name]
    assert running[0] == "running"
    assert running[-2:] == OVERRIDES["running"]
    damaged = rows[folders["damaged"].name]
    assert damaged[:2] == ["not", "finished"]
    assert damaged[-1] == "seed=3"


def test_best_of_runs_with_the_same_data_is_marked(cli: Cli, folders: dict[str, Path]) -> None:
    for name, error in (("running", 3.0), ("damaged", 5.0)):
        write_result(folders[name], {**FINISHED, "val": {"error": error}})
    *lines, note = cli("list").out.splitlines()
    (marked,) = [line for line in lines if " 3.00 % * " in line]
    assert marked.startswith(folders["running"].name)
    assert note.startswith("* lowest validation error")
    assert " *" not in cli("list", "last=1").out


def started_from(source: str, **more: Any) -> dict[str, Any]:
    """The record of a run on real data that began with weights of data from ``source``."""
    data = {"source": source, "name": "other digits"}
    start = {"name": "before/best.ckpt", "file": "best.ckpt", "data": data}
    return {**FINISHED, "provenance": RESULT["provenance"], "start_from": start, **more}


def test_weights_of_the_start_are_in_the_column_of_the_data(
    cli: Cli, folders: dict[str, Path]
) -> None:
    older = started_from("real")
    older["start_from"] = {"file": "weights.pth", "data": None}
    for name, result in {
        "finished": started_from("standin"),
        "running": started_from("real"),
        "damaged": older,
    }.items():
        write_result(folders[name], result)
    listed = cli("list").out
    for text in (
        "before/best.ckpt (stand-in)",
        "before/best.ckpt (real)",
        "weights.pth (unknown data)",
    ):
        assert listed.count(f" real, started from {text} ") == 1


def test_run_that_began_with_a_standin_is_not_the_best_of_those_that_did_not(
    cli: Cli, folders: dict[str, Path]
) -> None:
    write_result(folders["finished"], started_from("standin", val={"error": 1.0}))
    for name, error in (("running", 3.0), ("damaged", 5.0)):
        write_result(folders[name], started_from("real", val={"error": error}))
    *lines, _ = cli("list").out.splitlines()
    (marked,) = [line for line in lines if " % * " in line]
    assert marked.startswith(folders["running"].name)


def test_heartbeat_tells_running_and_killed_apart(cli: Cli, folders: dict[str, Path]) -> None:
    run = folders["running"]
    results.write_heartbeat(run, 30, 120, 3600.0)
    listed = cli("list", UNIFORM).out
    assert re.search(r"killed at 25 %, \d\d:\d\d ", listed), "its lock is free on this machine"
    with lock_of_the_running():
        listed = cli("list", UNIFORM).out
    assert re.search(r"running 25 %, ends .*\d\d:\d\d ", listed)


def test_only_the_latest_run_of_a_configuration_is_running(
    cli: Cli, folders: dict[str, Path]
) -> None:
    """All its runs have the same lock, except those that continue another configuration."""
    first = folders["running"]
    write_failure(first, InterruptError("stopped", 15))
    continued = first.with_name(f"{first.name}-continued")
    second = first.with_name(f"{first.name}-2")
    for directory in (continued, second):
        directory.mkdir()
        shutil.copy(first / "config.yaml", directory)
        results.write_heartbeat(directory, 30, 120, 3600.0)
    with lock_of_the_running():
        rows = rows_of(cli("list").out.splitlines())
    states = {directory: rows[directory.name][0] for directory in (first, continued, second)}
    assert states == {first: "interrupted", continued: "killed", second: "running"}


@pytest.mark.parametrize(
    ("age", "state"),
    [
        pytest.param(5, "running 25 %", id="recent"),
        pytest.param(120, "killed at 25 %", id="old"),
        pytest.param(-1e6, "killed at 25 %", id="clock was set back"),
    ],
)
def test_age_of_a_heartbeat_of_another_machine_decides(
    cli: Cli, folders: dict[str, Path], age: float, state: str
) -> None:
    run = folders["running"]
    results.write_heartbeat(run, 30, 120, 3600.0)
    file = run / "heartbeat.json"
    beat = json.loads(file.read_text())
    beat["host"] = "another"
    beat["time"] = time.time() - age
    file.write_text(json.dumps(beat))
    assert state in cli("list", UNIFORM).out


def test_failed_run_is_listed_as_failed(cli: Cli, folders: dict[str, Path]) -> None:
    write_failure(folders["running"], RunError("no disk"))
    _, row = cli("list", UNIFORM).out.splitlines()
    assert row.split()[1] == "failed"


def test_losses_of_a_run_without_classes_are_listed(cli: Cli, folders: dict[str, Path]) -> None:
    losses = {"test": {"copying": 86.4, "loss": 18.4749}, "val": {"loss": 18.4649}}
    write_result(folders["finished"], {**FINISHED, **losses})
    rows = rows_of(cli("list").out.splitlines())
    row = rows[folders["finished"].name]
    assert row[1:5] == ["loss", "18.47", "loss", "18.46"]


@pytest.mark.usefixtures("folders")
def test_options_filter_the_list(cli: Cli) -> None:
    _, row = cli("list", UNIFORM).out.splitlines()
    assert row.startswith("mine-")
    cli("list")  # warns of the damaged result, once
    heading_and_row = cli("list", "last=1").out.splitlines()
    assert len(heading_and_row) == 2
    assert cli("list", "contains=nothing").out.startswith("no matching runs in ")
    refused = one_sentence(cli("list", "last=0"))
    assert "last is 0; expected a whole number, 1 or more" in refused


LONG = [
    [
        "routing.iterations=1",
        "callbacks.best=null",
        "data.eval_images=100",
        "data.batch_size=77",
    ],
    [
        "routing.iterations=2",
        "callbacks.last=null",
        "data.eval_images=200",
        "data.batch_size=99",
    ],
]


def created_with(overrides: list[str]) -> Path:
    config = compose("train", overrides)
    directory = directories.choose_directory(config, "capsnet-mnist")
    directories.create_directory(directory, config, overrides)
    return directory


@pytest.mark.parametrize("width", [80, 130])
def test_columns_stay_and_overrides_are_cut_to_the_terminal(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    shared = ["data.source=standin", "debug=smoke"]
    names = []
    for own in LONG:
        directory = created_with([*shared, *own])
        write_result(directory, FINISHED)
        names.append(directory.name)
    monkeypatch.setenv("COLUMNS", str(width))
    heading, group, *lines = cli("list").out.splitlines()
    assert group == "all runs have data.source=standin debug=smoke"
    columns = ["run", "state", "test", "error", "val", "error", "data", "last", "written"]
    assert heading.split()[: len(columns)] == columns
    assert max(map(len, lines)) <= width
    rows = rows_of(lines)
    shown_lines = [line for line in lines if "iterations" in line]
    for name, own, shown in zip(names, LONG, shown_lines, strict=True):
        assert rows[name][:4] == ["finished", "4.50", "%", "3.25"]
        if width == 80:
            text = " ".join(own)
            assert shown == f"  {text[:77]}…"
        else:
            assert shown.endswith("…"), "beside the columns"
            assert shown.startswith(name)
    monkeypatch.setenv("COLUMNS", "200")
    listed = cli("list").out
    for own in LONG:
        assert " ".join(own) in listed


def test_runs_of_a_table_are_under_its_name_with_the_names_of_their_rows(cli: Cli) -> None:
    table = read_table("smoke")
    of_row = {}
    for row in table.rows:
        for seed in (0, 1):
            own = [*row.overrides[""], "trainer.max_steps=7", f"seed={seed}"]
            directory = created_with([*table.base, *own])
            of_row[directory.name] = [f"{row.name}:", f"seed={seed}"]
    overrides = [*table.base[:3], "data.batch_size=4", "seed=1"]
    by_hand = created_with(overrides)
    os.utime(by_hand / "config.yaml", (NOON, NOON))
    _, others, first, group, *lines = cli("list").out.splitlines()
    assert others == "other runs"
    assert first.endswith(shlex.join(overrides))
    assert group == "runs of table smoke have trainer.max_steps=7"
    rows = rows_of(lines)
    assert rows.keys() == of_row.keys()
    for name, words in of_row.items():
        assert rows[name][-2:] == words


def test_table_that_cannot_be_read_does_not_end_the_list(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text("rows: [seed=1")
    monkeypatch.setattr(tables, "sweeps_dir", lambda: tmp_path)
    directory = created_with(["seed=1"])
    _, first, *_ = cli("list").out.splitlines()
    assert first.startswith(directory.name)
