import json
import os
import re
import time
from pathlib import Path

import pytest

from capsule_lab.commands import compose
from capsule_lab.errors import RunError
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


@pytest.fixture
def folders() -> dict[str, Path]:
    """Three runs: finished in 2023, just created, and with a damaged result."""
    created = {}
    for name, overrides in OVERRIDES.items():
        config = compose("train", [*TINY, *overrides])
        created[name] = directories.choose_directory(config, "capsnet-mnist")
        directories.create_directory(created[name], config, overrides)
    (created["damaged"] / "metrics.json").write_text('{"status"')
    (created["finished"] / "metrics.json").write_text(json.dumps(FINISHED))
    os.utime(created["finished"] / "config.yaml", (1_699_960_000, 1_699_960_000))  # noon
    (directories.root() / "reports").mkdir()
    return created


def test_list_shows_state_errors_and_overrides(cli: Cli, folders: dict[str, Path]) -> None:
    with lock.train_lock(compose("train", [*TINY, *OVERRIDES["running"]])):
        ended = cli("list")
    assert (ended.status, ended.err) == (0, "")
    warning, *lines = ended.out.splitlines()
    assert warning.startswith(f"{folders['damaged'] / 'metrics.json'} is damaged")
    heading, first, *others = [line.split() for line in lines]
    assert " ".join(heading) == "run state test error val error data last written overrides"
    name = folders["finished"].name
    assert first[:-2] == [name, "finished", "4.50", "%", "3.25", "%", "standin", "2023-11-14"]
    assert first[-1] == "seed=1"
    rows = {row[0]: row for row in others}
    assert len(rows) == 2
    running = rows[folders["running"].name]
    damaged = rows[folders["damaged"].name]
    assert (running[1], running[-2:]) == ("running", OVERRIDES["running"])
    assert (damaged[1:3], damaged[-1]) == (["not", "finished"], "seed=3")


def test_best_of_runs_with_the_same_data_is_marked(cli: Cli, folders: dict[str, Path]) -> None:
    for name, error in (("running", 3.0), ("damaged", 5.0)):
        record = FINISHED | {"val": {"error": error}}
        (folders[name] / "metrics.json").write_text(json.dumps(record))
    lines = cli("list").out.splitlines()
    (marked,) = [line for line in lines[:-1] if " 3.00 % * " in line]
    assert marked.split()[0] == folders["running"].name
    assert lines[-1].startswith("* lowest validation error")
    assert not any(" *" in line for line in cli("list", "last=1").out.splitlines())


def test_heartbeat_tells_running_and_killed_apart(cli: Cli, folders: dict[str, Path]) -> None:
    run = folders["running"]
    results.write_heartbeat(run, 30, 120, 3600.0)
    listed = cli("list", "contains=uniform").out
    assert re.search(r"killed at 25 %, \d\d:\d\d ", listed), "its lock is free on this machine"
    with lock.train_lock(compose("train", [*TINY, *OVERRIDES["running"]])):
        listed = cli("list", "contains=uniform").out
    assert re.search(r"running 25 %, ends .*\d\d:\d\d ", listed)
    beat = json.loads((run / "heartbeat.json").read_text())
    clock_was_set_back = -1e6
    for age, state in (
        (5, "running 25 %"),
        (120, "killed at 25 %"),
        (clock_was_set_back, "killed at 25 %"),
    ):
        other = beat | {"host": "another", "time": time.time() - age}
        (run / "heartbeat.json").write_text(json.dumps(other))
        assert state in cli("list", "contains=uniform").out


def test_failed_run_is_listed_as_failed(cli: Cli, folders: dict[str, Path]) -> None:
    write_failure(folders["running"], RunError("no disk"))
    assert cli("list", "contains=uniform").out.splitlines()[-1].split()[1] == "failed"


def test_losses_of_a_run_without_classes_are_listed(cli: Cli, folders: dict[str, Path]) -> None:
    losses = {"test": {"copying": 86.4, "loss": 18.4749}, "val": {"loss": 18.4649}}
    (folders["finished"] / "metrics.json").write_text(json.dumps(FINISHED | losses))
    rows = [line.split() for line in cli("list").out.splitlines()]
    (row,) = [row for row in rows if row[0] == folders["finished"].name]
    assert row[2:6] == ["loss", "18.47", "loss", "18.46"]


@pytest.mark.usefixtures("folders")
def test_options_filter_the_list(cli: Cli) -> None:
    _, row = cli("list", "contains=uniform").out.splitlines()
    assert row.startswith("mine-")
    cli("list")  # warns of the damaged result, once
    assert len(cli("list", "last=1").out.splitlines()) == 2
    assert cli("list", "contains=nothing").out.startswith("no matching runs in ")
    assert "last is 0; expected a whole number, 1 or more" in one_sentence(cli("list", "last=0"))


def test_names_are_never_cut_on_a_narrow_terminal(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = ["data.source=standin", "debug=smoke"]
    names = []
    for own in (
        ["routing.iterations=1", "callbacks.best=null"],
        ["routing.iterations=2", "callbacks.last=null"],
    ):
        config = compose("train", [*shared, *own])
        directory = directories.choose_directory(config, "capsnet-mnist")
        directories.create_directory(directory, config, [*shared, *own])
        names.append([directory.name, "not", "finished", *own])
    monkeypatch.setenv("COLUMNS", "80")
    heading, *rows, last = cli("list").out.splitlines()
    assert heading.split() == ["run", "state", "overrides"], "without the time of the last change"
    assert sorted(row.split() for row in rows) == sorted(names)
    assert last == "all runs have data.source=standin debug=smoke"
