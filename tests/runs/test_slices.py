"""A run in several commands with a time limit each, in several places."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from capsule_lab import runs
from capsule_lab.config.compose import compose
from capsule_lab.errors import ConfigError
from capsule_lab.train import train
from tests.helpers.commands import NO_PICTURES, TINY_CNN, Cli
from tests.helpers.interruptions import differences
from tests.helpers.mnist_files import write_mnist
from tests.helpers.training import TimeOver, add_callback, run

RUN = [*TINY_CNN, *NO_PICTURES, "data.source=real", "data.batch_size=10", "data.eval_batch_size=7"]
RUN += ["trainer.accelerator=cpu", "trainer.max_epochs=8"]  # five steps each: 50 images to train on
SLICE = [*RUN, "trainer.max_time=00:01:00:00", "train.resume=true"]
DIFFERS = ("training_seconds", "training_cpu_seconds", "command", "overrides")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A function that changes to a new folder with its own data and runs, and returns the folder of runs."""
    write_mnist(tmp_path / "data", monkeypatch)

    def move_to(name: str) -> Path:
        folder = tmp_path / name
        shutil.copytree(tmp_path / "data", folder / "files")
        monkeypatch.chdir(folder)
        monkeypatch.setenv("CAPSULE_LAB_DATA", str(folder / "files"))
        monkeypatch.setenv("CAPSULE_LAB_RUNS", str(folder / f"runs_{name}"))
        return folder / f"runs_{name}"

    return move_to


@pytest.mark.whole
def test_four_slices_equal_one_run(cli: Cli, monkeypatch: pytest.MonkeyPatch, home: Callable[[str], Path]) -> None:
    whole = home("whole") / "run"
    expected = train(compose("train", RUN), whole)
    before = home("before")
    add_callback(monkeypatch, lambda: TimeOver(11))
    for step, percent in ((11, 27), (22, 55)):
        ended = cli("train", *SLICE)
        assert (ended.status, ended.err) == (0, "")
        *_, last = ended.out.splitlines()
        assert last.startswith(f"PAUSED at step {step} of 40 because the time is over; to continue: ")
        assert last.endswith("train.resume=true")
        (directory,) = before.glob("cnn*")
        assert not (directory / "metrics.json").exists()
        assert f"paused {percent} %" in cli("list").out
    assert list(before.glob("cells/*")) == [], "no lock and no failure is left"
    after = home("after")
    shutil.move(before, after)
    (after / directory.name / "metrics.csv").unlink()  # checkpoints have its rows
    assert "step 33 of 40" in cli("train", *SLICE).out
    ended = cli("train", *SLICE)
    assert "trained     40 of 40 steps" in ended.out
    moved = after / directory.name
    assert [path.name for path in after.glob("cnn*")] == [directory.name]
    assert str(before) not in (moved / "config.yaml").read_text()
    result = json.loads((moved / "metrics.json").read_text())
    assert differences(result, moved, expected, whole) == []
    same, other = ({key: each[key] for key in each if key not in DIFFERS} for each in (result, expected))
    assert same == other
    assert "has finished, there is nothing to resume" in cli("train", *SLICE).out


def test_test_out_of_time_is_repeated_by_the_next_command(tmp_path: Path, home: Callable[[str], Path]) -> None:
    """The run has ten steps and three batches of test images."""
    home("here")
    config = compose("train", [*SLICE, "trainer.max_epochs=2"])
    expected = train(config, tmp_path / "whole")
    pause = {"status": "paused", "steps": 10, "planned_steps": 10}
    for batches, new_steps in ((11, 10), (2, 0)):
        result = run(config, tmp_path / "cut", TimeOver(batches))
        assert result == {**pause, "new_steps": new_steps}
    result = run(config, tmp_path / "cut", TimeOver(8))
    assert differences(result, tmp_path / "cut", expected, tmp_path / "whole") == []
    assert not (tmp_path / "cut" / "status.json").exists()


def test_command_without_time_for_a_step_fails(cli: Cli, home: Callable[[str], Path]) -> None:
    """Otherwise a loop over such commands would never end."""
    root = home("here")
    ended = cli("train", *SLICE, "trainer.max_time={seconds: 0}")
    assert ended.status == 2
    assert ended.err.startswith("capsule_lab: trainer.max_time={'seconds': 0} ran out after ")
    (directory,) = root.glob("cnn*")
    assert runs.results.describe_pause(runs.results.read_pause(directory) or {}) == "paused 0 %"
    assert list((directory / "checkpoints").glob("*")) == []


def test_time_limit_needs_a_callback_that_saves(tmp_path: Path, home: Callable[[str], Path]) -> None:
    home("here")
    with pytest.raises(ConfigError, match=r"^trainer\.max_time is set, but no callback saves the run"):
        train(compose("train", [*SLICE, "callbacks.last=null"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
