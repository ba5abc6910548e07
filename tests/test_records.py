"""Recorded commands compose today to the very configurations that were recorded: names keep their meaning.

Where options were added or renamed since, so that the hash is another, the record says so: ``config_hash_now`` and
``config_hash_note``. Where a name was given to another network, ``command`` is what composes to the recorded one, and
``command_at_commit`` what was typed.
"""

from __future__ import annotations

import csv
import functools
import json
import re
import shlex
import tarfile
from dataclasses import dataclass

import pytest
from omegaconf import DictConfig, OmegaConf

from capsule_lab.config.compose import compose
from capsule_lab.runs.directories import config_hash
from tests.helpers.commands import ROOT

RESULTS = ROOT / "results"
TRAIN = "python -m capsule_lab.train "
OTHER_HASH_NOW = {  # files of runs before the hash left out options that were added later
    *("affnist_capsnet.json", "affnist_cnn.json", "em_mnist_hour.json", "em_smallnorb_hour.json", "mnist_hour.json"),
    *("multimnist_capsnet.json", "multimnist_cnn.json", "smallnorb_standin.csv"),
    *("learning_cross_validation.csv", "sabour2017_table1_2_epochs_runs.csv"),
}
SUBSTITUTED = ("seed", "data.validation_fold")
"""Numbers that are put into a configuration which was composed without them: composing costs a tenth of a second."""


@dataclass(frozen=True)
class Record:
    """A line of a CSV, or a JSON, with a command."""

    file: str
    content: dict[str, str]

    @property
    def command(self) -> str:
        return self.content["command"]

    @property
    def directory(self) -> str:
        return self.content.get("directory") or ""

    @property
    def recorded_hash(self) -> str:
        in_name = re.search(r"-([0-9a-f]{8})(-\d+)?$", self.directory)
        return self.content.get("config_hash") or (in_name[1] if in_name else "")

    @property
    def has_result(self) -> bool:
        return self.content.get("status", "done") in ("done", "finished")


@functools.cache
def records() -> list[Record]:
    found = []
    for file in sorted(RESULTS.glob("*.csv")):
        with file.open(newline="") as lines:
            found += [Record(file.name, row) for row in csv.DictReader(lines) if row.get("command")]
    for file in sorted(RESULTS.glob("*.json")):
        found.append(Record(file.name, json.loads(file.read_text())))
    return found


def trainings() -> list[Record]:
    return [record for record in records() if record.command.startswith(TRAIN) and record.has_result]


@functools.cache
def composed(overrides: tuple[str, ...]) -> DictConfig:
    return compose("train", overrides)


def hash_today(command: str) -> str:
    overrides = dict(each.split("=", 1) for each in shlex.split(command.removeprefix(TRAIN)))
    numbers = {key: int(overrides.pop(key)) for key in SUBSTITUTED if key in overrides}
    config = composed(tuple(f"{key}={value}" for key, value in overrides.items())).copy()
    for key, number in numbers.items():
        OmegaConf.update(config, key, number)
    return config_hash(config)


@pytest.mark.parametrize("file", sorted({record.file for record in trainings()}))
def test_recorded_commands_compose_to_the_recorded_configurations(file: str) -> None:
    own = {(each.command, each.content.get("config_hash_now") or each.recorded_hash): each for each in trainings()}
    wrong = {
        command: f"recorded {expected or 'no hash'}, composes to {today}"
        for (command, expected), record in own.items()
        if record.file == file and (today := hash_today(command)) != expected
    }
    assert wrong == {}


def test_other_hashes_are_few_and_have_a_reason() -> None:
    others = [record for record in trainings() if record.content.get("config_hash_now")]
    assert {record.file for record in others} == OTHER_HASH_NOW
    assert all(record.content["config_hash_note"] for record in others)
    assert all(record.content["config_hash_now"] != record.recorded_hash for record in others)
    renamed = {record.content["command_at_commit"] for record in others if record.content.get("command_at_commit")}
    assert {re.search(r"experiment=(\w+)", command)[1] for command in renamed} == {"smallnorb_hour", "viewpoints_small"}


@functools.cache
def other_commands() -> list[tuple[str, ...]]:
    """Those that do not train, with their overrides, but for the files of weights."""
    found = set()
    for record in records():
        command, *overrides = shlex.split(record.command.removeprefix("python -m capsule_lab."))
        weights = ("ckpt=", "source=", "baseline=")
        found.add((command, *(each for each in overrides if not each.startswith(weights))))
    return sorted(each for each in found if each[0] != "train")


@pytest.mark.parametrize("command", ["analyse", "attack", "bench", "evaluate"])
def test_other_recorded_commands_compose(command: str) -> None:
    assert {name for name, *_ in other_commands()} == {"analyse", "attack", "bench", "evaluate"}
    for name, *overrides in other_commands():
        if name == command:
            compose(name, overrides)


def test_evaluations_are_of_recorded_trainings() -> None:
    trained = {record.recorded_hash for record in trainings()}
    evaluated = [record for record in records() if " ckpt=" in record.command and record.directory]
    assert len(evaluated) > 100
    for record in evaluated:
        assert f"/{record.directory}/" in record.command
        assert record.recorded_hash in trained, record


@pytest.mark.parametrize("name", ["routing_algorithms", "time_to_accuracy"])
def test_archived_configurations_have_the_hash_in_their_names(name: str) -> None:
    with tarfile.open(RESULTS / f"{name}_runs.tar.gz") as archive:
        files = sorted(each for each in archive.getnames() if each.endswith("/config.yaml"))
        for file in files[::15]:
            content = archive.extractfile(file)
            assert content
            config = OmegaConf.create(content.read().decode())
            assert isinstance(config, DictConfig)
            assert file.partition("/")[0].endswith(config_hash(config))
