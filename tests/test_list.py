"""The list of runs."""

import json
import os
from pathlib import Path

import pytest

from capsule_lab.config.compose import compose
from capsule_lab.errors import RunError
from capsule_lab.runs import directories, lock
from capsule_lab.runs.results import write_failure
from tests.helpers.commands import TINY, Cli
from tests.helpers.messages import one_sentence
from tests.helpers.tables import RESULT

OVERRIDES = {"finished": ["seed=1"], "running": ["name=mine", "routing=uniform"], "damaged": ["seed=3"]}
FINISHED = {
    **RESULT, "config_hash": "0" * 8, "test": {"error": 4.5}, "val": {"error": 3.25},
    "provenance": {"source": "standin", "name": ""},
}  # fmt: skip


@pytest.fixture
def folders() -> dict[str, Path]:
    """Runs: one that finished in 2023, one that has just begun, and one with a damaged result."""
    found = {}
    for name, overrides in OVERRIDES.items():
        config = compose("train", [*TINY, *overrides])
        found[name] = directories.choose_directory(config, "capsnet-mnist")
        directories.create_directory(found[name], config, overrides)
    (found["damaged"] / "metrics.json").write_text('{"status"')
    (found["finished"] / "metrics.json").write_text(json.dumps(FINISHED))
    os.utime(found["finished"] / "config.yaml", (1_699_960_000, 1_699_960_000))  # noon
    (directories.root() / "reports").mkdir()
    return found


def test_runs_with_their_state_errors_and_overrides(cli: Cli, folders: dict[str, Path]) -> None:
    with lock.train_lock(compose("train", [*TINY, *OVERRIDES["running"]])):
        ended = cli("list")
    assert (ended.status, ended.err) == (0, "")
    warning, *lines = ended.out.splitlines()
    assert warning.startswith(f"{folders['damaged'] / 'metrics.json'} is damaged")
    heading, first, *others = [line.split() for line in lines]
    assert heading == ["run", "state", "test", "error", "val", "error", "data", "last", "written", "overrides"]
    name = folders["finished"].name
    assert first[:-2] == [name, "finished", "4.50", "%", "3.25", "%", "standin", "2023-11-14"]
    assert first[-1] == "seed=1"
    rows = {row[0]: row for row in others}
    assert rows.keys() == {folders[name].name for name in ("running", "damaged")}
    running, damaged = rows[folders["running"].name], rows[folders["damaged"].name]
    assert (running[1], running[-2:]) == ("running", OVERRIDES["running"])
    assert (damaged[1:3], damaged[-1]) == (["not", "finished"], "seed=3")


def test_damaged_results_are_listed_as_not_finished(cli: Cli, folders: dict[str, Path]) -> None:
    for content in ("[]", '{"test": 3, "val": {"error": "low"}, "provenance": []}', "\x00"):
        (folders["damaged"] / "metrics.json").write_text(content)
        ended = cli("list", "contains='seed=3'")
        assert (ended.status, ended.err) == (0, "")
        assert ended.out.splitlines()[2].split()[1:3] == ["not", "finished"]


def test_run_that_failed_is_listed_as_such(cli: Cli, folders: dict[str, Path]) -> None:
    write_failure(folders["running"], RunError("no disk"))
    assert cli("list", "contains=uniform").out.splitlines()[-1].split()[1] == "failed"


def test_run_without_classes_has_its_losses_listed(cli: Cli, folders: dict[str, Path]) -> None:
    losses = {"test": {"copying": 86.4, "loss": 18.4749}, "val": {"loss": 18.4649}}
    (folders["finished"] / "metrics.json").write_text(json.dumps(FINISHED | losses))
    line = next(line for line in cli("list").out.splitlines() if line.startswith(folders["finished"].name))
    assert line.split()[2:6] == ["loss", "18.47", "loss", "18.46"]


@pytest.mark.usefixtures("folders")
def test_list_of_some_runs(cli: Cli) -> None:
    assert [line.split("-")[0] for line in cli("list", "contains=uniform").out.splitlines()[1:]] == ["mine"]
    cli("list")  # warns of the damaged result, once
    assert len(cli("list", "last=1").out.splitlines()) == 2
    assert cli("list", "contains=nothing").out.startswith("no matching runs in ")
    assert "last is 0; expected a whole number, 1 or more" in one_sentence(cli("list", "last=0"))


def test_a_narrow_terminal_shows_names_whole(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, names = ["data.source=standin", "debug=smoke"], []
    for own in (["routing.iterations=1", "callbacks.best=null"], ["routing.iterations=2", "callbacks.last=null"]):
        config = compose("train", [*shared, *own])
        directory = directories.choose_directory(config, "capsnet-mnist")
        directories.create_directory(directory, config, [*shared, *own])
        names.append([directory.name, "not", "finished", *own])
    monkeypatch.setenv("COLUMNS", "80")
    heading, *rows, last = cli("list").out.splitlines()
    assert heading.split() == ["run", "state", "overrides"], "and not when they were last written"
    assert sorted(row.split() for row in rows) == sorted(names)
    assert last == "all runs have data.source=standin debug=smoke"
