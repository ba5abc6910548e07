"""Recorded commands still compose to the recorded configurations.

The hash of a configuration changed when options were renamed (``model.primary_types`` is ``model.primary.types``) and
options without a use were removed. ``results/configurations_now.csv`` has what each recorded command is today, and the
hash of its configuration. It was written by a comparison of all recorded configurations with those composed afterwards:
they were equal, option by option, but for these names. Where a name was given to another network before that,
``command`` is what composes to the recorded one, and ``command_at_commit`` what was typed.
"""

import functools
import re
import shlex
import tarfile

import pytest

from benchmarks.cases import configuration
from capsule_lab.commands import compose, load
from capsule_lab.runs.directories import config_hash
from capsule_lab.tables import expand
from tests.helpers.records import RESULTS, overrides_of, records, today, trainings

COMPOSED: expand.Composed = {}


def hash_today(command: str) -> str:
    """Compose as a table does: commands share the compositions of their groups."""
    seed = None
    overrides = []
    for override in overrides_of(command):
        key, _, value = override.partition("=")
        if key == "seed":
            seed = int(value)
        else:
            overrides.append(override)
    config = expand._composed(load("train"), tuple(overrides), COMPOSED)
    return config_hash(config.container(config.config.seed if seed is None else seed))


def recorded_trainings() -> set[tuple[str, str]]:
    """Commands and hashes."""
    return {(record.command, record.recorded_hash) for record in trainings()}


@pytest.mark.whole
def test_recorded_commands_compose_to_the_recorded_configurations() -> None:
    wrong = {}
    for command, recorded in sorted(recorded_trainings()):
        command_now, expected = today()[command, recorded]
        hash_now = hash_today(command_now)
        if hash_now != expected:
            wrong[command_now] = f"expected {expected}, composes to {hash_now}"
    assert wrong == {}


def test_every_entry_of_configurations_now_belongs_to_a_record() -> None:
    assert {*today()} == recorded_trainings()


@functools.cache
def other_commands() -> list[tuple[str, ...]]:
    """Recorded commands other than ``train``, with their overrides except for paths of weights."""
    weights = ("ckpt=", "source=", "baseline=")
    found = set()
    for record in records():
        words = record.command.removeprefix("capsule-lab ")
        words = words.removeprefix("python -m capsule_lab.").removeprefix("studies.")
        command, *overrides = shlex.split(words)
        if command != "train":
            others = [word for word in overrides if not word.startswith(weights)]
            found.add((command, *others))
    return sorted(found)


@pytest.mark.whole
@pytest.mark.parametrize("command", ["analyse", "attack", "bench", "evaluate"])
def test_other_recorded_commands_compose(command: str) -> None:
    known = {name for name, *_ in other_commands()}
    assert known == {"analyse", "attack", "bench", "evaluate"}
    # bench is python -m benchmarks today
    compose_it = configuration if command == "bench" else compose
    for name, *overrides in other_commands():
        if name == command:
            compose_it(name, overrides)


def test_evaluated_runs_are_recorded() -> None:
    trained = {record.recorded_hash for record in trainings()}
    evaluated = [record for record in records() if " ckpt=" in record.command and record.directory]
    assert len(evaluated) > 100
    for record in evaluated:
        assert f"/{record.directory}/" in record.command
        assert record.recorded_hash in trained, record


@pytest.mark.parametrize("name", ["routing_algorithms", "time_to_accuracy"])
def test_archived_runs_are_recorded(name: str) -> None:
    recorded = {record.recorded_hash for record in trainings()}
    hashes = set()
    with tarfile.open(RESULTS / f"{name}_runs.tar.gz") as archive:
        for member in archive.getnames():
            folder, _, file = member.partition("/")
            if file == "config.yaml":
                hashes.add(folder.rpartition("-")[2])
    assert hashes - recorded == set()
    assert len(hashes) > 10


def test_records_name_no_folder_of_a_machine() -> None:
    kinds = (".csv", ".html", ".json", ".md", ".yaml")
    contents = {}
    for path in RESULTS.iterdir():
        if path.suffix in kinds:
            contents[path.name] = path.read_bytes()
    for path in RESULTS.glob("*.tar.gz"):
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                if member.isfile() and member.name.endswith(kinds):
                    contents[f"{path.name}/{member.name}"] = archive.extractfile(member).read()
    assert len(contents) > 100
    wrong = []
    for name, content in contents.items():
        if re.search(rb"[= \"']/(tmp|home|root|work)/", content):
            wrong.append(name)
    assert wrong == []
