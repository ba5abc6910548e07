"""Writes results/claims_computation.csv: parameters, multiply-adds and minutes of the two networks of a claim.

A control has about as many parameters as the network that it is compared with, and not the same arithmetic. Rows that
compare two kinds of networks of a table say how much each of them computes.

``python -m capsule_studies.claims.computation`` builds these networks, which takes a minute; ``make claims`` reads the
file only. Run it after new results of a table.
"""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import dataclass
from typing import Any

import pandas as pd

from capsule_lab.commands.tables import read_table
from capsule_lab.config.composition import copied
from capsule_lab.errors import ConfigError
from capsule_lab.runs.files import write_text
from capsule_lab.tables.cells import Cell, EvaluationCell, TrainingCell
from capsule_lab.tables.expand import expand
from capsule_lab.tables.formats import as_csv
from capsule_studies.claims.effects import read_csv, runs_compared
from capsule_studies.claims.read import RESULTS, ROOT, read

FILE = RESULTS / "claims_computation.csv"
_IMAGES = 2


@dataclass(frozen=True)
class Computation:
    """What a network of a claim costs.

    Attributes:
        parameters: their number, with those of a decoder.
        multiply_adds: of the convolutions and matrix products of a prediction of one image.
        minutes: median time of the trainings; ``None`` if the records do not have it.
    """

    parameters: int
    multiply_adds: int
    minutes: float | None


def frame(claims: list[dict[str, Any]]) -> pd.DataFrame:
    """Return one line for each claim that compares two kinds of networks of tables."""
    lines = []
    for claim in claims:
        found = networks_of(claim)
        if found is None:
            continue
        line: dict[str, Any] = {"id": claim["id"]}
        for side, network in zip(("first", "second"), found, strict=True):
            for name, value in vars(network).items():
                line[f"{name}_{side}"] = value
        lines.append(line)
    return pd.DataFrame(lines).sort_values("id")


def networks_of(claim: dict[str, Any]) -> tuple[Computation, Computation] | None:
    """Return the computation of both networks of a claim.

    ``None`` if they are the same, classify nothing, or do not belong to a table.
    """
    runs = runs_compared(claim)
    tables = _tables_of(claim) if runs is not None else None
    if runs is None or tables is None:
        return None
    first, second = (
        _computation(table, sample) for table, sample in zip(tables, runs, strict=True)
    )
    if first is None or second is None or first == second:
        return None
    return first, second


def multiply_adds(network: Any, image_shape: tuple[int, ...]) -> int:
    """Count the multiply-adds of a prediction of one image, in convolutions and matrix products.

    Elementwise arithmetic, such as activations and the sums of a softmax, does not count.

    Args:
        network: with routings whose backend is ``matmul``: torch does not see the arithmetic of fused kernels.
        image_shape: ``(channels, height, width)``.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    images = torch.rand(_IMAGES, *image_shape)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network.eval()(images)
    return counter.get_total_flops() // (2 * _IMAGES)


def recorded() -> dict[str, tuple[Computation, Computation]]:
    """Return the lines of the file by the id of the claim."""
    found = {}
    for line in read_csv(FILE).to_dict("records"):
        first, second = (_of_line(line, side) for side in ("first", "second"))
        found[line["id"]] = first, second
    return found


def _of_line(line: dict[str, Any], side: str) -> Computation:
    minutes = line[f"minutes_{side}"]
    return Computation(
        int(line[f"parameters_{side}"]),
        int(line[f"multiply_adds_{side}"]),
        None if minutes == "" else float(minutes),
    )


def _tables_of(claim: dict[str, Any]) -> list[str] | None:
    """Return the tables of both samples; ``None`` if their runs do not belong to tables."""
    names = []
    for side in ("first", "second"):
        file = claim[side]["file"] if side in claim else claim["comparison"]["file"]
        names.append(file.removesuffix("_runs.csv"))
    has_tables = all((ROOT / "sweeps" / f"{name}.yaml").is_file() for name in names)
    return names if has_tables else None


def _computation(table: str, runs: pd.DataFrame) -> Computation | None:
    """Return the computation of the networks of a row of a file of runs; ``None`` if they classify nothing."""
    run = runs.iloc[0]
    counts = _counts(table, run["row"], run["column"])
    if counts is None:
        return None
    parameters, operations = counts
    is_training = re.search(r"\btrain ", run["command"])  # else minutes are those of an evaluation
    minutes = runs["minutes"].astype(float).median() if is_training else None
    return Computation(parameters, operations, minutes)


def _cell(table: str, row: str, column: str) -> Cell:
    """Return a cell by the labels of its row and column."""
    for cell in _cells(table):
        if (cell.row.label, cell.column.label) == (row, column):
            return cell
    raise ConfigError(
        f"results/{table}_runs.csv has {row!r}, {column!r}, which sweeps/{table}.yaml does not have; "
        f"`capsule-lab report table={table} out=…` writes it"
    )


@functools.cache
def _cells(table: str) -> list[Cell]:
    return expand(read_table(table))


@functools.cache
def _counts(table: str, row: str, column: str) -> tuple[int, int] | None:
    """Return the parameters and multiply-adds of the network of a row and column."""
    # these import torch, which the page does not need
    from capsule_lab.config import build
    from capsule_lab.networks import AbstractNetwork

    cell = _cell(table, row, column)
    training = cell.training if isinstance(cell, EvaluationCell) else cell
    assert isinstance(training, TrainingCell)
    config = copied(training.config)
    config.data.source = "standin"  # has the sizes of the data that it replaces
    if "backend" in (config.routing or {}):
        config.routing.backend = "matmul"
    spec = build.build_data(config).spec
    network = build.build_module(config, spec).network
    if not isinstance(network, AbstractNetwork):
        return None
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return parameters, multiply_adds(network, spec.image_shape)


def main() -> int:
    """Write the file."""
    found = frame(read())
    write_text(FILE, as_csv(found))
    sys.stdout.write(f"{len(found)} claims with two kinds of networks: {FILE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
