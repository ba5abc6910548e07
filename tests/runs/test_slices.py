"""A run in several commands with a time limit each, in several places."""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from capsule_lab import runs
from capsule_lab.commands import compose
from capsule_lab.commands.train import train
from capsule_lab.errors import ConfigError
from capsule_lab.system import protocol
from tests.helpers.commands import NO_PICTURES, TINY_CNN, Cli
from tests.helpers.interruptions import differences
from tests.helpers.mnist_files import write_mnist
from tests.helpers.training import TimeOver, add_callback, run

RUN = [
    *TINY_CNN,
    *NO_PICTURES,
    "data.source=real",
    "data.batch_size=10",
    "data.eval_batch_size=7",
    "trainer.accelerator=cpu",
    "trainer.max_epochs=8",  # of five steps each: there are 50 images to train on
]
SLICE = [*RUN, "trainer.max_time=00:01:00:00", "train.resume=true"]
DIFFERS = ("training_seconds", "training_cpu_seconds", "command", "overrides")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A function that changes to a new folder with its own data and runs, and returns the folder of runs."""
    write_mnist(tmp_path / "data", monkeypatch)

    def move_to(name: str) -> Path:
        folder = tmp_path / name
        files = folder / "files"
        own_runs = folder / f"runs_{name}"
        shutil.copytree(tmp_path / "data", files)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("CAPSULE_LAB_DATA", str(files))
        monkeypatch.setenv("CAPSULE_LAB_RUNS", str(own_runs))
        return own_runs

    return move_to


def without(result: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in names}


@pytest.mark.whole
def test_four_slices_equal_one_run(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, home: Callable[[str], Path]
) -> None:
    whole = home("whole") / "run"
    expected = train(compose("train", RUN), whole)
    before = home("before")
    add_callback(monkeypatch, lambda: TimeOver(11))
    for step, percent in ((11, 27), (22, 55)):
        ended = cli("train", *SLICE)
        assert (ended.status, ended.err) == (0, "")
        *_, last = ended.out.splitlines()
        message = f"PAUSED at step {step} of 40 because the time is over; to continue: "
        assert last.startswith(message)
        assert last.endswith("train.resume=true")
        (directory,) = before.glob("cnn*")
        assert not (directory / "metrics.json").exists()
        assert f"paused {percent} %" in cli("list").out
    left = list(before.glob("cells/*"))
    assert left == [], "no lock and no failure"
    after = home("after")
    shutil.move(before, after)
    moved = after / directory.name
    (moved / "metrics.csv").unlink()  # checkpoints have its rows
    assert "step 33 of 40" in cli("train", *SLICE).out
    ended = cli("train", *SLICE)
    assert "trained     40 of 40 steps" in ended.out
    assert list(after.glob("cnn*")) == [moved]
    assert str(before) not in (moved / "config.yaml").read_text()
    result = json.loads((moved / "metrics.json").read_text())
    assert differences(result, moved, expected, whole) == []
    assert without(result, DIFFERS) == without(expected, DIFFERS)
    assert "has finished, there is nothing to resume" in cli("train", *SLICE).out


@pytest.mark.whole
def test_test_out_of_time_is_repeated_by_the_next_command(
    tmp_path: Path, home: Callable[[str], Path]
) -> None:
    """The run has ten steps and three batches of test images."""
    home("here")
    whole = tmp_path / "whole"
    cut = tmp_path / "cut"
    config = compose("train", [*SLICE, "trainer.max_epochs=2"])
    expected = train(config, whole)
    pause = {"status": "paused", "steps": 10, "planned_steps": 10}
    for batches, new_steps in ((11, 10), (2, 0)):
        result = run(config, cut, TimeOver(batches))
        assert result == {**pause, "new_steps": new_steps}
    result = run(config, cut, TimeOver(8))
    assert differences(result, cut, expected, whole) == []
    assert not (cut / "status.json").exists()


TESTED = ["train.test=last", "trainer.max_epochs=2"]  # ten steps


OF_A_PAUSE = {
    "status": "paused",
    "steps": 7,
    "planned_steps": 10,
    "tested_step": 7,
    "weights_tested": "last",
}


def test_run_out_of_time_is_tested_and_continues_exactly(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, home: Callable[[str], Path]
) -> None:
    """With ``train.test=last``; the test of the paused run is in its status only, with the steps that it had."""
    config = compose("train", [*RUN, *TESTED])
    whole = home("whole") / "run"
    expected = train(config, whole)
    root = home("cut")
    add_callback(monkeypatch, lambda: TimeOver(7))
    ended = cli("train", *SLICE, *TESTED)
    assert (ended.status, ended.err) == (0, "")
    (directory,) = root.glob("cnn*")
    status = json.loads((directory / "status.json").read_text())
    error = f"{status['test']['error']:.2f} %"
    assert "PAUSED at step 7 of 10 because the time is over; to continue: " in ended.out
    constant = f"{status['classes']['constant_error']:.2f} %"
    always = f"(always answering the most frequent class: {constant})"
    assert f"test error {error} {always}  (last weights; at step 7 of 10)" in ended.out
    trained = "trained     7 of 10 steps, 70 images, in 0.0 min, ended by trainer.max_time; "
    assert trained in ended.out
    assert "            status.json, metrics.csv, checkpoints" in ended.out
    assert "try next" not in ended.out

    assert OF_A_PAUSE.items() <= status.items()
    facts = {"provenance", "commit", "hardware", "image_counts", "config_hash"}
    assert facts <= status.keys()
    last = runs.open(directory / "checkpoints" / "last.ckpt")
    assert last.step == 7
    rows = cli("list").out.splitlines()
    (row,) = [row for row in rows if row.startswith(directory.name)]
    assert f"paused 70 %  {error} (at step 7 of 10)" in row
    assert not (directory / "metrics.json").exists()
    assert "test/error" not in (directory / "metrics.csv").read_text()
    assert runs.select_run.finished_run(config) is None, "no table shows it"

    # three steps and two batches of the test, which is completed
    add_callback(monkeypatch, lambda: TimeOver(5))
    ended = cli("train", *SLICE, *TESTED)
    assert "trained     10 of 10 steps" in ended.out
    result = json.loads((directory / "metrics.json").read_text())
    assert differences(result, directory, expected, whole) == []
    assert not (directory / "status.json").exists()


PAUSED_AT_7 = {"status": "paused", "steps": 7, "planned_steps": 10, "new_steps": 7}


@pytest.mark.parametrize("which", ["best", "none"])
def test_run_out_of_time_is_tested_only_if_its_last_weights_are(
    tmp_path: Path, home: Callable[[str], Path], which: str
) -> None:
    home("here")
    config = compose("train", [*SLICE, *TESTED, f"train.test={which}"])
    result = run(config, tmp_path / "run", TimeOver(7))
    assert result == PAUSED_AT_7


def test_run_is_not_tested_at_the_end_of_a_sweeps_budget(
    tmp_path: Path, home: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next command of the sweep continues it."""
    home("here")
    deadline = time.time() + 60
    monkeypatch.setenv(protocol.DEADLINE, str(deadline))
    config = compose("train", [*SLICE, *TESTED])
    result = run(config, tmp_path / "run", TimeOver(7))
    assert result == PAUSED_AT_7


def test_time_over_after_the_last_step_is_a_finished_run(
    tmp_path: Path, home: Callable[[str], Path]
) -> None:
    home("here")
    config = compose("train", [*SLICE, *TESTED])
    result = run(config, tmp_path / "run", TimeOver(10))
    assert result["status"] == "finished"
    assert result["steps"] == 10
    assert result["stopped_by"] == "steps"


def test_multirun_lists_the_test_of_a_paused_run(home: Callable[[str], Path]) -> None:
    home("here")
    config = compose("train", [*RUN, *TESTED])
    directory = runs.directories.choose_directory(config, "cnn-mnist")
    directory.mkdir(parents=True)
    tested = {
        "test": {"error": 12.5},
        "image_counts": {"test": 7, "test_set": 20},
        "training_seconds": 90.0,
    }
    runs.results.write_pause(directory, 7, 10, tested)
    table, finished = runs.summary.listed(["seed=0"], [config])
    assert finished == [False]
    assert "seed=0  12.50 % (7 of 20 images, at step 7 of 10)  1.5 " in table


def test_command_without_time_for_a_step_fails(cli: Cli, home: Callable[[str], Path]) -> None:
    """Otherwise a loop over such commands would never end."""
    root = home("here")
    ended = cli("train", *SLICE, "trainer.max_time={seconds: 0}")
    assert ended.status == 2
    assert ended.err.startswith("capsule_lab: trainer.max_time={'seconds': 0} ran out after ")
    (directory,) = root.glob("cnn*")
    pause = runs.results.read_pause(directory)
    assert pause is not None
    assert runs.results.describe_pause(pause) == "paused 0 %"
    checkpoints = directory / "checkpoints"
    assert list(checkpoints.glob("*")) == []


def test_time_limit_needs_a_callback_that_saves(
    tmp_path: Path, home: Callable[[str], Path]
) -> None:
    home("here")
    config = compose("train", [*SLICE, "callbacks.last=null"])
    message = r"^trainer\.max_time is set, but no callback saves the run"
    with pytest.raises(ConfigError, match=message):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
