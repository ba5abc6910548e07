"""Writes results/<table>_positions.csv: errors on synthetic affNIST at positions of the training, and at others.

Training digits move by at most ``data.shift`` pixels on each axis; affNIST's digits are anywhere on the canvas. An
error on affNIST is therefore in part one of positions, and in part one of rotations, shears and scales.

``CAPSULE_LAB_DATA=data python -m capsule_studies.claims.positions gu2020_affine`` reads the predictions of the runs in
the table's archive, and makes their test images again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from omegaconf import DictConfig, OmegaConf

from capsule_lab.config.build import build_data
from capsule_lab.data import AffNISTDataModule
from capsule_lab.errors import RunError
from capsule_lab.runs import predictions
from capsule_lab.runs.files import write_text
from capsule_lab.tables.formats import as_csv
from capsule_studies.claims.effects import read_csv
from capsule_studies.claims.read import RESULTS
from capsule_studies.claims.recompute import unpack

WITHIN, BEYOND = "of the training", "beyond those of the training"
_AT_ONCE = 500  # ours: images that are made at once


def positions(data: AffNISTDataModule) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the label of each test image, and whether its digit is where training digits can be.

    Args:
        data: prepared and set up for testing on synthetic affNIST.
    """
    test = data.dataset("test")
    right, down = (data.spec.factors.index(name) for name in ("right", "down"))
    labels, within = [], []
    for index in torch.arange(len(test)).split(_AT_ONCE):
        batch = test[index, 0]
        assert batch.factors is not None  # those of synthetic affNIST
        moved = batch.factors[:, [right, down]].abs().amax(1)
        labels.append(batch.labels)
        within.append(moved <= data.shift)
    return torch.cat(labels).numpy(), torch.cat(within).numpy()


def frame(runs: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Return the error of each run at both kinds of positions, in percent, and the number of images of each.

    Args:
        runs: lines of a table's file of runs.
        folder: of their run directories.

    Raises:
        RunError: if the test images of a run cannot be made again.
    """
    lines = []
    made: dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]] = {}
    finished = runs[runs["status"] == "done"]
    for run in finished.drop_duplicates("directory").itertuples():
        directory = folder / str(run.directory)
        found = predictions.read(directory, json.loads((directory / "metrics.json").read_text()))
        if found is None:
            continue
        config = OmegaConf.load(directory / "config.yaml")
        assert isinstance(config, DictConfig)  # as archive.py writes it
        options = OmegaConf.to_yaml(config.data, resolve=True)
        # rows with the same seed have the same images, and making them takes long
        if options not in made:
            made[options] = positions(_tested_data(config, directory.name))
        labels, within = made[options]
        if not np.array_equal(labels, found.label):
            raise RunError(
                f"{directory.name} was tested on other images than those made from its config.yaml; expected the "
                "same data in CAPSULE_LAB_DATA as in the training"
            )
        for name, chosen in ((WITHIN, within), (BEYOND, ~within)):
            error = 100 * found.wrong[chosen].mean()
            lines.append(
                {
                    "row": run.row,
                    "seed": run.seed,
                    "positions": name,
                    "error": error,
                    "images": chosen.sum(),
                }
            )
    return pd.DataFrame(lines)


def _tested_data(config: DictConfig, name: str) -> AffNISTDataModule:
    data = build_data(config)
    if not isinstance(data, AffNISTDataModule):
        raise RunError(f"{name} has {type(data).__name__}; expected a run with data=affnist")
    data.prepare_data()
    data.setup("test")
    if not data.uses_standin:
        raise RunError(f"{name} was tested on affNIST; expected synthetic affNIST")
    return data


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file of one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", help="name of a table with data=affnist")
    table = parser.parse_args(arguments).table
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        unpack(RESULTS / f"{table}_runs.tar.gz", folder)
        found = frame(read_csv(RESULTS / f"{table}_runs.csv"), folder)
    file = RESULTS / f"{table}_positions.csv"
    write_text(file, as_csv(found))
    sys.stdout.write(f"{len(found)} errors: {file}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
