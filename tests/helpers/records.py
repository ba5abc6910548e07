"""Recorded commands in ``results/``, and what they are today."""

import csv
import functools
import json
import re
import shlex
from dataclasses import dataclass
from typing import Any

from tests.helpers.commands import ROOT

RESULTS = ROOT / "results"
_TRAIN = ("python -m capsule_lab.train ", "capsule-lab train ")
"""Beginnings of the commands of older and newer records."""


@dataclass(frozen=True)
class Record:
    """A row of a CSV file, or a JSON file, with a command."""

    file: str
    content: dict[str, Any]

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

    @property
    def seconds(self) -> float | None:
        """Time of training."""
        if self.content.get("training_seconds"):
            return float(self.content["training_seconds"])
        if self.content.get("minutes"):
            return 60 * float(self.content["minutes"])
        return None


@functools.cache
def records() -> list[Record]:
    result = []
    for file in sorted(RESULTS.glob("*.csv")):
        with file.open(newline="") as lines:
            rows = [row for row in csv.DictReader(lines) if row.get("command")]
        result += [Record(file.name, row) for row in rows]
    for file in sorted(RESULTS.glob("*.json")):
        result.append(Record(file.name, json.loads(file.read_text())))
    return result


def trainings() -> list[Record]:
    with_result = [record for record in records() if record.has_result]
    return [record for record in with_result if record.command.startswith(_TRAIN)]


def overrides_of(command: str) -> list[str]:
    """The overrides of a recorded training."""
    for beginning in _TRAIN:
        command = command.removeprefix(beginning)
    return shlex.split(command)


@functools.cache
def today() -> dict[tuple[str, str], tuple[str, str]]:
    """The command and the hash today, by recorded command and hash."""
    found = {}
    with (RESULTS / "configurations_now.csv").open(newline="") as lines:
        for row in csv.DictReader(lines):
            recorded = row["recorded_command"]
            now = row["same_configuration_now"] or recorded
            found[recorded, row["recorded_hash"]] = (now, row["hash_now"])
    return found
