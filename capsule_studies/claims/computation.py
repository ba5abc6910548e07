"""Writes results/claims_computation.csv: parameters and multiplications of the two networks of a claim.

A control has about as many parameters as the network that it is compared with, and not the same arithmetic. Rows that
compare two kinds of networks of a table say how much each of them computes.

``python -m capsule_studies.claims.computation`` builds these networks, which takes a minute; ``make claims`` reads the
file only. Run it after new results of a table.
"""

from __future__ import annotations

import functools
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
from capsule_studies.claims.recompute import files_of

FILE = RESULTS / "claims_computation.csv"
_IMAGES = 2


@dataclass(frozen=True)
class Computation:
    """What a network of a claim computes.

    Attributes:
        parameters: their number, with those of a decoder.
        multiplications: of a prediction of one image, see ``multiplications``.
    """

    parameters: int
    multiplications: int


def frame(claims: list[dict[str, Any]]) -> pd.DataFrame:
    """Return one line for each claim that compares two kinds of classifiers of tables."""
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
    """Return the computation of both networks; ``None`` if these are not two rows of tables, or classify nothing."""
    places = rows_of(claim)
    if places is None:
        return None
    first, second = (_counts(*place) for place in places)
    return None if first is None or second is None else (first, second)


def rows_of(claim: dict[str, Any]) -> list[tuple[str, str, str]] | None:
    """Return table, row and column of both samples; ``None`` if they are not two rows of tables."""
    runs = runs_compared(claim)
    tables = files_of(claim)
    has_tables = all((ROOT / "sweeps" / f"{name}.yaml").is_file() for name in tables)
    if runs is None or not has_tables:
        return None
    places = []
    for table, sample in zip((tables[0], tables[-1]), runs, strict=True):
        run = sample.iloc[0]
        places.append((table, run["row"], run["column"]))
    (table, row, _), (other_table, other_row, _) = places
    return None if (table, row) == (other_table, other_row) else places


def minutes_of(claim: dict[str, Any]) -> tuple[float, float] | None:
    """Return the median minutes of training of both samples.

    ``None`` if their records are those of evaluations, or are from several kinds of hardware.
    """
    runs = runs_compared(claim)
    if runs is None or any("minutes" not in sample for sample in runs):
        return None
    both = pd.concat(runs)
    if both["hardware"].nunique() > 1 or not both["command"].str.contains(r"\btrain ").all():
        return None
    first, second = (float(sample["minutes"].astype(float).median()) for sample in runs)
    return first, second


def multiplications(network: Any, image_shape: tuple[int, ...]) -> int:
    """Count the multiplications of a prediction of one image: of convolutions, matrix and elementwise products.

    A sum of products has the same count whether it is a convolution, a matrix product, or products that are summed.

    Args:
        network: with routings whose backend is ``matmul``: torch does not see the arithmetic of fused kernels, which
            compute votes again in each iteration.
        image_shape: ``(channels, height, width)``.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    class Elementwise(TorchDispatchMode):
        products = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            output = func(*args, **(kwargs or {}))
            if func.overloadpacket in (torch.ops.aten.mul, torch.ops.aten.mul_):
                self.products += output.numel()
            return output

    images = torch.rand(_IMAGES, *image_shape)
    with torch.no_grad(), FlopCounterMode(display=False) as sums, Elementwise() as elementwise:
        network.eval()(images)
    return (sums.get_total_flops() // 2 + elementwise.products) // _IMAGES


def recorded() -> dict[str, tuple[Computation, Computation]]:
    """Return the lines of the file by the id of the claim."""
    found = {}
    for line in read_csv(FILE).to_dict("records"):
        first, second = (
            Computation(int(line[f"parameters_{side}"]), int(line[f"multiplications_{side}"]))
            for side in ("first", "second")
        )
        found[line["id"]] = first, second
    return found


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
def _counts(table: str, row: str, column: str) -> Computation | None:
    """Count what the network of a row and column computes; ``None`` if it classifies nothing."""
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
    return Computation(parameters, multiplications(network, spec.image_shape))


def main() -> int:
    """Write the file."""
    found = frame(read())
    write_text(FILE, as_csv(found))
    sys.stdout.write(f"{len(found)} claims with two kinds of networks: {FILE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
