"""Rows of docs/claims.md about costs: parameters that are counted, times and memory that were measured.

They have no seeds, so that there is no interval, no test and no verdict, and they are not counted among the tests.
``python -m capsule_studies.claims.measured`` counts the parameters in results/parameters.csv again.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

import pandas as pd

from capsule_lab.errors import ConfigError
from capsule_lab.runs.files import write_text
from capsule_studies.claims.effects import read_csv
from capsule_studies.claims.read import RESULTS

COUNT = "count"
BENCHMARK = "benchmark"

_PARAMETERS = RESULTS / "parameters.csv"
_WRITE = "python -m capsule_studies.claims.measured"

Line = dict[str, Any]


@dataclass(frozen=True)
class Ratio:
    """Two numbers of a record.

    Attributes:
        name: what is compared.
        first, second: the numbers.
        unit: of both.
        extremes: smallest and largest ratio of repeated measurements; ``None`` if the record has one number only.
        recorded: the same ratio as the record has it; ``None`` if it has none.
    """

    name: str
    first: float
    second: float
    unit: str
    extremes: tuple[float, float] | None = None
    recorded: float | None = None

    @property
    def value(self) -> float:
        """How many times the first is as large as the second."""
        return self.first / self.second


@dataclass(frozen=True)
class Record:
    """Lines of a file in results/, with hardware and commit of the measurement; both are empty for counts."""

    lines: list[Line]
    hardware: str
    commit: str


def records_of(row: dict[str, Any]) -> list[str]:
    """Return the paths of all files that a row reads."""
    found = []
    for asked in row["ratios"]:
        file = f"results/{asked.get('file', row['file'])}"
        if file not in found:
            found.append(file)
    return found


def record_of(row: dict[str, Any]) -> Record:
    """Read the record of a row.

    Raises:
        ConfigError: if there is no such file.
    """
    file = RESULTS / row["file"]
    if not file.is_file():
        raise ConfigError(
            f"{row['id']} has no record: results/{row['file']} does not exist; measure it, or correct "
            "docs/claims.yaml, section measured"
        )
    if file.suffix == ".json":
        content = json.loads(file.read_text())
        return Record(content["rows"], content["hardware"], content["commit"])
    lines = read_csv(file).to_dict("records")
    return Record(lines, _common(lines, "card"), _common(lines, "commit"))


def ratios_of(row: dict[str, Any]) -> list[Ratio]:
    """Compute the ratios of a row from its record.

    Raises:
        ConfigError: if the record does not have one number for each of them.
    """
    found = []
    for asked in row["ratios"]:
        source = {**row, **asked}
        lines = record_of(source).lines
        first = _line(source, source["first"], lines)
        second = _line(source, source["second"], lines)
        value = source["value"]
        scale = source.get("scale", 1)
        ratio = Ratio(
            source["name"],
            float(first[value]) * scale,
            float(second[value]) * scale,
            source["unit"],
            _extremes(source, first, second),
            _recorded(source, first, second),
        )
        found.append(ratio)
    return found


def shown(ratio: Ratio) -> str:
    """Describe both numbers, their ratio, and its extremes."""
    numbers = f"{_number(ratio.first)} against {_number(ratio.second)} {ratio.unit}, {ratio.value:.3g} times"
    if ratio.extremes is None:
        return numbers
    low, high = ratio.extremes
    return f"{numbers} ({low:.3g} to {high:.3g})"


def recounted(row: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the recorded number of parameters of each network of a row, and the number of today."""
    found = {}
    for line in record_of(row).lines:
        found[line["network"]] = line["parameters"], count(line["overrides"])
    return found


def check(row: dict[str, Any]) -> None:
    """Read the record of a row, and count again what is counted.

    Raises:
        ConfigError: if a number is missing, or not that of today.
    """
    ratios_of(row)
    if row["kind"] != COUNT:
        return
    for network, (recorded, now) in recounted(row).items():
        if recorded != now:
            raise ConfigError(
                f"{row['id']}: {network} has {now:,} parameters, results/{row['file']} has {recorded:,}; if the "
                f"network should have changed, run {_WRITE}"
            )


def count(overrides: str) -> int:
    """Count the parameters of the network of ``train`` with these overrides, without storing them."""
    from capsule_lab.commands import compose
    from capsule_lab.config import build

    config = compose("train", [*shlex.split(overrides), "data.source=standin"])
    module = build.build_without_weights(config)
    return sum(parameter.numel() for parameter in module.network.parameters())


def _common(lines: list[Line], column: str) -> str:
    """Return the values of a column, which may be missing."""
    values = {line.get(column, "") for line in lines}
    return ", ".join(sorted(values))


def _line(row: dict[str, Any], side: Line, lines: list[Line]) -> Line:
    """Return the only line with the values that a ratio asks for."""
    found = []
    for line in lines:
        has_number = line.get(row["value"], "") != ""
        if has_number and side.items() <= line.items():
            found.append(line)
    if len(found) != 1:
        asked = ", ".join(f"{key} {value}" for key, value in side.items())
        raise ConfigError(
            f"{row['id']}: results/{row['file']} has {len(found)} numbers {row['value']} of {asked}; expected one, "
            "so measure it, or correct docs/claims.yaml, section measured"
        )
    return found[0]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _extremes(row: dict[str, Any], first: Line, second: Line) -> tuple[float, float] | None:
    if "extremes" not in row:
        return None
    smallest, largest = row["extremes"]
    return first[smallest] / second[largest], first[largest] / second[smallest]


def _recorded(row: dict[str, Any], first: Line, second: Line) -> float | None:
    """Return the ratio of the speeds that the benchmark wrote beside its times."""
    if "speed" not in row:
        return None
    speed = row["speed"]
    return float(second[speed] / first[speed])


def _count_all() -> None:
    """Write results/parameters.csv anew."""
    lines = pd.read_csv(_PARAMETERS)
    lines["parameters"] = lines["overrides"].map(count)
    write_text(_PARAMETERS, lines.to_csv(index=False))


if __name__ == "__main__":
    _count_all()
